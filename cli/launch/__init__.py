"""`dflash launch`."""
