"""The bundled model pair: a small target and its DFlash drafter. Data only."""
