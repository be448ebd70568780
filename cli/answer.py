"""One answer from a session: shown as it comes, stopped by Ctrl-C, kept whole for what follows.

Knows blocks and when they came; how they look is the view's.
"""

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .terminal.interrupt import Interrupt
from .terminal.wait import Wait
from .view import PlainView

if TYPE_CHECKING:
    from dflash_mlx import Block, Session, Stats

INTERRUPTED = "interrupted"


@dataclass(slots=True)
class Answer:
    """What a session said; `finish_reason` is stop, length or interrupted."""

    stats: "Stats"
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    thinking: str = ""
    finish_reason: str = INTERRUPTED
    first_token_seconds: float = 0.0

    def add(self, block: "Block") -> "Block":
        """Take a block in; templates put empty lines around thinking, which are left out."""
        text = block.text.lstrip("\n") if self.thinking and not self.text else block.text
        thinking = block.thinking if self.thinking else block.thinking.lstrip("\n")
        self.tokens += block.tokens
        self.text += text
        self.thinking += thinking
        return replace(block, text=text, thinking=thinking)


def answer(
    session: "Session",
    prompt: Any,
    view: PlainView,
    interrupt: Interrupt,
    **options: Any,
) -> Answer:
    """Ask, show and collect; `options` are those of `Session.stream`.

    When Ctrl-C comes what was said so far is the answer; it is looked for between blocks and,
    while the prompt is read, between chunks. After a second one the caller has to leave; the
    interrupt is held by then, so that the answer can be kept first.
    """

    def reading(done: int, total: int) -> None:
        interrupt.check()
        view.prefill(done, total)

    interrupt.hold(False)
    began = time.perf_counter()
    with Wait(view.out, "measuring this machine"):  # what the mode auto does once
        blocks = session.stream(prompt, on_prefill=reading, **options)
    said = Answer(session.stats)
    with view:
        try:
            for block in blocks:
                if not said.tokens:
                    said.first_token_seconds = time.perf_counter() - began
                block = said.add(block)
                view.block(block, said.stats)
                if block.finish_reason:
                    said.finish_reason = block.finish_reason
                elif interrupt.asked:
                    break
        except KeyboardInterrupt:
            pass  # `said` is what there is
        finally:
            interrupt.hold()
            blocks.close()  # type: ignore[attr-defined]
    return said
