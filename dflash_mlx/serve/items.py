"""An answer's deltas as items in their order: thinking, text and calls, one open at a time.

White space beside a call is no text of its own. Knows no API's words.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from .job import Delta, Progress

Kind = Literal["thinking", "text", "call"]


@dataclass(eq=False, slots=True)
class Item:
    """One item, the `number`th, as far as it has come; `name` is a call's, and its `text` JSON."""

    number: int
    kind: Kind
    name: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """What happens to an item; `text` is what is added."""

    change: Literal["opened", "added", "closed"]
    item: Item
    text: str = ""


class Items:
    """The items of one answer."""

    def __init__(self) -> None:
        self.all: list[Item] = []
        self._open: Item | None = None
        self._blank = ""  # white space that is text only if more text follows

    def add(self, delta: Delta) -> Iterator[Step]:
        """Take a delta; the last one closes the last item."""
        told = 0
        if delta.thinking:
            yield from self._more("thinking", delta.thinking)
        for part in delta.parts:
            yield from self._text(delta.text[told : part.after])
            told = part.after
            if part.name:
                yield from self._begin("call", part.name)
            if part.arguments:
                yield from self._write(part.arguments)
        yield from self._text(delta.text[told:])
        if delta.finish_reason:
            if self._blank and all(item.kind != "call" for item in self.all):
                yield from self._more("text", self._blank)
            yield from self._close()

    async def add_all(self, events: AsyncGenerator[Delta | Progress]) -> Delta:
        """Take a whole answer's deltas; the last of them."""
        last: Delta | None = None
        async with aclosing(events):
            async for found in events:
                if isinstance(found, Delta):
                    last = found
                    list(self.add(found))
        assert last is not None
        return last

    def _text(self, text: str) -> Iterator[Step]:
        if self._open is None or self._open.kind != "text":
            self._blank, text = "", self._blank + text
            if not text.strip():
                self._blank = text
                return
        if text:
            yield from self._more("text", text)

    def _more(self, kind: Kind, text: str) -> Iterator[Step]:
        if self._open is None or self._open.kind != kind:
            yield from self._begin(kind)
        yield from self._write(text)

    def _begin(self, kind: Kind, name: str = "") -> Iterator[Step]:
        yield from self._close()
        self._open = Item(len(self.all), kind, name)
        self.all.append(self._open)
        yield Step("opened", self._open)

    def _write(self, text: str) -> Iterator[Step]:
        assert self._open is not None
        self._open.text += text
        yield Step("added", self._open, text)

    def _close(self) -> Iterator[Step]:
        self._blank = ""
        if self._open is not None:
            item, self._open = self._open, None
            yield Step("closed", item)
