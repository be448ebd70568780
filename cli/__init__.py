"""The command line: the only code that knows about a terminal. Installed as `dflash_mlx.cli`."""
