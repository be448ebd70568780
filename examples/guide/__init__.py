"""The pages of the guide, which `dflash help` shows."""
