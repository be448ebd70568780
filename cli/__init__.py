"""The command line: the only code that knows about a terminal. Installed as `dflash_mlx.cli`.

`app.py` imports the commands, no other module here does. `terminal/` imports none of the others.
"""
