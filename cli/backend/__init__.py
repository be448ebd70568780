"""What answers: a pair on this machine or a server elsewhere, behind one interface."""
