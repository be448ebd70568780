"""The engine: rounds over many sequences, their scheduler, the prefix cache, the worker thread."""
