"""The prefix cache: prompts with the same beginning are processed only once."""
