"""DFlash drafters: configuration, network, and drafting with it."""
