"""Answers that follow a grammar: what is asked, and what it allows at each place of an answer."""
