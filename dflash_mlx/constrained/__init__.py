"""Constrained output: grammars and schemas, and the tokens they allow."""
