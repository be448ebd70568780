"""What decides how many rows a round verifies; pure decisions, no models."""
