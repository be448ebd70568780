"""The target's caches, which go back to an earlier token exactly."""
