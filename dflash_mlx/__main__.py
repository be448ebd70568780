"""`python -m dflash_mlx`: the command `dflash`, for launchers that start a Python module."""

from importlib import import_module

if __name__ == "__main__":
    import_module("dflash_mlx.cli.__main__").main()
