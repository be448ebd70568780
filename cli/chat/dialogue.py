"""A conversation with a pair: its turns, the messages that are sent, and the next answer.

The messages alone determine an answer: after an undo, an edit or a stop the session reads only what
its caches do not hold.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dflash_mlx.chat.messages import Messages
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.options import GenerationOptions
from dflash_mlx.tools.call import MAX_ROUNDS, Step, Steps, run_rounds

from ..answer import Answer, answer_prompt, chat_stats_line
from ..backend.base import Backend
from ..report import RunLog
from ..terminal.output import Output, format_count, stderr_columns
from ..terminal.render import wrap_hanging
from ..terminal.signals import Interrupt, LeaveChat
from .messages import ChatFile, chat_messages, step_of, turn_of
from .tools import ToolBox
from .transcript import Chat, Turn
from .view import make_chat_view

if TYPE_CHECKING:
    from dflash_mlx import Pair, Stats


# Sums over the answers of a chat.


@dataclass(slots=True)
class Totals:
    """Sums over all answers of one model; `uncounted`: a server did not tell some tokens."""

    answers: int = 0
    tokens: int = 0
    verifies: int = 0
    committed: int = 0
    uncounted: bool = False

    def add(self, answer: Answer) -> None:
        """Add one answer."""
        stats = answer.stats
        self.answers += 1
        self.tokens += stats.generated
        self.uncounted = self.uncounted or "generated" in stats.unknown
        self.verifies += stats.verifies
        self.committed += round(stats.verifies * stats.acceptance_length)

    @property
    def acceptance_length(self) -> float:
        """τ over all answers; 1.0 without a verify."""
        return self.committed / self.verifies if self.verifies else 1.0


# What a user is told after an answer, each thing once where once is enough.

NEARLY_FULL = 0.8  # share of the context that triggers a hint
REREAD_WARNING_TOKENS = 64  # templates that rewrite thinking cost a few tokens every turn
LOW_ACCEPTANCE_LENGTH, MIN_VERIFIES = 1.5, 40


@dataclass(slots=True)
class Hints:
    """Low acceptance, a nearly full context and a cache that could not go back.

    `low` and `full` have been told.
    """

    low: bool = False
    full: bool = False

    def after(
        self, stats: "Stats", totals: Totals, context_length: int, *, auto: bool
    ) -> list[str]:
        """The lines after an answer; with `auto` nothing is said of the acceptance."""
        found = []
        if stats.lost_tokens >= REREAD_WARNING_TOKENS:
            found.append(
                f"  this model's cache could not go back: {stats.lost_tokens:,} tokens were read "
                "again"
            )
        low = totals.verifies >= MIN_VERIFIES and totals.acceptance_length < LOW_ACCEPTANCE_LENGTH
        if low and not auto and not self.low:
            self.low = True
            found.append(
                f"  low acceptance: τ {totals.acceptance_length:.1f} over {totals.verifies} "
                "blocks; drafting costs more than it saves. Try /draft off"
            )
        used = stats.prompt_tokens + stats.generated
        if used >= NEARLY_FULL * context_length > 0 and not self.full:
            self.full = True
            found.append(
                f"  context {used:,} of {context_length:,}: soon the oldest turns will be "
                "left out. /clear begins anew"
            )
        return found


LEAVE_WINDOW = 2.0  # seconds; a second Ctrl-C within them leaves


@dataclass(frozen=True, slots=True)
class DisplaySettings:
    """How answers are displayed."""

    markdown: bool = True
    show_thinking: bool = False
    quiet: bool = False


class Dialogue:
    """One conversation, which answers and slash commands change.

    backend: what answers. settings: the options of the next answer. totals, hints: over the answers
    of this backend.
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
        """`autosaves`: save the chat after every answer."""
        self.backend = backend
        self.settings = settings
        self.totals = Totals()
        self.hints = Hints()
        self.out = out
        self.display = display
        self.autosaves = autosaves
        self.chat = Chat()
        self.last: Answer | None = None
        self.interrupted_at = float("-inf")  # time.monotonic of the last Ctrl-C
        self.file = ChatFile()
        self.tools = ToolBox(out)
        self.log = RunLog(None)

    # What answers ---------------------------------------------------------------------------------

    @property
    def pair(self) -> "Pair":
        """The pair; UsageError where a server answers."""
        return self.backend.pair

    def set_pair(self, pair: "Pair", *, drafting: bool = True) -> None:
        """Answer with this pair from now on; without `drafting`, by plain decoding."""
        self.backend.use(pair, drafting=drafting)
        self.totals = Totals()
        self.hints = Hints()

    @property
    def context_length(self) -> int:
        """The most tokens that prompt and answer can have together; 0 where nobody knows."""
        return self.backend.context_length

    def options(self) -> GenerationOptions:
        """The options of the next answer as the model has them: up to the end of the context."""
        most = self.settings.max_tokens or self.context_length or None
        if not self.backend.local:
            most = self.settings.max_tokens
        return self.backend.options(replace(self.settings, max_tokens=most))

    # Turns ----------------------------------------------------------------------------------------

    def split_last_turn(self) -> tuple[Turn, Chat]:
        """The last turn, and the chat without it; UsageError when there is none."""
        *turns, last = self.chat.turns or (None,)
        if last is None:
            raise UsageError("nothing was said yet.", hint="type a prompt first")
        left_out = min(self.chat.left_out, len(turns))
        return last, replace(self.chat, turns=tuple(turns), left_out=left_out)

    def replace_chat(self, chat: Chat) -> None:
        """Replace the conversation and save it."""
        self.chat = chat
        self.autosave()

    def messages(self, chat: Chat, prompt: str, steps: Sequence[Step] = ()) -> Messages:
        """The messages of a chat and a prompt, in the form that the pair's model reads."""
        plain = any(turn.steps for turn in chat.turns) and self.backend.no_tools_reason()
        return chat_messages(chat, prompt, steps, calls=not plain)

    def ask(self, prompt: str) -> Answer:
        """Answer a prompt, running the tools that the model calls; records all of it.

        Returns the last answer. LeaveChat after a second Ctrl-C.
        """
        self.tools.tell(self.backend)
        before = self.chat.turns
        answers: list[Answer] = []

        def keep(steps: Steps) -> None:
            self.replace_chat(replace(self.chat, turns=(*before, turn_of(prompt, steps))))

        def speak(steps: Steps) -> Step:
            self.drop_oldest_turns(prompt, steps, before)
            earlier = replace(self.chat, turns=before)

            def keep_answer(answer: Answer) -> None:
                self.log.answered(answer, self.backend, self.options(), prompt)
                if answer.said or steps:
                    self.last = answer
                    self.totals.add(answer)
                    keep((*steps, step_of(answer)))

            answers.append(self._stream(self.messages(earlier, prompt, steps), keep_answer))
            return step_of(answers[-1])

        steps = run_rounds(speak, self.tools.run, MAX_ROUNDS, keep)
        if steps[-1].calls:
            self._end_at_calls(prompt, steps, keep)
        self._show_numbers(answers[-1], sum(len(step.calls) for step in steps))
        return answers[-1]

    def _stream(self, messages: Messages, keep: Callable[[Answer], None]) -> Answer:
        """Show what the model says to messages; LeaveChat after a second Ctrl-C."""
        view = make_chat_view(
            self.out,
            markdown=self.display.markdown,
            show_thinking=self.display.show_thinking,
            quiet=self.display.quiet,
            context_length=self.context_length,
        )
        schemas = self.tools.schemas
        splitter = None
        if schemas:
            splitter, messages = self.backend.tool_parser(messages, schemas)
        options = replace(self.options(), tools=schemas)
        with Interrupt(LEAVE_WINDOW) as interrupt:
            answer = answer_prompt(
                self.backend, messages, options, view, interrupt, keep=keep, splitter=splitter
            )
        self.interrupted_at = interrupt.last_at
        if interrupt.requested_twice:
            raise LeaveChat(130)
        return answer

    def _end_at_calls(self, prompt: str, steps: Steps, keep: Callable[[Steps], None]) -> None:
        """Record and say that there is no answer behind the last calls."""
        keep(steps)
        if any(call.state == "interrupted" for call in steps[-1].calls):
            self.interrupted_at = time.monotonic()
            self._warn("  stopped (Ctrl-C again to leave)")
        else:
            text = f"  {len(steps) - 1} rounds of calls: stopped. Say 'go on' for more"
            self.out.info(wrap_hanging(text, stderr_columns()), "warning")

    def _show_numbers(self, answer: Answer, calls: int) -> None:
        """The line below an answer, and hints."""
        line = chat_stats_line(answer, self.backend, self.settings.max_tokens)
        line += f" · {format_count(calls, 'call', 'calls')}" if calls else ""
        line = line.replace("τ", self.out.ascii_fallback("τ"))
        self.out.note(wrap_hanging(line, stderr_columns()))
        auto = not self.backend.drafting or self.settings.mode == "auto"  # it drafts less itself
        for hint in self.hints.after(answer.stats, self.totals, self.context_length, auto=auto):
            self._warn(hint)

    def answer_again(self, prompt: str | None = None) -> tuple[Turn, Answer]:
        """Answer the last prompt again, or another one in its place; the old turn and the answer.

        The old turn stays, on disk too, until the new answer has tokens.
        """
        previous = self.chat
        turn, self.chat = self.split_last_turn()
        earlier = self.chat
        try:
            return turn, self.ask(turn.prompt if prompt is None else prompt)
        finally:
            if len(self.chat.turns) == len(earlier.turns):
                self.chat = previous

    # Context limits -------------------------------------------------------------------------------

    def drop_oldest_turns(
        self, prompt: str, steps: Sequence[Step] = (), before: tuple[Turn, ...] | None = None
    ) -> None:
        """Leave out the oldest turns until an eighth of the context is free for the answer.

        `steps` of it there are already, and `before` are the turns before it, unless all are. A
        prompt that does not fit even without turns leaves none out; the session refuses it.
        """
        if not self.context_length:
            return
        earlier = self.chat if before is None else replace(self.chat, turns=before)
        reserve = min(self.settings.max_tokens or self.context_length, self.context_length // 8)
        left_out_before, used = earlier.left_out, 0
        left_out = left_out_before
        for left_out in range(left_out_before, len(earlier.turns) + 1):
            sent = self.messages(replace(earlier, left_out=left_out), prompt, steps)
            asked = replace(self.settings, tools=self.tools.schemas)
            used = self.backend.estimate_tokens(sent, asked)
            if used + reserve <= self.context_length:
                break
        if left_out == left_out_before or used >= self.context_length:
            return
        self.chat = replace(self.chat, left_out=left_out)
        self.hints.full = False
        turns = "turn is" if left_out == 1 else f"{left_out:,} turns are"
        about = "" if self.backend.local else ", by an estimate"
        text = f"  the context is full{about}: the oldest {turns} not sent any more"
        # Not a note: this line also goes into a pipe and is shown with --quiet.
        self.out.info(wrap_hanging(text, stderr_columns()), "warning")

    def _warn(self, text: str) -> None:
        self.out.note(wrap_hanging(text, stderr_columns()), "warning")

    # On disk --------------------------------------------------------------------------------------

    def save(self, name: str | None = None) -> str:
        """Save under a new or the present name; returns the path. UsageError for a taken name."""
        names = {"model": self.backend.target_name, "draft": self.backend.draft_name}
        path, left = self.file.save(replace(self.chat, **names), name)
        if left is not None:
            text = f"  '{left}' was changed by another dflash: this chat is now '{self.file.name}'"
            self.out.info(wrap_hanging(text, stderr_columns()), "warning")
        return str(path)

    def autosave(self) -> None:
        """Save after a change, if `autosaves`; prints an error instead of raising it."""
        if not self.autosaves or not (self.chat.turns or self.file.name):
            return
        try:
            self.save()
        except DFlashError as error:
            self.out.error(error.message, error.hint)

    def load(self, name: str) -> Chat:
        """Continue a saved chat."""
        self.chat = self.file.load(name)
        self.hints.full = False
        return self.chat

    def clear(self) -> None:
        """Begin a new conversation with the same system prompt; the old file stays."""
        self.chat, self.file = Chat(system=self.chat.system), ChatFile()
