"""The command `dflash doctor`."""
