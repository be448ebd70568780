"""The start of `dflash`, and of `python -m dflash_mlx.cli`: handles Ctrl-C from here on."""

import signal
import sys

from dflash_mlx.first_moments import end_at_interrupt


def main() -> None:
    """Import the command line and run it; Ctrl-C ends with exit code 130 at any moment."""
    end_at_interrupt()
    from .app import main as run

    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run()
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        end_at_interrupt()  # the interpreter's own end would print an exception


if __name__ == "__main__":
    main()
