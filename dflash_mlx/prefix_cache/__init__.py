"""What was read of prompts, kept so that a prompt with the same beginning reads only the rest."""
