"""Checks on the user's machine that each kernel is correct and fast at the shapes of a pair."""
