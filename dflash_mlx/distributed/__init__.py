"""Several machines as one: a target sharded over ranks, of which rank 0 decides everything."""
