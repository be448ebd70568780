"""Chat templates, tokenizers, detokenization, and the split of thinking from answers."""
