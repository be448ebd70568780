"""A conversation: its turns, the messages that are sent, and the next answer.

An answer depends on the messages alone. After an undo, an edit or a stop the session processes only
the tokens that its caches do not hold.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dflash_mlx.chat.messages import Messages
from dflash_mlx.errors import DFlashError, PromptTooLong, UsageError
from dflash_mlx.options import GenerationOptions
from dflash_mlx.tools.call import MAX_ROUNDS, Step, Steps, run_rounds

from ..answer import INTERRUPTED, Answer, answer_prompt, stats_line
from ..backend.base import Backend, ModelInfo
from ..backend.local import LocalBackend, local_backend
from ..passes import Passes
from ..prompt import split_attached
from ..report import RunLog
from ..terminal.output import NotifyKind, Output, format_count, notify, stderr_columns
from ..terminal.render import wrap_hanging
from ..terminal.signals import LEAVE_HINT, LEAVE_WINDOW, Interrupt, LeaveChat
from .chat_file import AnswerKeeper, ChatFile, remove_mark, set_mark
from .hints import Hints
from .loops import loop_hint
from .messages import NOTHING, chat_messages, step_of, turn_of
from .tools import ToolBox
from .transcript import Chat, Turn
from .view import make_chat_view

if TYPE_CHECKING:
    from dflash_mlx import Pair, Stats


@dataclass(frozen=True, slots=True)
class DisplaySettings:
    """How answers are displayed. passes: in the colours of the target's passes."""

    markdown: bool = True
    show_thinking: bool = False
    passes: bool = False
    notify: NotifyKind = "off"


