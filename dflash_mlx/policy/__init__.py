"""Policies: they decide how many drafts a round verifies, and run no models."""
