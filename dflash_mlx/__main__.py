"""`python -m dflash_mlx`: the command `dflash`, for launchers that start a Python module."""

from dflash_mlx.cli.__main__ import main

if __name__ == "__main__":
    main()