class Dialogue:
    """One conversation, which answers and slash commands change.

    settings: the options of the next answer. stats, hints: of the answers of the loaded pair or
    the server. interrupted_at: time.monotonic of the last Ctrl-C, or of its hint.
    """

    def __init__(
        self,
        backend: Backend,
        out: Output,
        *,
        settings: GenerationOptions,
        display: DisplaySettings,
        autosaves: bool,
    ):
        """`autosaves`: save the chat before every answer, while it streams, and after it."""
        self.backend = backend
        self.settings = settings
        self.stats: list[Stats] = []
        self.hints = Hints()
        self.out = out
        self.display = display
        self.autosaves = autosaves
        self.chat = Chat()
        self.last_answer: Answer | None = None
        self.passes: Passes | None = None  # of the last answer, if they are shown
        self.interrupted_at = float("-inf")
        self.file = ChatFile()
        self.tools = ToolBox(out)
        self.log = RunLog(None)

    # The model ------------------------------------------------------------------------------------

    @property
    def info(self) -> ModelInfo:
        return self.backend.info

    @property
    def pair(self) -> "Pair":
        """The loaded pair; UsageError if a server answers."""
        return local_backend(self.backend).pair

    def set_pair(self, pair: "Pair", *, drafting: bool = True) -> None:
        local_backend(self.backend).use(pair, drafting=drafting)
        self.stats = []
        self.hints = Hints()

    @property
    def context_length(self) -> int:
        return self.info.context_length

    def options(self) -> GenerationOptions:
        """The options of the next answer; by default a local answer may fill the context."""
        max_tokens = self.settings.max_tokens
        if self.info.local:
            max_tokens = max_tokens or self.context_length or None
        return self.info.used(replace(self.settings, max_tokens=max_tokens))

    # Turns ----------------------------------------------------------------------------------------

    def split_last_turn(self) -> tuple[Turn, Chat]:
        """The last turn, and the chat without it; UsageError without any turn."""
        *earlier, last = self.require_turns()
        left_out = min(self.chat.left_out, len(earlier))
        return last, replace(self.chat, turns=tuple(earlier), left_out=left_out)

    def require_turns(self) -> tuple[Turn, ...]:
        """The turns of the chat; UsageError if there are none."""
        if not self.chat.turns:
            raise UsageError("the chat is empty.", hint="type a prompt first")
        return self.chat.turns

    def replace_chat(self, chat: Chat) -> None:
        self.chat = chat
        self.autosave()

    def messages(self, chat: Chat, prompt: str, steps: Sequence[Step] = ()) -> Messages:
        """The messages of a chat and a prompt; tool calls as text for a model without tools."""
        calls_as_text = any(turn.steps for turn in chat.turns) and self.info.no_tools
        return chat_messages(chat, prompt, steps, calls=not calls_as_text)

    def tokens_of(self, chat: Chat) -> int:
        """Number of tokens of a prompt that asks nothing yet; an estimate if a server answers."""
        return self.estimate_tokens(self.messages(chat, ""))

    def tool_tokens(self) -> int:
        empty = self.messages(Chat(system=self.chat.system), "")
        return self.estimate_tokens(empty) - self.estimate_tokens(empty, with_tools=False)

    def estimate_tokens(self, messages: Messages, *, with_tools: bool = True) -> int:
        """Number of tokens of messages and tools: exact for a local model, else an estimate."""
        options = replace(self.settings, tools=self.tools.schemas if with_tools else ())
        try:
            return self.backend.count(messages, options)
        except PromptTooLong as error:
            return error.tokens

    def ask(self, prompt: str, *, again: bool = False, go_on: bool = False) -> Answer:
        """Answer a prompt, run the tools that the model calls, and record the turn.

        `again`: in place of the last turn, which stays, also on disk, until the new answer has
        tokens; with `go_on` the answer begins as that of the last turn. Returns the last answer.
        LeaveChat after a second Ctrl-C.
        """
        self.tools.offer_to(self.backend)
        before = self.chat
        started_at = time.perf_counter()
        kept: Steps = ()  # of the last turn
        begun = NOTHING
        if again:
            turn, self.chat = self.split_last_turn()
            if go_on:
                kept = turn.steps
                begun = Step(turn.answer, turn.thinking)
        earlier_turns = self.chat.turns
        answers: list[Answer] = []

        def with_steps(steps: Steps) -> Chat:
            return replace(self.chat, turns=(*earlier_turns, turn_of(prompt, (*kept, *steps))))

        def record(steps: Steps) -> None:
            self.replace_chat(with_steps(steps))

        def next_step(steps: Steps) -> Step:
            start = NOTHING if steps else begun
            sent = (*kept, *steps, start) if start.text else (*kept, *steps)
            self.drop_oldest_turns(prompt, sent, earlier_turns)
            earlier = replace(self.chat, turns=earlier_turns)

            def write(answer: Answer) -> int | None:
                if not self.autosaves:
                    return None
                chat = with_steps((*steps, step_of(answer, start)))
                return self.file.update(self._with_model(chat))

            def on_end(answer: Answer) -> None:
                self.log.answered(answer, self.backend, self.options(), prompt)
                if steps or not answer.is_empty:
                    self.last_answer = answer
                    self.stats.append(answer.stats)
                    record((*steps, step_of(answer, start)))

            messages = self.messages(earlier, prompt, sent)
            options = replace(self.options(), tools=self.tools.schemas)
            answers.append(self._stream(messages, options, on_end, write))
            return step_of(answers[-1], start)

        with self._on_disk(prompt, before):
            steps = run_rounds(next_step, self.tools.run, MAX_ROUNDS, record)
            if steps[-1].calls:
                record(steps)
        if steps[-1].calls:
            self._show_missing_answer(steps)
        self._show_stats(answers[-1], sum(len(step.calls) for step in steps))
        if steps[-1].finish_reason != INTERRUPTED:
            seconds = time.perf_counter() - started_at
            self.notify(seconds, f"the answer is ready: {split_attached(prompt)[0]:.60}")
        return answers[-1]

    @contextmanager
    def _on_disk(self, prompt: str, before: Chat) -> Iterator[None]:
        """Inside, the chat `before` and the prompt are on disk, marked as being answered.

        Without a recorded answer the chat is `before` again. If the program ends, what is on disk
        and the mark stay, and the next start offers to continue.
        """
        turns = len(self.chat.turns)
        is_new = self.file.name is None
        mark = None

        def finish() -> None:
            if len(self.chat.turns) == turns:
                left_out = max(before.left_out, self.chat.left_out)
                self.chat = replace(before, left_out=left_out)
                if is_new and not before.turns:
                    self.file.discard()
                elif not self.file.has_turns_of(before):
                    self.autosave()
            if mark is not None:
                remove_mark(mark)

        try:
            if self.autosaves:
                with suppress(DFlashError):  # the save after the answer reports it
                    unanswered = Turn(prompt, "", finish_reason=INTERRUPTED)
                    self.save(chat=replace(before, turns=(*before.turns, unanswered)))
                    mark = set_mark(str(self.file.name))
            yield
        except (DFlashError, LeaveChat, KeyboardInterrupt):
            finish()
            raise
        finish()

    def answer_apart(self, messages: Messages, options: GenerationOptions) -> Answer:
        """Stream an answer that does not become a turn; LeaveChat after a second Ctrl-C."""

        def on_end(answer: Answer) -> None:
            self.log.answered(answer, self.backend, options, messages[-1]["content"])

        return self._stream(messages, options, on_end)

    def _stream(
        self,
        messages: Messages,
        options: GenerationOptions,
        on_end: Callable[[Answer], None],
        write: Callable[[Answer], int | None] = lambda answer: None,
    ) -> Answer:
        """Stream the answer to messages; LeaveChat after a second Ctrl-C.

        write: writes the answer so far, see `AnswerKeeper`.
        """
        self.passes = None
        if self.display.passes and self.info.local:
            self.passes = Passes(self.pair.tokenizer.decode, self.out)
        view = make_chat_view(
            self.out,
            markdown=self.display.markdown,
            show_thinking=self.display.show_thinking,
            context_length=self.context_length,
            passes=self.passes,
        )
        with self.interruptible() as interrupt:
            answer = answer_prompt(
                self.backend,
                messages,
                options,
                view,
                interrupt,
                on_block=AnswerKeeper(write).keep,
                on_end=on_end,
            )
        if interrupt.requested:  # the hint is shown only now, after the round that was running
            self.interrupted_at = time.monotonic()
        return answer

    @contextmanager
    def interruptible(self) -> Iterator[Interrupt]:
        """Inside, Ctrl-C is caught; LeaveChat at the end after a second one."""
        with Interrupt(LEAVE_WINDOW) as interrupt:
            yield interrupt
        self.interrupted_at = interrupt.last_at
        if interrupt.requested_twice:
            raise LeaveChat(130)

    def notify(self, seconds: float, text: str) -> None:
        notify(self.out, self.display.notify, seconds, f"dflash: {text}")

    def _show_missing_answer(self, steps: Steps) -> None:
        """Print why no answer follows the last tool calls."""
        if any(call.state == "interrupted" for call in steps[-1].calls):
            self.interrupted_at = time.monotonic()
            self.note(f"  stopped ({LEAVE_HINT})", "warning")
        else:
            rounds = len(steps) - 1
            self.print_line(f"  {rounds} rounds of calls: stopped. Say 'go on' for more", "warning")

    def _show_stats(self, answer: Answer, calls: int) -> None:
        limit = self.settings.max_tokens
        line = stats_line(answer, self.info, limit, stderr_columns(), in_chat=True)
        line += f" · {format_count(calls, 'call', 'calls')}" if calls else ""
        if self.out.plain and answer.finish_reason not in (INTERRUPTED, "length"):
            line = f"  answer complete · {line.lstrip()}"  # as no spinner stops
        self.note(line.replace("τ", self.out.ascii_fallback("τ")))
        if self.passes is not None:
            self.note(self.passes.legend(answer.stats))
        if isinstance(self.backend, LocalBackend):
            for warning in self.backend.drafter_warning():
                self.note(f"  {warning}", "warning")
                self.hints.low_shown = True  # it says more than the hint
        # The mode auto drafts less by itself where that is faster.
        auto = not self.info.drafting or self.settings.mode == "auto"
        hints = self.hints.after(answer.stats, self.context_length, auto=auto)
        for hint in hints + loop_hint(answer, self.info, self.settings.sampling):
            self.note(hint, "warning")

    def answer_again(self, prompt: str | None = None) -> tuple[Turn, Answer]:
        """Answer the last prompt, or `prompt` instead; return the old turn and the new answer.

        The old turn stays, also on disk, until the new answer has tokens.
        """
        turn, _ = self.split_last_turn()
        return turn, self.ask(turn.prompt if prompt is None else prompt, again=True)

    # Context limits -------------------------------------------------------------------------------

    @property
    def reserve(self) -> int:
        """Tokens of the context that stay free for an answer: an eighth, or its limit."""
        return min(self.settings.max_tokens or self.context_length, self.context_length // 8)

    def drop_oldest_turns(
        self, prompt: str, steps: Sequence[Step], earlier: tuple[Turn, ...]
    ) -> None:
        """Leave out the oldest turns until an eighth of the context is free for the answer.

        steps: the first steps of the answer. earlier: the turns before the prompt. If the prompt
        does not fit even without them, none is left out: the session refuses it.
        """
        if not self.context_length:
            return
        chat = replace(self.chat, turns=earlier)
        reserve = self.reserve
        options = replace(self.settings, tools=self.tools.schemas)
        used = 0
        left_out = chat.left_out
        for left_out in range(chat.left_out, len(chat.turns) + 1):
            messages = self.messages(replace(chat, left_out=left_out), prompt, steps)
            used = self.backend.count(messages, options)
            if used + reserve <= self.context_length:
                break
        if left_out == chat.left_out or used >= self.context_length:
            return
        self.chat = replace(self.chat, left_out=left_out)
        self.hints.full_shown = False
        turns = "turn is" if left_out == 1 else f"{left_out:,} turns are"
        estimated = "" if self.info.local else ", by an estimate"
        free = f"{reserve:,} of {format_count(self.context_length, 'token', 'tokens')}"
        self.print_line(
            f"  the context is full{estimated} ({free} stay free for the answer): "
            f"the oldest {turns} not sent any more. /compact sends a summary of them",
            "warning",
        )

    def print_line(self, text: str, style: str = "") -> None:
        """Print a line on stderr, also into a pipe and with --quiet."""
        self.out.info(wrap_hanging(text, stderr_columns()), style)

    def note(self, text: str, style: str = "dim") -> None:
        self.out.note(wrap_hanging(text, stderr_columns()), style)

    # On disk --------------------------------------------------------------------------------------

    def save(self, name: str | None = None, chat: Chat | None = None) -> str:
        """Save this chat, or another, under a new or the present name; returns the path.

        UsageError for a taken name.
        """
        path, old_name = self.file.save(self._with_model(chat or self.chat), name)
        if old_name is not None:
            self.print_line(
                f"  '{old_name}' was changed by another dflash: "
                f"this chat is now '{self.file.name}'",
                "warning",
            )
        return str(path)

    def name_with_all_turns(self) -> str | None:
        """The name under which the chat is on disk, saved again if need be; None if it is not."""
        is_saved = self.autosaves or self.file.name is not None
        if is_saved and not self.file.has_turns_of(self.chat):
            self.save()
        return self.file.name

    def _with_model(self, chat: Chat) -> Chat:
        return replace(chat, model=self.info.name, draft=self.info.draft)

    def autosave(self) -> None:
        """Save after a change, if `autosaves`; prints an error instead of raising it."""
        if not self.autosaves or not (self.chat.turns or self.file.name):
            return
        try:
            self.save()
        except DFlashError as error:
            self.out.error(error.message, error.hint)

    def load(self, name: str) -> Chat:
        self.chat = self.file.load(name)
        self.hints.full_shown = False
        return self.chat

    def clear(self) -> None:
        """Begin a new conversation with the same system prompt; the old file stays."""
        self.chat = Chat(system=self.chat.system)
        self.file = ChatFile()
