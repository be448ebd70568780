"""The target model: many query tokens in one pass, hidden states, caches that rewind."""
