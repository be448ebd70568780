"""A model that another machine serves: a client of OpenAI-compatible endpoints, without MLX."""
