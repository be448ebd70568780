"""Terminal input and output. Knows no models and no commands."""
