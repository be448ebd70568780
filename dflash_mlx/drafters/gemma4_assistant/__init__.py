"""Google's assistants of Gemma 4, which read the target's own keys and values."""
