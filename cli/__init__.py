"""The command line: the only code that knows about a terminal. Installed as `dflash_mlx.cli`.

`app.py` registers the commands. `terminal/` imports no other package of the command line.
"""
