"""An HTTP server with the endpoints that other programs use: one pair, many requests at once."""
