"""The commands `dflash models`."""
