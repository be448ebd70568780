"""One conversation with a pair: prompts in, blocks of text out. Tokens read before are reused."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence, Set
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from itertools import takewhile
from operator import index
from typing import Any, Self, Unpack

import numpy as np

from dflash_mlx.chat.messages import SYSTEM, Messages, checked_messages, is_begun
from dflash_mlx.engine.stats import Stats

from .chat.reasoning_parser import IncrementalDetokenizer
from .chat.tool_parser import call_finder
from .engine.engine import Engine
from .engine.prefix_cache.prefix_cache import read_ahead
from .engine.prefix_cache.tree import count_common
from .engine.request import Request
from .engine.sequence import Sequence as TokenSequence
from .engine.worker_thread import mlx_thread, uninterrupted
from .errors import DFlashError, UsageError
from .loaded_pair import LoadedPair
from .option_keywords import OptionKeywords, options_of, takes_options
from .options import MODES, GenerationOptions, Mode
from .policy.policy import PolicyState
from .result import Result
from .text import whole_text
from .types import Block, Progress, silent

ONLY_THOUGHT = "the model ended in its thinking and gave no answer"


class Reply:
    """One answer of a sequence, block by block.

    `stats` count its tokens so far. Call `close` at its end, also after an exception.
    """

    def __init__(
        self,
        engine: Engine,
        sequence: TokenSequence,
        request: Request,
        detokenizer: IncrementalDetokenizer,
        requested: float,
    ):
        self.stats = Stats(
            _requested=requested,
            prompt_tokens=len(request.prompt),
            seed=None if request.sampling.greedy else request.sampling.seed,
            accept=sequence.answer.rule.name,
            notes=sequence.answer.notes,
        )
        self._engine = engine
        self._sequence = sequence
        self._request = request
        self._detokenizer = detokenizer
        self._answer = sequence.answer
        # Compute one round ahead of the caller, unless the caches could not drop its tokens.
        drafting = sequence.answer.block_size > 1
        self._ahead = 2 if drafting or not sequence.target_cache.needs_snapshots else 1
        self._asked: deque[Future[Block]] = deque()
        self._closed = False
        self._thinks = False
        self._says = False

    @property
    def prompt_read(self) -> int:
        """Tokens of the prompt that were read, including those kept from earlier."""
        return self.stats.prompt_tokens - self._sequence.unread

    def ask(self) -> Future[Block]:
        """Request the next round's block and, ahead of time, the one after it.

        A block may be empty. Raises UsageError if the answer was closed, or another one has begun.
        """
        if self._closed:
            raise UsageError("this answer was closed.", hint="begin another one")
        if self._sequence.last_answer is not self._answer:
            raise UsageError(
                "this session has begun another answer.",
                hint="use one session for each conversation",
            )
        more = (self._ahead if self.stats.generated else 1) - len(self._asked)
        self._asked.extend(mlx_thread().ask(self._engine, self._sequence) for _ in range(more))
        return self._asked.popleft()

    def take(self, block: Block) -> Block | None:
        """Count a block and add its text, which may end the answer; None for a prefill chunk."""
        if not block.tokens:
            return None
        self.stats.record(block)
        eos = self._request.stop_ids
        piece = self._detokenizer.add_tokens([token for token in block.tokens if token not in eos])
        text = piece.text
        thinking = piece.thinking
        reason = block.finish_reason
        stop = piece.stop
        if reason and not stop:
            last = self._detokenizer.finish()
            text += last.text
            thinking += last.thinking
            stop = last.stop
        if stop:
            reason = "stop"
        self._thinks = self._thinks or bool(thinking.strip())
        self._says = self._says or bool(text.strip())
        if reason and self._thinks and not self._says:
            self.stats.notes.append(ONLY_THOUGHT)
        return replace(block, text=text, thinking=thinking, finish_reason=reason, stop=stop or None)

    def blocks(self, on_prefill: Progress) -> Generator[Block]:
        """All blocks; waits in the caller's thread. `on_prefill` as in `Session.stream`."""
        try:
            self._report(on_prefill)
            while True:
                block = self._take(self.ask().result(), on_prefill)
                if block is not None:
                    yield block
                    if block.finish_reason:
                        return
        finally:
            self.close()

    async def blocks_async(self, on_prefill: Progress) -> AsyncGenerator[Block]:
        """All blocks, as `blocks`; the event loop goes on meanwhile."""
        try:
            self._report(on_prefill)
            while True:
                block = self._take(await asyncio.wrap_future(self.ask()), on_prefill)
                if block is not None:
                    yield block
                    if block.finish_reason:
                        return
        finally:
            await uninterrupted(self.close)

    def _take(self, block: Block, on_prefill: Progress) -> Block | None:
        reading = not self.stats.generated
        taken = self.take(block)
        if reading:
            self._report(on_prefill)
        return taken

    def _report(self, on_prefill: Progress) -> None:
        kept = self.stats.cached_tokens
        on_prefill(self.prompt_read - kept, self.stats.prompt_tokens - kept)

    def close(self) -> None:
        """Cancel the rounds requested ahead; the sequence keeps the prompt and the taken blocks."""
        if self._closed:
            return
        self._closed = True
        for future in self._asked:
            future.cancel()
        self._asked.clear()
        if self._sequence.last_answer is self._answer:
            made = self.stats.generated
            shown = self.stats.prompt_tokens + made - 1 if made else None
            mlx_thread().call(self._engine.stop, self._sequence, shown)


