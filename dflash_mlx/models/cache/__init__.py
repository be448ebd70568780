"""KV caches and recurrent states of the target that rewind, fork and batch."""
