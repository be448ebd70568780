"""The line where the user types: keys, history, completion, the external editor.

Knows prompt_toolkit and text, not what becomes of it.
"""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_mlx.errors import DFlashError

from ..output import Output, clean
from .region import cut

if TYPE_CHECKING:
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.output import Output as Screen

Words = Callable[[str], list[tuple[str, str]]]

KEYS = (
    ("Enter", "send"),
    ("Alt-Enter, Ctrl-J", "new line; a paste of many lines stays one prompt"),
    ("Up, Down", "earlier prompts"),
    ("Ctrl-R", "search earlier prompts"),
    ("Tab", "complete a command, a setting or a name"),
    ("Ctrl-X Ctrl-E", "write in $EDITOR"),
    ("Ctrl-L", "clear the screen"),
    ("Ctrl-C", "clear the line; stop an answer and keep its text; twice: leave"),
    ("Ctrl-D", "leave"),
)


class Prompt:
    """Reads prompts from a terminal."""

    def __init__(self, out: Output, words: Words, history: Path | None):
        """`words(text)` are the completions of the last word with what they mean."""
        from prompt_toolkit import PromptSession
        from prompt_toolkit.application import create_app_session
        from prompt_toolkit.history import FileHistory, InMemoryHistory
        from prompt_toolkit.output import ColorDepth

        if history is not None:
            make_private(history)
        self._out, self._arrow = out, out.glyphs("› ")
        with create_app_session(output=own_screen()):  # an `output` would be no dumb terminal's
            self._session: PromptSession[str] = PromptSession(
                self._arrow,
                multiline=True,
                prompt_continuation=lambda width, number, wraps: " " * width,
                history=InMemoryHistory() if history is None else FileHistory(str(history)),
                completer=completer(words),
                complete_while_typing=False,
                key_bindings=bindings(),
                color_depth=ColorDepth.DEPTH_1_BIT if os.environ.get("NO_COLOR") else None,
            )

    def read(self) -> str:
        """What the user sends. KeyboardInterrupt for Ctrl-C on an empty line, EOFError: Ctrl-D."""
        app = self._session.app
        app.erase_when_done = False
        text = self._session.prompt()
        if app.erase_when_done:
            screen = self._session.output
            columns = screen.get_size().columns
            screen.write("\n".join(self._excerpt(text.split("\n"), columns - 6)) + "\n")
            screen.flush()
        return text

    def _excerpt(self, lines: list[str], columns: int) -> list[str]:
        """The first lines of a long text, and the last one, each on one row."""
        if left_out := max(len(lines) - 4, 0):
            lines = [*lines[:3], f"… {left_out:,} more lines", lines[-1]]
        found = []
        for line in lines:
            line = clean(line).replace("\t", " ")
            shown = cut(line, columns)
            shown += "…" if shown != line else ""
            found.append(("  " if found else self._arrow) + self._out.glyphs(shown))
        return found


def own_screen() -> "Screen":
    """The terminal on stdout; where that is redirected, for answers alone, the one on stderr."""
    from prompt_toolkit.output import create_output
    from prompt_toolkit.output.plain_text import PlainTextOutput
    from prompt_toolkit.output.vt100 import Vt100_Output

    stream = sys.stdout if sys.stdout.isatty() else sys.stderr
    if os.environ.get("TERM", "").lower() in ("dumb", "unknown"):
        return PlainTextOutput(stream)
    screen = create_output(stdout=stream)
    if isinstance(screen, Vt100_Output):
        # What is erased from the upper left corner on goes to the history of tmux: begin beside it.
        beside = "\x1b[K\x1b[C\x1b[J\x1b[D"
        screen.erase_down = lambda: screen.write_raw(beside)  # type: ignore[method-assign]
    return screen


