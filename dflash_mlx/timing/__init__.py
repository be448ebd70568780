"""What runs models to measure what their passes cost on this machine."""
