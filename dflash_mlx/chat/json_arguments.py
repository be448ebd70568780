"""A JSON value that is read as it is written. Knows no format around it."""

from dataclasses import dataclass


@dataclass(slots=True)
class JsonArguments:
    """One value: how deep it is in, and whether in a string; `rest` is the text behind it."""

    depth: int = 0
    quoted: bool = False
    escaped: bool = False
    ended: bool = False
    rest: str = ""

    def feed(self, text: str) -> str:
        """The part of a text that belongs to the value."""
        for place, mark in enumerate(text):
            if self.escaped:
                self.escaped = False
            elif self.quoted:
                self.escaped, self.quoted = mark == "\\", mark != '"'
            elif mark == '"':
                self.quoted = True
            else:
                self.depth += (mark in "{[") - (mark in "}]")
                if not self.depth:
                    self.ended, self.rest = True, text[place + 1 :]
                    return text[: place + 1]
        return text
