"""A pair on this machine or a model of a server, behind one interface."""
