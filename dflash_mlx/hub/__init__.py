"""Finding, downloading and sizing models; the published pairs as data."""
