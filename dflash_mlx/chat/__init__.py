"""Chat templates, tokenizers, thinking, and readable text."""
