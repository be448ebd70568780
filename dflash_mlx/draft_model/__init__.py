"""A small language model as drafter."""