def is_tall(text: str, columns: int, rows: int) -> bool:
    """Whether a text, typed behind the arrow, has more lines than the screen."""
    from prompt_toolkit.utils import get_cwidth

    width = max(columns - 2, 1)
    return sum(max(1, -(-get_cwidth(line) // width)) for line in text.split("\n")) > rows


def make_private(path: Path) -> None:
    """Create a file that only its owner can read, or make it so."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        path.chmod(0o600)
    except OSError as error:
        raise DFlashError(
            f"the history file '{path}' cannot be used ({error.strerror}).",
            hint="mend its permissions, or use --no-history",
        ) from None


def bindings() -> "KeyBindings":
    """Enter sends, other keys make new lines, Ctrl-C first clears what is typed."""
    from prompt_toolkit.filters import completion_is_selected, is_searching
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    # Without the filter Enter could end neither a search nor a choice of completions.
    @keys.add("enter", filter=~is_searching & ~completion_is_selected)
    def _(event: Any) -> None:
        size = event.app.output.get_size()
        # Of what does not fit the screen only the end would stay there: `read` shows an excerpt.
        event.app.erase_when_done = is_tall(event.current_buffer.text, size.columns, size.rows)
        event.current_buffer.validate_and_handle()

    @keys.add("enter", filter=completion_is_selected)
    def _(event: Any) -> None:
        event.current_buffer.complete_state = None

    @keys.add("escape", "enter", filter=~is_searching)
    @keys.add("c-j", filter=~is_searching)
    def _(event: Any) -> None:
        event.current_buffer.newline(copy_margin=False)

    @keys.add("c-x", "c-e", filter=~is_searching)
    def _(event: Any) -> None:
        event.current_buffer.open_in_editor()  # sent by Enter, when it was seen here

    @keys.add("c-c", filter=~is_searching)
    def _(event: Any) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

    return keys


def completer(words: Words) -> Any:
    """Tab completion from a function."""
    from prompt_toolkit.completion import Completer, Completion

    class Table(Completer):
        """Completes the last word before the cursor."""

        def get_completions(self, document: Any, complete_event: Any) -> Iterator[Any]:
            text = document.text_before_cursor
            last = (text[len(text.rstrip()) :] and "") or text.split(" ")[-1]
            for word, meaning in words(text):
                if word.startswith(last):
                    yield Completion(word, start_position=-len(last), display_meta=meaning)

    return Table()


def edit(text: str) -> str:
    """Let the user change a text in $VISUAL or $EDITOR; DFlashError when that fails."""
    from termios import ECHO, ICANON

    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    handle, name = tempfile.mkstemp(prefix="dflash-", suffix=".md")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        with terminal_flags(lambda flags: flags | ECHO | ICANON):  # ed, for one, needs them
            code = subprocess.call([*shlex.split(editor), name])
        if code:
            raise DFlashError(
                f"the editor '{editor}' ended with {code}.", hint="nothing was changed"
            )
        return Path(name).read_text(encoding="utf-8").rstrip("\n")
    except (OSError, ValueError) as error:
        raise DFlashError(
            f"the editor '{editor}' cannot be used ({getattr(error, 'strerror', None) or error}).",
            hint="set EDITOR to the one you like",
        ) from None
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)


@contextmanager
def muted() -> Iterator[None]:
    """Keep what is typed during an answer off the screen; it is there for the next prompt.

    Enter is a new line then, so that a paste is not sent line by line. Also what `kill` sends ends
    the program only after the terminal is as it was.
    """
    from termios import ECHO, ICANON

    before = signal.signal(signal.SIGTERM, leave)
    try:
        with terminal_flags(lambda flags: flags & ~(ECHO | ICANON)):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


def leave(number: int, _: Any) -> None:
    """End the program for a signal."""
    raise SystemExit(128 + number)


@contextmanager
def terminal_flags(change: Callable[[int], int]) -> Iterator[None]:
    """Other local flags of the terminal on standard input, if there is one."""
    import termios

    try:
        before = termios.tcgetattr(sys.stdin)
    except (OSError, ValueError, termios.error):  # not a terminal
        yield
        return
    now = [*before]
    now[3] = change(now[3])
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, now)
    try:
        yield
    finally:
        with suppress(termios.error):  # it was closed
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
