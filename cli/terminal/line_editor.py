"""Reads prompts from the user: keys, history, completion, external editor."""

import base64
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_mlx.errors import DFlashError

from .keys import PASTE_BEGINS, PASTE_ENDS, SHIFT_ENTER, TypeAhead, continued
from .live_region import truncate
from .output import Output, strip_control
from .render import excerpt
from .signals import cooked_mode

if TYPE_CHECKING:
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.output import Output as Screen


CompletionSource = Callable[[str], list[tuple[str, str]]]

KEYS = (
    ("Enter", "send"),
    ("Enter, in an answer", "queue a message; Up takes the last one back"),
    ("Alt-Enter, Ctrl-J", "start a new line; pasted lines stay one prompt"),
    ("\\ Enter, Shift-Enter", "start a new line, too (Shift-Enter not in every terminal)"),
    ('"""', "begin and end a prompt of several lines"),
    ("!command", "run a command in the shell, and attach its output to the next prompt"),
    ("Up, Down", "go through earlier prompts"),
    ("Ctrl-R", "search earlier prompts"),
    ("Tab", "complete a command, a setting, a name, or a file after @"),
    ("Ctrl-X Ctrl-E", "write the prompt in $EDITOR"),
    ("Ctrl-L", "clear the screen"),
    ("Ctrl-C", "clear the line; stop an answer and keep its text; twice: leave the chat"),
    ("Ctrl-Z", "suspend; `fg` continues"),
    ("Ctrl-D", "leave the chat"),
)


class LineEditor:
    def __init__(
        self,
        out: Output,
        complete: CompletionSource,
        history: Path | None,
        typed: TypeAhead,
    ):
        """`complete(text)` returns completions of the last word, each with a description."""
        from prompt_toolkit import PromptSession
        from prompt_toolkit.application import create_app_session
        from prompt_toolkit.history import InMemoryHistory
        from prompt_toolkit.output import ColorDepth

        if history is not None:
            create_private_file(history)
        self._out = out
        self._arrow = out.ascii_fallback("› ")
        self._typed = typed
        self._warnings: list[str] = []  # to print when no prompt is on the screen
        with create_app_session(output=make_screen()):  # `output=` would disable dumb-terminal mode
            self._session: PromptSession[str] = PromptSession(
                self._arrow,
                multiline=True,
                prompt_continuation=lambda width, number, wraps: " " * width,
                history=InMemoryHistory()
                if history is None
                else file_history(history, self._warnings.append),
                completer=make_completer(complete),
                complete_while_typing=False,
                key_bindings=make_key_bindings(typed),
                color_depth=ColorDepth.DEPTH_1_BIT if os.environ.get("NO_COLOR") else None,
            )

    def read(self) -> str:
        """Read one prompt, which begins with the draft that was typed ahead.

        Raises KeyboardInterrupt for Ctrl-C on an empty line, and EOFError for Ctrl-D.
        """
        from prompt_toolkit.input.typeahead import get_typeahead

        app = self._session.app
        app.erase_when_done = False
        try:
            draft = self._typed.take_draft()
            text = self._session.prompt(default=draft)
        finally:
            for key in get_typeahead(app.input):  # keys that were read together with the Enter
                pasted = key.key == "<bracketed-paste>"
                self._typed.feed(PASTE_BEGINS + key.data + PASTE_ENDS if pasted else key.data)
        if app.erase_when_done:
            self._write(self._excerpt(text.split("\n"), self._columns() - 6))
        self._print_warnings()
        return text

    def _print_warnings(self) -> None:
        while self._warnings:
            self._out.warn(self._warnings.pop())

    def show(self, text: str) -> None:
        """Print a prompt that was typed ahead as if it had been read here, and remember it."""
        self._session.history.append_string(text)
        screen = self._session.output.get_size()
        lines = text.split("\n")
        if exceeds_screen(text, screen.columns, screen.rows):
            lines = self._excerpt(lines, self._columns() - 6)
        else:
            plain = (strip_control(line.replace("\t", "    ")) for line in lines)
            lines = [("  " if i else self._arrow) + line for i, line in enumerate(plain)]
        self._write(lines)
        self._print_warnings()

    def _columns(self) -> int:
        return self._session.output.get_size().columns

    def _write(self, lines: list[str]) -> None:
        self._session.output.write("\n".join(lines) + "\n")
        self._session.output.flush()

    def _excerpt(self, lines: list[str], columns: int) -> list[str]:
        """The first lines and the last line of a long text, each on one row."""
        rows = []
        for line in excerpt(lines):
            line = strip_control(line).replace("\t", " ")
            row = truncate(line, columns)
            row += "…" if row != line else ""
            rows.append(("  " if rows else self._arrow) + self._out.ascii_fallback(row))
        return rows


def make_screen() -> "Screen":
    """prompt_toolkit's output: stdout if it is a terminal, otherwise stderr."""
    from prompt_toolkit.output import create_output
    from prompt_toolkit.output.plain_text import PlainTextOutput
    from prompt_toolkit.output.vt100 import Vt100_Output

    stream = sys.stdout if sys.stdout.isatty() else sys.stderr
    if os.environ.get("TERM", "").lower() in ("dumb", "unknown"):
        return PlainTextOutput(stream)
    screen = create_output(stdout=stream)
    if isinstance(screen, Vt100_Output):
        # tmux saves the screen in its history when it is erased from the upper left corner, so
        # this erases the first line apart and the rest from the second column.
        erase_from_second_column = "\x1b[K\x1b[C\x1b[J\x1b[D"
        screen.erase_down = lambda: screen.write_raw(erase_from_second_column)  # type: ignore[method-assign]
    return screen


