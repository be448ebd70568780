"""What a terminal shows and reads; no models."""
