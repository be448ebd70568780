"""Reads and writes files: checkpoints, JSON lines, and measurements in the user's cache folder."""
