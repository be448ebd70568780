"""Runs one prompt through a session, shows the answer while it streams, and stops on Ctrl-C.

Knows blocks and their timing; the view decides how they look.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dflash_mlx.errors import RankLost, ServerLost

from .answer_view import PlainView
from .terminal.interrupt import Interrupt
from .terminal.spinner import Spinner

if TYPE_CHECKING:
    from dflash_mlx import Block, Session, Stats
    from dflash_mlx.remote.session import RemoteSession
    from dflash_mlx.tools.call import Call
    from dflash_mlx.tools.call_splitter import CallSplitter

INTERRUPTED = "interrupted"


@dataclass(slots=True)
class Answer:
    """One answer of a session; `finish_reason` is stop, length or interrupted.

    `calls` of tools are not in its text. `rounds`: of each block the seconds since the answer was
    asked for, its tokens, and how many drafts were checked and accepted.
    """

    stats: "Stats"
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    thinking: str = ""
    finish_reason: str = INTERRUPTED
    first_token_seconds: float = 0.0
    calls: tuple["Call", ...] = ()
    rounds: list[tuple[float, int, int, int]] = field(default_factory=list)

    @property
    def said(self) -> bool:
        """Whether there is anything of it; a server's tokens have no ids here."""
        return bool(self.tokens or self.text or self.thinking)

    def add(self, block: "Block") -> "Block":
        """Append a block. Drops the empty lines that chat templates put around thinking."""
        text = block.text.lstrip("\n") if self.thinking and not self.text else block.text
        thinking = block.thinking if self.thinking else block.thinking.lstrip("\n")
        self.tokens += block.tokens
        self.text += text
        self.thinking += thinking
        return replace(block, text=text, thinking=thinking)


def answer_prompt(
    session: "Session | RemoteSession",
    prompt: Any,
    view: PlainView,
    interrupt: Interrupt,
    *,
    keep: Callable[[Answer], None] = lambda answer: None,
    splitter: "CallSplitter | RemoteSession | None" = None,
    **options: Any,
) -> Answer:
    """Stream an answer into a view and return it; `options` are those of `Session.stream`.

    After Ctrl-C the text so far is the answer. Ctrl-C is checked between blocks and, during
    prefill, between chunks. `keep` gets the answer at the end, also where a signal ends the program
    or the terminal or another machine is gone. After a second Ctrl-C the caller must leave; the
    interrupt is deferred while `keep` runs. `splitter` takes calls of tools out of the text.
    """

    def on_prefill(done: int, total: int) -> None:
        interrupt.check()
        if not result.said:
            view.prefill(done, total)

    interrupt.defer(False)
    started_at = time.perf_counter()
    with Spinner(view.out, "measuring this machine"):  # done once, by the mode auto
        blocks = session.stream(prompt, on_prefill=on_prefill, **options)
    result = Answer(session.stats)
    try:
        with view:
            try:
                for block in blocks:
                    seconds = time.perf_counter() - started_at
                    result.first_token_seconds = result.first_token_seconds or seconds
                    numbers = len(block.tokens), block.drafted, block.accepted
                    result.rounds.append((seconds, *numbers))
                    if splitter is not None:
                        block = splitter.split(block)
                        result.calls = splitter.calls
                    block = result.add(block)
                    view.block(block, result.stats)
                    if block.finish_reason:
                        result.finish_reason = block.finish_reason
                    elif interrupt.requested:
                        break
            except KeyboardInterrupt:
                pass  # `result` holds the text so far
            finally:
                interrupt.defer()
                blocks.close()  # type: ignore[attr-defined]
    except (SystemExit, OSError, RankLost, ServerLost):
        keep(result)
        raise
    keep(result)
    return result
