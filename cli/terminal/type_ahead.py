"""What is typed while no prompt is read: messages that Enter has sent, and the draft of the next.

Knows keys as a terminal sends them and how the lines look; does not read them and sends nothing.
"""

import re
from collections import deque
from threading import RLock

from .live_region import truncate
from .multiline import continued
from .output import strip_control

PASTE_BEGINS, PASTE_ENDS = "\x1b[200~", "\x1b[201~"
# Shift-Enter as kitty's protocol and xterm's modifyOtherKeys send it.
SHIFT_ENTER = ("\x1b[13;2u", "\x1b[27;2;13~")
# A paste, a sequence of control characters, Alt and a key, a key, or a run of letters.
KEY = re.compile(
    rf"{re.escape(PASTE_BEGINS)}(?P<paste>.*?){re.escape(PASTE_ENDS)}"
    rf"|(?!{re.escape(PASTE_BEGINS)})\x1b\[[0-9;?<=>]*[ -/]*[@-~]"
    r"|\x1bO.|\x1b[^\[O]|[\x00-\x1a\x1c-\x1f\x7f]|[^\x00-\x1f\x7f]+",
    re.DOTALL,
)
UP = ("\x1b[A", "\x1bOA", "\x10")
NEW_LINE = ("\n", "\x1b\r", *SHIFT_ENTER)
LAST_WORD = re.compile(r"\S*\s*\Z")


class TypeAhead:
    """Messages in the order they were sent, a draft, and whether Ctrl-D was typed after them.

    Any thread may call its methods. `held`: messages come back to the prompt instead of being sent.
    """

    def __init__(self) -> None:
        self.messages: deque[str] = deque()
        self.draft = ""
        self.leaves = self.held = False
        self._rest = ""  # the beginning of a key or of a paste
        self._lock = RLock()

    # Keys -----------------------------------------------------------------------------------------

    @property
    def in_paste(self) -> bool:
        """Whether the end of a paste has yet to come."""
        return self._rest.startswith(PASTE_BEGINS)

    @property
    def waits(self) -> bool:
        """Whether the rest of a key or of a paste has yet to come."""
        return bool(self._rest)

    def feed(self, text: str, *, all_there: bool = False) -> None:
        """Take in what was typed; `all_there`: what looks like the start of a key is one."""
        with self._lock:
            text = self._rest + text
            at = 0
            while found := KEY.match(text, at):
                at = found.end()
                self._press(found)
            self._rest = text[at:]
            if all_there and not self.in_paste:
                self._rest = ""

    def _press(self, found: re.Match[str]) -> None:
        key = found.group()
        if (pasted := found["paste"]) is not None:
            self.draft += re.sub(r"\r\n?", "\n", pasted)
        elif key == "\r":
            self._enter()
        elif key in NEW_LINE:
            self.draft += "\n"
        elif key in UP:
            self.take_back()
        elif key in ("\x7f", "\b"):
            self.draft = self.draft[:-1]
        elif key == "\x15":  # Ctrl-U
            self.draft = ""
        elif key in ("\x17", "\x1b\x7f"):  # Ctrl-W, Alt-Backspace
            self.draft = LAST_WORD.sub("", self.draft)
        elif key == "\x04" and not self.draft:
            self.leaves = True
        elif key.isprintable():
            self.draft += key

    def _enter(self) -> None:
        if (more := continued(self.draft)) is not None:
            self.draft = more
        elif self.draft.strip():
            self.messages.append(self.draft)
            self.draft = ""

    # Messages -------------------------------------------------------------------------------------

    def take_back(self) -> None:
        """Make the message that was sent last the draft, if nothing else is in it."""
        with self._lock:
            self.leaves = False
            if self.messages and not self.draft:
                self.draft = self.messages.pop()

    def hold(self) -> int:
        """From now on messages come back to the prompt, one after another; how many there are."""
        with self._lock:
            self.held, self.leaves = bool(self.messages), False
            return len(self.messages)

    def drop(self) -> None:
        """Forget all messages, not the draft."""
        with self._lock:
            self.messages.clear()
            self.held = False

    def next_message(self) -> str | None:
        """The next message to send, if there is one and it need not be seen first."""
        with self._lock:
            return self.messages.popleft() if self.messages and not self.held else None

    def take_draft(self) -> str:
        """What the next prompt begins with: a message that is held, or the draft."""
        with self._lock:
            if self.held and self.messages:
                return self.messages.popleft()
            self.held = False
            draft, self.draft = self.draft, ""
            return draft

    # Lines ----------------------------------------------------------------------------------------

    def lines(self, columns: int, rows: int, *, ascii: bool = False) -> list[str]:
        """What is waiting, in at most `rows` dim lines; none when nothing was typed."""
        with self._lock:
            texts = ["queued  " + one_row(message) for message in self.messages]
            draft = self.draft
            leaves = self.leaves
        if leaves:
            texts.append("queued  leave")
        shown = []
        if draft:
            rows -= 1
            cursor = "_" if ascii else "█"
            arrow = "> " if ascii else "› "
            shown = [arrow + end_of(one_row(draft), columns - 4) + cursor]
        if texts and rows > 0:
            hint = "  (Up takes it back)"
            if not draft and len(texts[-1]) + len(hint) + 2 <= columns:
                texts[-1] += hint
            left_out = max(len(texts) - rows, 0)
            if left_out and rows > 1:
                texts = [f"queued  {left_out + 1} more, and", *texts[left_out + 1 :]]
            else:
                texts = texts[left_out:]
            shown = [*(truncate(f"  {text}", columns) for text in texts), *shown]
        return [f"\x1b[2m{line}\x1b[0m" for line in shown]


def one_row(text: str) -> str:
    """A text on one line, without what a terminal would obey."""
    return strip_control(text.replace("\t", " ")).replace("\n", " / ")


def end_of(text: str, columns: int) -> str:
    """The last characters of a text that fit in a number of columns."""
    from rich.cells import get_character_cell_size

    used, at = 0, len(text)
    while at and (used := used + get_character_cell_size(text[at - 1])) <= columns:
        at -= 1
    return text[at:]
