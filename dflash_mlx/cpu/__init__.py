"""Replacements that make MLX faster on a Linux CPU; nothing here runs on a Mac."""
