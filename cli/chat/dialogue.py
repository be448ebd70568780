"""A conversation with a pair: its turns, the messages that are sent, and the next answer.

The messages alone determine an answer: after an undo, an edit or a stop the session reads only what
its caches do not hold. Knows no keys and no slash commands.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dflash_mlx.errors import DFlashError, UsageError

from ..answer import Answer, answer_prompt
from ..answer_view import chat_stats_line
from ..chat_settings import ChatSettings
from ..modes import describe_drafting
from ..terminal.interrupt import Interrupt, LeaveChat
from ..terminal.output import Output, stderr_columns
from ..terminal.wrapping import wrap_hanging
from .chat_file import ChatFile
from .messages import chat_messages, with_turn
from .transcript import Chat, Turn
from .view import make_chat_view

if TYPE_CHECKING:
    from dflash_mlx import Pair
    from dflash_mlx.request import Mode

LEAVE_WINDOW = 2.0  # seconds; a second Ctrl-C within them leaves
NEARLY_FULL = 0.8  # share of the context that triggers a hint
REREAD_WARNING_TOKENS = 64  # templates that rewrite thinking cost a few tokens every turn
LOW_ACCEPTANCE_LENGTH, MIN_VERIFIES = 1.5, 40


@dataclass(frozen=True, slots=True)
class DisplaySettings:
    """How answers are displayed."""

    markdown: bool = True
    show_thinking: bool = False
    quiet: bool = False


@dataclass(slots=True)
class Totals:
    """Sums over all answers of one pair."""

    answers: int = 0
    tokens: int = 0
    verifies: int = 0
    committed: int = 0

    def add(self, answer: Answer) -> None:
        """Add one answer."""
        stats = answer.stats
        self.answers += 1
        self.tokens += stats.generated
        self.verifies += stats.verifies
        self.committed += sum(stats.committed)

    @property
    def acceptance_length(self) -> float:
        """τ over all answers; 1.0 without a verify."""
        return self.committed / self.verifies if self.verifies else 1.0


class Dialogue:
    """One conversation, which answers and slash commands change."""

    def __init__(
        self,
        pair: "Pair",
        out: Output,
        *,
        settings: ChatSettings,
        display: DisplaySettings,
        autosaves: bool,
    ):
        """`autosaves`: save the chat after every answer."""
        self.out, self.settings, self.display, self.autosaves = out, settings, display, autosaves
        self.chat = Chat()
        self.last: Answer | None = None
        self.interrupted_at = float("-inf")  # time.monotonic of the last Ctrl-C
        self.file = ChatFile()
        self.set_pair(pair)

    # Pair and mode --------------------------------------------------------------------------------

    def set_pair(self, pair: "Pair", *, drafting: bool = True) -> None:
        """Answer with this pair from now on; without `drafting`, by plain decoding."""
        from dflash_mlx import Session

        previous = getattr(self, "session", None)
        self.pair, self.totals = pair, Totals()
        self.drafting = drafting and pair.drafts
        if previous is not None and previous.pair is pair:
            previous.mode = self.mode
        else:
            self.session: Session = Session(pair, mode=self.mode)
        self._hinted_low = self._hinted_full = False

    def release_pair(self) -> None:
        """Free the pair and its caches; `set_pair` must follow."""
        import mlx.core as mx

        del self.pair, self.session
        mx.clear_cache()

    @property
    def mode(self) -> "Mode":
        """The decoding mode of the next answer."""
        return self.settings.mode if self.drafting else "baseline"

    @property
    def drafting_summary(self) -> str:
        """Block size and mode in a few words; empty without drafting."""
        return describe_drafting(
            self.pair, self.mode, self.settings.block_size, self.settings.tree_budget
        )

    @property
    def context_length(self) -> int:
        """The most tokens that prompt and answer can have together."""
        return self.pair.target.context_length

    def options(self) -> dict[str, Any]:
        """The arguments of `Session.stream` besides the prompt."""
        settings = self.settings
        return {
            "sampling": settings.sampling,
            "max_tokens": settings.max_tokens or self.context_length,
            "block_size": settings.block_size if self.drafting else None,
            "accept": settings.accept,
            "tree_budget": settings.tree_budget if self.mode == "ddtree" else None,
            "stop": settings.stop,
            "think": settings.think,
            "reasoning_effort": settings.effort,
        }

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

    def ask(self, prompt: str) -> Answer:
        """Answer a prompt and record both; LeaveChat after a second Ctrl-C."""
        self.drop_oldest_turns(prompt)
        view = make_chat_view(
            self.out,
            markdown=self.display.markdown,
            show_thinking=self.display.show_thinking,
            quiet=self.display.quiet,
            context_length=self.context_length,
        )
        with Interrupt(LEAVE_WINDOW) as interrupt:
            answer = answer_prompt(
                self.session,
                chat_messages(self.chat, prompt),
                view,
                interrupt,
                keep=lambda answer: self._record(prompt, answer),
                **self.options(),
            )
        self.interrupted_at = interrupt.last_at
        if interrupt.requested_twice:
            raise LeaveChat(130)
        line = chat_stats_line(answer.stats, answer.finish_reason, self.settings.max_tokens)
        line = line.replace("τ", self.out.ascii_fallback("τ"))
        self.out.note(wrap_hanging(line, stderr_columns()))
        self._show_hints(answer)
        return answer

    def _record(self, prompt: str, answer: Answer) -> None:
        """Add a turn to the chat, on disk too, if anything was answered."""
        if not answer.tokens:
            return
        self.last = answer
        self.totals.add(answer)
        self.replace_chat(with_turn(self.chat, prompt, answer))

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

    def drop_oldest_turns(self, prompt: str) -> None:
        """Leave out the oldest turns until an eighth of the context is free for the answer.

        A prompt that does not fit even without turns leaves none out; the session refuses it.
        """
        reserve = min(self.settings.max_tokens or self.context_length, self.context_length // 8)
        left_out_before, used = self.chat.left_out, 0
        left_out = left_out_before
        for left_out in range(left_out_before, len(self.chat.turns) + 1):
            sent = chat_messages(replace(self.chat, left_out=left_out), prompt)
            used = len(
                self.session.tokens(
                    sent, think=self.settings.think, reasoning_effort=self.settings.effort
                )
            )
            if used + reserve <= self.context_length:
                break
        if left_out == left_out_before or used >= self.context_length:
            return
        self.chat = replace(self.chat, left_out=left_out)
        self._hinted_full = False
        turns = "turn is" if left_out == 1 else f"{left_out:,} turns are"
        text = f"  the context is full: the oldest {turns} not sent any more"
        # Not a note: this line also goes into a pipe and is shown with --quiet.
        self.out.info(wrap_hanging(text, stderr_columns()), "warning")

    def _show_hints(self, answer: Answer) -> None:
        """Warn about low acceptance, a nearly full context and a cache that could not rewind."""
        stats, totals = answer.stats, self.totals
        if stats.lost_tokens >= REREAD_WARNING_TOKENS:
            self._warn(
                f"  this model's cache could not go back: {stats.lost_tokens:,} tokens were read "
                "again",
            )
        low = totals.verifies >= MIN_VERIFIES and totals.acceptance_length < LOW_ACCEPTANCE_LENGTH
        fixed = self.drafting and self.mode != "auto"  # auto drafts less by itself
        if fixed and low and not self._hinted_low:
            self._hinted_low = True
            self._warn(
                f"  low acceptance: τ {totals.acceptance_length:.1f} over {totals.verifies} "
                "blocks; drafting costs more than it saves. Try /draft off",
            )
        used = stats.prompt_tokens + stats.generated
        if used >= NEARLY_FULL * self.context_length and not self._hinted_full:
            self._hinted_full = True
            self._warn(
                f"  context {used:,} of {self.context_length:,}: soon the oldest turns will be "
                "left out. /clear begins anew",
            )

    def _warn(self, text: str) -> None:
        self.out.note(wrap_hanging(text, stderr_columns()), "warning")

    # On disk --------------------------------------------------------------------------------------

    def save(self, name: str | None = None) -> str:
        """Save under a new or the present name; returns the path. UsageError for a taken name."""
        names = {"model": self.pair.target_name, "draft": self.pair.draft_name}
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
        self._hinted_full = False
        return self.chat

    def clear(self) -> None:
        """Begin a new conversation with the same system prompt; the old file stays."""
        self.chat, self.file = Chat(system=self.chat.system), ChatFile()
