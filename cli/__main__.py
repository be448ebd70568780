"""The start of `dflash`, and of `python -m dflash_mlx.cli`: Ctrl-C counts from here on."""

import os
import signal
import sys


def main() -> None:
    """Import the command line and run it; Ctrl-C ends with exit code 130 at any moment."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is not signal.SIG_IGN:
        # Not an exception: some that are raised within an import are printed and forgotten.
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from .app import main as run

    signal.signal(signal.SIGINT, handler)
    try:
        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
