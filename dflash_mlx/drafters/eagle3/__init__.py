"""EAGLE-3 heads as drafters."""
