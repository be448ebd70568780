"""Drafts and trees of them, sampling, and the rules that accept drafts."""