Prompt = str | list[dict[str, Any]] | list[int]
NEAR = 16  # tokens before an answer that tell how its text begins


@dataclass(frozen=True, slots=True)
class Prompted:
    """A request, and how to serve it.

    snapshots_at: lengths in tokens of prefixes of the prompt that other prompts will share. before:
    the tokens that the answer's text goes on from. goes_on: whether the prompt ends with the
    beginning of the answer. split: separate thinking from text. tools: the schemas of those that
    the answer may call. requested: when, by `time.perf_counter`.
    """

    request: Request
    snapshots_at: tuple[int, ...]
    before: tuple[int, ...] = ()
    goes_on: bool = False
    split: bool = True
    requested: float = field(default_factory=time.perf_counter)
    tools: Sequence[dict[str, Any]] = ()


class Session:
    """Answers prompts one after another; the part of a prompt that was read before is reused.

    If `use_prefix_cache`, the session reads from and writes to the pair's prefix cache, which all
    sessions share. `mode` may be set between answers; None is "dflash", or "baseline" for a pair
    without a drafter. Any thread may use a session, one at a time. As a context manager it is
    closed at the end.
    """

    def __init__(
        self, pair: LoadedPair, *, mode: Mode | None = None, use_prefix_cache: bool = True
    ):
        if not isinstance(pair, LoadedPair):
            raise UsageError(
                f"a pair cannot be {pair!r:.60}.", hint="give the pair that dflash_mlx.load returns"
            )
        self.mode: Mode = mode or pair.default_mode
        check_mode(pair, self.mode)
        self.pair = pair
        self.sequence = TokenSequence(
            pair.target, *pair.engine.drafters, use_prefix_cache=use_prefix_cache
        )
        self.stats = Stats()
        self._reply: Reply | None = None
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End a running answer and free the caches. No other answer can begin afterwards.

        What was read stays in the prefix cache.
        """
        self._closed = True
        if self._reply is not None:
            self._reply.close()
        mlx_thread().call(self.sequence.clear)

    @property
    def policy(self) -> PolicyState | None:
        """The policy's choices so far, and their reasons; None before an answer."""
        answer = self.sequence.last_answer
        return None if answer is None else answer.policy.state

    @property
    def prompt_read(self) -> int:
        """Tokens of the last answer's prompt that were read so far; 0 before an answer."""
        return 0 if self._reply is None else self._reply.prompt_read

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of the cache snapshots; only recurrent and sliding layers need them."""
        return self.sequence.target_cache.snapshot_bytes

    @takes_options
    def stream(
        self,
        prompt: Prompt,
        options: GenerationOptions | None = None,
        *,
        on_prefill: Progress = silent,
        **keywords: Unpack[OptionKeywords],
    ) -> Generator[Block]:
        """Answer a prompt block by block; options as `prepare`.

        `on_prefill(done, total)` counts the prompt tokens that are read now. Closing the iterator
        leaves the caches in order. Raises UsageError for bad arguments, and DFlashError if
        something fails later.
        """
        return self.begin(self.prepare(prompt, options, **keywords)).blocks(on_prefill)

    @takes_options
    def generate(
        self,
        prompt: Prompt,
        options: GenerationOptions | None = None,
        *,
        on_prefill: Progress = silent,
        **keywords: Unpack[OptionKeywords],
    ) -> Result:
        """Answer a prompt and return the whole answer; arguments as `stream`."""
        blocks = list(self.stream(prompt, options, on_prefill=on_prefill, **keywords))
        return Result.of(blocks, self.stats)

    @takes_options
    async def stream_async(
        self,
        prompt: Prompt,
        options: GenerationOptions | None = None,
        *,
        on_prefill: Progress = silent,
        **keywords: Unpack[OptionKeywords],
    ) -> AsyncGenerator[Block]:
        """As `stream`, for `async for`: the event loop goes on while a block is computed.

        The answer ends when its task is cancelled or the iterator is closed (`aclose`).
        """
        prompted = await asyncio.to_thread(self.prepare, prompt, options, **keywords)
        reply = await uninterrupted(self.begin, prompted)
        async with aclosing(reply.blocks_async(on_prefill)) as blocks:
            async for block in blocks:
                yield block

    @takes_options
    def prepare(
        self,
        prompt: Prompt,
        options: GenerationOptions | None = None,
        **keywords: Unpack[OptionKeywords],
    ) -> Prompted:
        """Turn a prompt and its options into a request for `begin`. No model runs.

        A prompt is a string (one user message; plain text if `raw`), messages, or ids. Messages
        pass to the template as they are, with the role "tool", `tool_calls` and all other fields;
        only a content of several text parts becomes one text, and messages that a template refuses
        are joined (`Template.write`). If the last message is the assistant's, the answer goes on
        from its text. Tool calls of the answer are part of its text.

        The options are a `GenerationOptions`, or its fields as keywords: then the session's mode
        holds unless `mode` is among them. Raises UsageError for bad arguments.
        """
        requested = time.perf_counter()
        options = options_of(options, keywords, self.mode)
        check_mode(self.pair, options.mode)
        structure = options.structure
        messages = as_messages(prompt, options.raw)
        goes_on = messages is None or is_begun(messages)
        if structure is not None and messages and goes_on:
            raise UsageError(
                "an answer that goes on from a text cannot have a form of its own.",
                hint="leave the form (or the forced call) out, or end with the user's message",
            )
        if structure is not None:  # compiled here, so that only the caller waits for it
            self.pair.compiler.compile(structure)
        ids = self._ids(prompt, options)
        snapshots_at, generation_prompt = self._split_prompt(prompt, ids, options)
        eos = self.pair.target.eos_ids
        kept = ()
        if options.sampling.excludes_top:  # line breaks, as in mlx-lm's server
            kept = (*self.pair.tokenizer.encode("\n"), *sorted(eos))
        request = Request.of(
            replace(options, schema=None, grammar=structure),
            tuple(ids),
            stop_ids=eos | {*options.stop_token_ids},
            bad_word_ids=self._ways_to_write(options.bad_words),
            kept_ids=kept,
            generation_prompt=tuple(generation_prompt),
        )
        # Text that goes on from a prompt, and that of a grammar, keep their first space.
        before = tuple(ids[-NEAR:]) if goes_on or structure is not None else ()
        tools = options.tools or ()
        return Prompted(
            request, tuple(snapshots_at), before, goes_on, requested=requested, tools=tools
        )

    def _ways_to_write(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """The tokens of each word at the start of a text and after a space, as in vLLM."""
        texts = [text for word in words for text in (word, " " + word.lstrip())]
        encoded = [tuple(self.pair.encode(text)) for text in texts]
        return tuple(dict.fromkeys(ids for ids in encoded if ids))

    def begin(self, prompted: Prompted) -> Reply:
        """Start the answer to a prepared prompt; the reply gives its blocks.

        Raises UsageError for a closed session.
        """
        if self._closed:
            raise UsageError("this session is closed.", hint="make another one")
        engine = self.pair.engine
        request = prompted.request
        call = mlx_thread().call
        drafting = request.mode != "baseline"
        read_ahead(engine.prefix_cache, call, self.sequence, request.prompt, drafting=drafting)
        reuse = call(engine.begin, self.sequence, request, *prompted.snapshots_at)
        detokenizer = IncrementalDetokenizer(
            self.pair.tokenizer,
            request.reasoning_prefix,
            request.stop,
            split_thinking=prompted.split,
            before=prompted.before,
            find_call=call_finder(self.pair.tokenizer, prompted.tools),
        )
        reply = Reply(engine, self.sequence, request, detokenizer, prompted.requested)
        reply.stats.cached_tokens = reuse.cached
        reply.stats.lost_tokens = reuse.lost
        reply.stats.differs_at = reuse.differs_at
        self.stats = reply.stats
        self._reply = reply
        return reply

    def _split_prompt(
        self, prompt: Prompt, ids: list[int], options: GenerationOptions
    ) -> tuple[list[int], list[int]]:
        """The lengths of the prefixes that later prompts may share, and the generation prompt.

        Later prompts: this chat's next one, and those of chats with the same system message and
        tools. The generation prompt is what the template adds after the messages. No prefix has
        it, because a template may write past answers differently.
        """
        last = len(ids) - 1
        pair = self.pair
        messages = as_messages(prompt, options.raw)
        if messages is None:
            return [last], ids
        closed = pair.template.write(messages, options, add_generation_prompt=False)
        text = pair.template.write(messages, options)
        generation_prompt = pair.encode(text[len(closed) :]) if text.startswith(closed) else ids
        if not self.sequence.target_cache.needs_snapshots:
            return [last], generation_prompt
        shared = [closed]
        others = [another_chat(messages)] if options.tools or messages[0]["role"] in SYSTEM else []
        if (without := without_reminder(messages)) is not None:
            others.append(without)
        for other in others:
            with suppress(DFlashError):  # a template may refuse such a chat; then it shares nothing
                shared.append(pair.template.write(other, options))
        known = np.array(ids[:last])
        lengths = [count_common(np.array(pair.encode(text)), known) for text in shared]
        return lengths, generation_prompt

    def tokens(
        self,
        prompt: Prompt,
        *,
        think: bool | None = None,
        reasoning_effort: str | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
        raw: bool = False,
    ) -> list[int]:
        """The token ids of a prompt, which do not depend on earlier answers.

        So an answer is the one that a fresh session would give. Tokens that were read before are
        reused as far as their ids are the same.
        """
        options = {"think": think, "reasoning_effort": reasoning_effort, "tools": tools or ()}
        return self._ids(prompt, GenerationOptions(**options, raw=raw))

    def _ids(self, prompt: Prompt, options: GenerationOptions) -> list[int]:
        if isinstance(prompt, str) and not prompt.strip():
            raise UsageError("the prompt is empty.", hint="say something")
        messages = as_messages(prompt, options.raw)
        if messages is not None:
            return self.pair.chat_tokens(messages, options)
        if options.needs_template:
            raise UsageError(
                "thinking, effort, tools and variables need a chat template, and this prompt is "
                "sent without one.",
                hint="leave them out, or send messages (without --raw)",
            )
        if isinstance(prompt, str):
            self.pair.check_length(prompt)
            return self.pair.tokenizer.encode(whole_text(prompt))
        try:
            if isinstance(prompt, bytes | bytearray | memoryview | Mapping | Set):
                raise TypeError
            ids = getattr(prompt, "tolist", lambda: prompt)()
            return [index(token) for token in ids]  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise UsageError(
                f"a prompt cannot be {prompt!r:.60}.",
                hint="give a text, a list of messages, or a list of token ids",
            ) from None


def check_mode(pair: LoadedPair, mode: Mode) -> None:
    """Raise UsageError for an unknown mode, and for one that needs a drafter if there is none."""
    if mode not in MODES:
        raise UsageError(f"there is no mode '{mode}'.", hint=f"use one of {', '.join(MODES)}")
    if mode != "baseline" and not pair.drafts:
        raise UsageError("this pair was loaded without a drafter.", hint="use the mode baseline")


def another_chat(messages: Messages) -> Messages:
    """A chat with the same system messages and another first question."""
    system = [*takewhile(lambda message: message["role"] in SYSTEM, messages)]
    asked = next((m["content"] for m in messages[len(system) :] if m.get("content")), "")
    return [*system, {"role": "user", "content": "B" if str(asked).startswith("A") else "A"}]


REMINDER = "\n<system-reminder>"  # of Claude Code, at the end of a user's message


def without_reminder(messages: Messages) -> Messages | None:
    """The chat as the next prompt begins, if an agent moves a reminder to the last message.

    A reminder is a user's message after another one or after a tool's result, or the end of one.
    None if there is none.
    """
    *earlier, last = messages
    if [message["role"] for message in messages[-2:]] in (["tool", "user"], ["user", "user"]):
        return [*earlier, {"role": "assistant", "content": "A"}, last]
    text, found, _ = str(last.get("content")).rpartition(REMINDER)
    return [*earlier, {**last, "content": text}] if found and last["role"] == "user" else None


def as_messages(prompt: Prompt, raw: bool) -> Messages | None:
    """A prompt as messages; None for raw text and token ids. UsageError for an invalid message."""
    if isinstance(prompt, str):
        return None if raw else [{"role": "user", "content": prompt}]
    if isinstance(prompt, list | tuple) and prompt and isinstance(prompt[0], dict):
        return checked_messages([*prompt])
    return None
