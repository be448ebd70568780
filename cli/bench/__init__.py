"""The command `dflash bench`."""
