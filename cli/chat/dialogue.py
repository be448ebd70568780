"""A conversation with a pair: what was said, what is still sent, and how the next answer is made.

The messages alone decide an answer: whatever was undone, edited or stopped before, the session
reads only what its caches do not hold yet. Knows no keys and no slash commands.
"""

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dflash_mlx.errors import DFlashError, UsageError

from ..answer import Answer, answer
from ..modes import shape_of
from ..output import Output, columns
from ..terminal.interrupt import Interrupt, Leave
from ..terminal.layout import folded, hanging
from ..tuning import Tuning
from ..view import chat_line
from . import transcript
from .transcript import Chat, Turn
from .view import make_chat_view

if TYPE_CHECKING:
    from dflash_mlx import Pair
    from dflash_mlx.policy.plans import Mode

AGAIN = 2.0  # seconds in which a second Ctrl-C leaves
NEARLY_FULL = 0.8  # share of the context from which a hint is given
MANY = 64  # tokens read again; templates that rewrite thinking cost a few every turn
LOW_TAU, LOW_VERIFIES = 1.5, 40


@dataclass(frozen=True, slots=True)
class Looks:
    """How answers are shown."""

    markdown: bool = True
    show_thinking: bool = False
    quiet: bool = False


@dataclass(slots=True)
class Totals:
    """Counts over all answers of one pair."""

    answers: int = 0
    tokens: int = 0
    verifies: int = 0
    committed: int = 0

    def add(self, said: Answer) -> None:
        """Count one answer."""
        stats = said.stats
        self.answers += 1
        self.tokens += stats.generated
        self.verifies += stats.verifies
        self.committed += sum(stats.committed)

    @property
    def acceptance_length(self) -> float:
        """τ over all answers; 1.0 without a verify."""
        return self.committed / self.verifies if self.verifies else 1.0


