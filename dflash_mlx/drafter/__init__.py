"""The DFlash drafter: its checkpoint formats, its network, and drafting with it."""
