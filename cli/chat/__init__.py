"""The command `dflash chat`."""
