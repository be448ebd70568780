"""The command `dflash train`."""
