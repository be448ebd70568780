"""Drafters: DFlash 1 and 2, EAGLE-3 heads, small language models, and n-grams of the text."""
