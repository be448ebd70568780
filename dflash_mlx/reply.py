"""The answer of one sequence as it comes: rounds asked for ahead, their tokens made readable.

Whoever wants the next block waits for `ask()` in its own way (a thread, an event loop) and gives
it to `take`. Knows text; does not know templates or the terminal.
"""

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future
from dataclasses import replace

from .chat.text import Reader
from .engine import Engine
from .errors import UsageError
from .progress import Progress
from .request import Request
from .sequence import Sequence
from .stats import Stats
from .thread import mlx_thread
from .types import Block


class Reply:
    """One answer of a sequence that has been given a request.

    `stats` grow with it; `stop` is the stop string that ended it. Follow its end, or whatever
    breaks it off, with `close`.
    """

    def __init__(self, engine: Engine, sequence: Sequence, request: Request, reader: Reader):
        self.stats = Stats(
            prompt_tokens=len(request.prompt),
            seed=None if request.sampling.greedy else sequence.now.rule.keys.seed,
        )
        self.stop: str | None = None
        self._engine, self._sequence, self._request = engine, sequence, request
        self._reader = reader
        self._answer = sequence.answer
        # A round runs while the caller has the last one's block, where that can be taken back.
        drafting = sequence.now.block_size > 1
        self._ahead = 2 if drafting or not sequence.target_cache.needs_snapshots else 1
        self._asked: deque[Future[Block]] = deque()

    @property
    def prompt_read(self) -> int:
        """Tokens of the prompt that are read, those that were kept from earlier included."""
        return self.stats.prompt_tokens - self._sequence.unread

    def ask(self) -> Future[Block]:
        """The next round's block, and the asking for the one after it; a block may be empty.

        UsageError where the sequence was given another request.
        """
        if self._sequence.answer is not self._answer:
            raise UsageError(
                "this session has begun another answer.",
                hint="use one session for each conversation",
            )
        more = (self._ahead if self.stats.generated else 1) - len(self._asked)
        self._asked.extend(mlx_thread().ask(self._engine, self._sequence) for _ in range(more))
        return self._asked.popleft()

    def take(self, block: Block) -> Block | None:
        """A block that came, counted and with its text, which may end the answer.

        None while the prompt is being read.
        """
        if not block.tokens:
            return None
        self.stats.record(block)
        eos = self._request.stop_ids
        piece = self._reader.read([token for token in block.tokens if token not in eos])
        text, thinking, reason = piece.text, piece.thinking, block.finish_reason
        self.stop = piece.stop or None
        if self.stop:
            reason = "stop"
        elif reason:
            last = self._reader.finish()
            text, thinking = text + last.text, thinking + last.thinking
            self.stop = last.stop or None
            reason = "stop" if self.stop else reason
        return replace(block, text=text, thinking=thinking, finish_reason=reason)

    def blocks(self, on_prefill: Progress) -> Generator[Block]:
        """All blocks, waited for in the caller's thread; `on_prefill` as in `Session.stream`."""
        kept = self.stats.cached_tokens
        total = self.stats.prompt_tokens - kept
        try:
            on_prefill(0, total)
            while True:
                reading = not self.stats.generated
                block = self.take(self.ask().result())
                if reading:
                    on_prefill(self.prompt_read - kept, total)
                if block is not None:
                    yield block
                    if block.finish_reason:
                        return
        finally:
            self.close()

    def close(self) -> None:
        """Take back what was asked for ahead; the sequence keeps the prompt and what was taken."""
        for one in self._asked:
            one.cancel()
        self._asked.clear()
        if self._sequence.answer is self._answer:
            made = self.stats.generated
            shown = self.stats.prompt_tokens + made - 1 if made else None
            mlx_thread().call(self._engine.stop, self._sequence, shown)
