"""Files that are read and written: checkpoints, JSON lines, what is kept for the user."""
