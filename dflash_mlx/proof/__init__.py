"""The proof that each kernel is right and fast on this machine, at the shapes of a pair."""
