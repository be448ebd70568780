"""The command `dflash serve`."""