def exceeds_screen(text: str, columns: int, rows: int) -> bool:
    """Whether a text after the prompt's arrow has more rows than the screen."""
    from prompt_toolkit.utils import get_cwidth

    width = max(columns - 2, 1)
    return sum(max(1, -(-get_cwidth(line) // width)) for line in text.split("\n")) > rows


def create_private_file(path: Path) -> None:
    """Create a file, or change its mode, so that only its owner can read it."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        path.chmod(0o600)
    except OSError as error:
        raise DFlashError(
            f"the history file '{path}' cannot be used ({error.strerror}).",
            hint="check its permissions, or use --no-history",
        ) from None


def file_history(path: Path, report: Callable[[str], None]) -> "History":
    """The history in a file. If that cannot be written, it reports why, once.

    Prompts are remembered then until the program ends.
    """
    from prompt_toolkit.history import FileHistory

    class History(FileHistory):
        reported = False

        def store_string(self, string: str) -> None:
            try:
                super().store_string(string)
            except OSError as error:
                if not self.reported:
                    self.reported = True
                    report(f"prompts cannot be kept in '{path}' ({error.strerror})")

    return History(str(path))


def make_key_bindings(typed: TypeAhead) -> "KeyBindings":
    """Enter sends, Alt-Enter and Ctrl-J insert a newline, Ctrl-C first clears the line.

    Shift-Enter inserts a newline where the terminal tells it from Enter, as do a backslash before
    Enter and an open block. Ctrl-Z stops the program until `fg`.
    """
    from prompt_toolkit.filters import completion_is_selected, is_searching
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    # Without the filter Enter could not end a search or select a completion.
    @keys.add("enter", filter=~is_searching & ~completion_is_selected)
    def _(event: Any) -> None:
        buffer = event.current_buffer
        if event.key_sequence[-1].data in SHIFT_ENTER:
            buffer.newline(copy_margin=False)
            return
        if buffer.document.is_cursor_at_the_end and (text := continued(buffer.text)) is not None:
            buffer.document = type(buffer.document)(text)
            return
        size = event.app.output.get_size()
        # Of a text that exceeds the screen only the end would stay, so `read` prints an excerpt.
        event.app.erase_when_done = exceeds_screen(buffer.text, size.columns, size.rows)
        buffer.validate_and_handle()

    @keys.add("enter", filter=completion_is_selected)
    def _(event: Any) -> None:
        event.current_buffer.complete_state = None

    @keys.add("escape", "enter", filter=~is_searching)
    @keys.add("escape", *SHIFT_ENTER[0][1:], filter=~is_searching)
    @keys.add("c-j", filter=~is_searching)
    def _(event: Any) -> None:
        event.current_buffer.newline(copy_margin=False)

    @keys.add("c-x", "c-e", filter=~is_searching)
    def _(event: Any) -> None:
        event.current_buffer.open_in_editor()  # Enter sends the edited text

    @keys.add("c-z")
    def _(event: Any) -> None:
        event.app.suspend_to_background(suspend_group=False)

    @keys.add("c-c", filter=~is_searching)
    def _(event: Any) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
            if typed.held:
                event.app.exit(result="")  # the next message comes back
        else:
            event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

    return keys


def begins(word: str, typed: str) -> bool:
    """Whether a word, or the last part of a path, begins with `typed`; ignores case."""
    word = word.lower()
    typed = typed.lower()
    return word.startswith(typed) or word.rpartition("/")[2].startswith(typed)


def make_completer(complete: CompletionSource) -> Any:
    from prompt_toolkit.completion import Completer, Completion

    class FunctionCompleter(Completer):
        def get_completions(self, document: Any, complete_event: Any) -> Iterator[Any]:
            text = document.text_before_cursor
            last = re.split(r"\s", text)[-1]
            for word, description in complete(text):
                if begins(word, last):
                    yield Completion(word, start_position=-len(last), display_meta=description)

    return FunctionCompleter()


# The clipboard: a system tool, or the terminal's OSC 52 sequence

COPY_COMMANDS = (
    ("pbcopy", (), ""),
    ("wl-copy", (), "WAYLAND_DISPLAY"),
    ("xclip", ("-selection", "clipboard"), "DISPLAY"),
    ("xsel", ("--clipboard", "--input"), "DISPLAY"),
)


def copy_to_clipboard(text: str) -> str:
    """Copy a text and return how, in words; DFlashError if that is not possible."""
    for name, arguments, required_variable in COPY_COMMANDS:
        program = shutil.which(name)
        if program is None or (required_variable and not os.environ.get(required_variable)):
            continue
        try:
            subprocess.run(
                [program, *arguments],
                input=text.encode("utf-8", "replace"),
                env={**os.environ, "LC_CTYPE": "UTF-8"},  # by which pbcopy reads its input
                check=True,
                timeout=5,
                stdout=subprocess.DEVNULL,  # xclip keeps running and would hold a pipe open
                stderr=subprocess.DEVNULL,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise DFlashError(
                f"{name} could not copy the answer ({error}).", hint="/export writes it to a file"
            ) from None
        return f"with {name}"
    if not sys.stdout.isatty() or os.environ.get("TERM") in (None, "", "dumb"):
        raise DFlashError("there is no clipboard here.", hint="/export writes the chat to a file")
    encoded = base64.b64encode(text.encode("utf-8", "replace")).decode()
    sys.stdout.write(f"\x1b]52;c;{encoded}\a")
    sys.stdout.flush()
    return "through the terminal, if it allows that (OSC 52)"


# The user's own editor


def edit_externally(text: str) -> str:
    """Open a text in $VISUAL or $EDITOR and return the result; DFlashError if that fails."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    handle, name = tempfile.mkstemp(prefix="dflash-", suffix=".md")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        with cooked_mode():
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
