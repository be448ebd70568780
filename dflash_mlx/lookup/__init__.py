"""Drafts copied from where the text has said the same before: prompt lookup, without a model."""
