"""Checks on this machine that each kernel is correct and faster at the shapes of a pair."""