class Dialogue:
    """One conversation; changed by answers and by the slash commands."""

    def __init__(self, pair: "Pair", out: Output, *, tuning: Tuning, looks: Looks, keeps: bool):
        """`keeps`: the chat is saved after every answer."""
        self.out, self.tuning, self.looks, self.keeps = out, tuning, looks, keeps
        self.chat = Chat()
        self.last: Answer | None = None
        self.stopped_at = float("-inf")  # time.monotonic of the last Ctrl-C
        self.name: str | None = None  # None: made of the date when first saved
        self.use(pair)

    # What answers ---------------------------------------------------------------------------------

    def use(self, pair: "Pair", *, drafting: bool = True) -> None:
        """Answer with this pair from now on; without `drafting` by plain decoding."""
        from dflash_mlx import Session

        before = getattr(self, "session", None)
        self.pair, self.totals = pair, Totals()
        self.drafting = drafting and pair.drafter is not None
        self.session: Session = Session(pair, mode=self.mode)
        if before is not None and before.pair is pair and not self.drafting:
            self.session.context.adopt(before.context)
        self._hinted_low = self._hinted_full = False

    def release(self) -> None:
        """Let the pair and all caches leave memory; `use` brings another."""
        import mlx.core as mx

        del self.pair, self.session
        mx.clear_cache()

    @property
    def mode(self) -> "Mode":
        """How the next answer is decoded."""
        return self.tuning.mode if self.drafting else "baseline"

    @property
    def shape(self) -> str:
        """How much is drafted a round, in a few words; empty when nothing is."""
        return shape_of(self.pair, self.mode, self.tuning.block_size, self.tuning.tree_budget)

    @property
    def context_length(self) -> int:
        """Tokens that prompt and answer together can have."""
        return self.pair.target.context_length

    def options(self) -> dict[str, Any]:
        """The arguments of `Session.stream` besides the prompt."""
        tuning = self.tuning
        return {
            "sampling": tuning.sampling,
            "max_tokens": tuning.max_tokens or self.context_length,
            "block_size": tuning.block_size if self.drafting else None,
            "accept": tuning.accept,
            "tree_budget": tuning.tree_budget if self.mode == "ddtree" else None,
            "stop": tuning.stop,
            "think": tuning.think,
            "reasoning_effort": tuning.effort,
        }

    # What was said --------------------------------------------------------------------------------

    def without_last(self) -> tuple[Turn, Chat]:
        """The last turn, and the chat without it; UsageError when there is none."""
        *turns, last = self.chat.turns or (None,)
        if last is None:
            raise UsageError("nothing was said yet.", hint="type a prompt first")
        left_out = min(self.chat.left_out, len(turns))
        return last, replace(self.chat, turns=tuple(turns), left_out=left_out)

    def change(self, chat: Chat) -> None:
        """Put another conversation in place of this one, and save it."""
        self.chat = chat
        self.save_quietly()

    def ask(self, prompt: str) -> Answer:
        """Answer a prompt and remember both; Leave after a second Ctrl-C."""
        self.make_room(prompt)
        view = make_chat_view(
            self.out,
            markdown=self.looks.markdown,
            show_thinking=self.looks.show_thinking,
            quiet=self.looks.quiet,
        )
        with Interrupt(AGAIN) as interrupt:
            said = answer(
                self.session, messages(self.chat, prompt), view, interrupt, **self.options()
            )
            if said.tokens:
                self._keep(prompt, said)
        self.stopped_at = interrupt.at
        if interrupt.twice:
            raise Leave(130)
        line = chat_line(said.stats, said.finish_reason, self.tuning.max_tokens)
        line = folded(line.replace("τ", self.out.glyphs("τ")), columns())
        self.out.note(hanging(line, columns()))
        self._hint(said)
        return said

    def _keep(self, prompt: str, said: Answer) -> None:
        """Remember a prompt and its answer, also on disk."""
        self.last = said
        self.totals.add(said)
        text, thinking = said.text.strip("\n"), said.thinking.strip("\n")
        turn = Turn(prompt, text, thinking, said.finish_reason)
        self.change(replace(self.chat, turns=(*self.chat.turns, turn)))

    def again(self, prompt: str | None = None) -> tuple[Turn, Answer]:
        """Answer the last prompt, or another in its place, anew; the old turn and the new answer.

        The old turn stays, also on disk, until there is something to put in its place.
        """
        before = self.chat
        turn, self.chat = self.without_last()
        shorter = self.chat
        try:
            return turn, self.ask(turn.prompt if prompt is None else prompt)
        finally:
            if len(self.chat.turns) == len(shorter.turns):
                self.chat = before

    # The limits -----------------------------------------------------------------------------------

    def make_room(self, prompt: str) -> None:
        """Leave the oldest turns out until an eighth of the context is free for the answer.

        A prompt that fits with no turn at all leaves none out; the session will refuse it.
        """
        reserve = min(self.tuning.max_tokens or self.context_length, self.context_length // 8)
        before, used = self.chat.left_out, 0
        left_out = before
        for left_out in range(before, len(self.chat.turns) + 1):
            sent = messages(replace(self.chat, left_out=left_out), prompt)
            used = len(
                self.session.tokens(
                    sent, think=self.tuning.think, reasoning_effort=self.tuning.effort
                )
            )
            if used + reserve <= self.context_length:
                break
        if left_out == before or used >= self.context_length:
            return
        self.chat = replace(self.chat, left_out=left_out)
        self._hinted_full = False
        turns = "turn is" if left_out == 1 else f"{left_out:,} turns are"
        text = f"  the context is full: the oldest {turns} not sent any more"
        self.out.tell(hanging(text, columns()), "warning")  # also in a pipe and when quiet

    def _hint(self, said: Answer) -> None:
        """Say once what may surprise later: low acceptance, a context that fills, a lost cache."""
        stats, totals = said.stats, self.totals
        if stats.lost_tokens >= MANY:
            self._warn(
                f"  this model's cache could not go back: {stats.lost_tokens:,} tokens were read "
                "again",
            )
        low = totals.verifies >= LOW_VERIFIES and totals.acceptance_length < LOW_TAU
        fixed = self.drafting and self.mode != "auto"  # which drafts less by itself
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
        self.out.note(hanging(text, columns()), "warning")

    # On disk --------------------------------------------------------------------------------------

    def save(self, name: str | None = None) -> str:
        """Save under a new name, or the present one; says where. UsageError when it is taken."""
        if name is not None and name != self.name:
            if transcript.chat_path(name).exists():
                raise UsageError(
                    f"there is a saved chat '{name}' already.",
                    hint=f"give another name, or /load {name}",
                )
            self.name = name
        self.name = self.name or fresh_name()
        names = {"model": self.pair.target_name, "draft": self.pair.draft_name}
        return str(transcript.save(self.name, replace(self.chat, **names)))

    def save_quietly(self) -> None:
        """Save after a change, if chats are kept; a fault is told and ends nothing."""
        if not self.keeps or not (self.chat.turns or self.name):
            return
        try:
            self.save()
        except DFlashError as error:
            self.out.error(error.message, error.hint)

    def load(self, name: str) -> Chat:
        """Go on with a saved chat."""
        self.chat = transcript.load(name)
        self.name = name
        self._hinted_full = False
        return self.chat


def messages(chat: Chat, prompt: str) -> list[dict[str, str]]:
    """What is sent: the system prompt, the turns that are not left out, and a new prompt."""
    found = [] if chat.system is None else [{"role": "system", "content": chat.system}]
    for turn in chat.turns[chat.left_out :]:
        found.append({"role": "user", "content": turn.prompt})
        found.append({"role": "assistant", "content": turn.answer})
    return [*found, {"role": "user", "content": prompt}]


def fresh_name() -> str:
    """A name from the date and time that no saved chat has."""
    born = time.strftime("%Y-%m-%d-%H%M%S")
    name, number = born, 2
    while transcript.chat_path(name).exists():
        name, number = f"{born}-{number}", number + 1
    return name
