"""What makes MLX fast on a Linux CPU; nothing here runs on a Mac."""
