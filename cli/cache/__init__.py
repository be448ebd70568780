"""`dflash cache`."""
