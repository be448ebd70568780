"""`python -m dflash_mlx.cli` is `dflash`."""

from .app import main

if __name__ == "__main__":
    main()
