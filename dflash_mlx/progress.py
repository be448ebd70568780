"""What long work tells those who watch it."""

from collections.abc import Callable

Progress = Callable[[int, int], None]  # what is done, and all


def silent(done: int, total: int) -> None:
    """Progress that nobody looks at."""
