"""The chat template of one tokenizer: messages in, text out, and the switches that it knows.

What a template knows is found by asking it, not by the model's name. Does not know token ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx.errors import DFlashError, UsageError, first_line
from dflash_mlx.types import EFFORTS

Messages = list[dict[str, Any]]
# What published templates call their switches: Qwen, GLM, Gemma; Kimi, DeepSeek; gpt-oss; Muse.
THINK = ("enable_thinking", "thinking")
EFFORT = ("reasoning_effort", "reasoning_strength")
USUAL = ("low", "medium", "high")  # other efforts are offered where the template writes of them
QUESTION: Messages = [{"role": "user", "content": "?"}]


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    """What a template is told besides the messages; None leaves it to the template.

    `think`: whether to think. `reasoning_effort`: how hard, "low", "medium" or "high" (some know
    more). `tools`: JSON schemas of the functions that the model may call.
    """

    think: bool | None = None
    reasoning_effort: str | None = None
    tools: Sequence[dict[str, Any]] | None = None


NOTHING = TemplateOptions()


class Template:
    """How one tokenizer's chats are written; `name` is the model's, for faults."""

    def __init__(self, tokenizer: TokenizerWrapper, name: str):
        self._tokenizer, self._name = tokenizer, name

    def write(
        self, messages: Messages, options: TemplateOptions = NOTHING, *, opening: bool = True
    ) -> str:
        """The chat as text, with the opening of the next answer.

        Messages reach the template as they are, tool calls and their results included; a template
        that knows no tools leaves `tools` out. UsageError for a switch that it does not know,
        DFlashError when there is no template or when it refuses the messages.
        """
        told: dict[str, Any] = self.switches(options)
        if options.tools:
            told["tools"] = list(options.tools)
        try:
            return self._render(messages, opening, told)
        except DFlashError:
            raise
        except Exception as error:  # jinja raises what the template's author chose
            raise DFlashError(
                f"the chat template refuses these messages ({first_line(error)}).",
                hint="check the roles, their order, and the tools",
            ) from error

    def switches(self, options: TemplateOptions) -> dict[str, Any]:
        """The options under this template's names; UsageError for one that it does not know."""
        told: dict[str, Any] = {}
        effort = options.reasoning_effort
        if options.think is not None:
            if self.think_switch is None:
                instead = f"set the effort instead, with --effort or /think: {either(self.efforts)}"
                raise UsageError(
                    "this target's chat template has no switch for thinking.",
                    hint=instead
                    if self.efforts
                    else "leave the switch out, or choose another target",
                )
            told[self.think_switch] = options.think
        if effort is not None:
            if self.effort_switch is None:
                raise UsageError(
                    "this target's chat template knows no reasoning effort.",
                    hint="it can think or not: --think or --no-think, in a chat /think on or off"
                    if self.think_switch
                    else "leave the effort out, or choose another target",
                )
            if effort not in self.efforts:
                raise UsageError(
                    f"the reasoning effort cannot be '{effort}'.",
                    hint=f"give {either(self.efforts)}",
                )
            if options.think is False:
                raise UsageError(
                    "an effort of thinking was asked for, and no thinking.",
                    hint="ask for one of them",
                )
            told[self.effort_switch] = effort
        return told

    @cached_property
    def think_switch(self) -> str | None:
        """The template's own name of the switch for thinking, if it has one."""
        answers = {name: [self._try({name: to}) for to in (True, False)] for name in THINK}
        return next((name for name, (on, off) in answers.items() if on != off), None)

    @cached_property
    def effort_switch(self) -> str | None:
        """The template's own name of the reasoning effort, if it has one."""
        for name in EFFORT:
            texts = {self._try({name: effort}) for effort in self._candidates}
            if len(texts - {None}) > 1:
                return name
        return None

    @cached_property
    def efforts(self) -> tuple[str, ...]:
        """The reasoning efforts that the template takes, none where it knows none."""
        switch = self.effort_switch
        if switch is None:
            return ()
        return tuple(word for word in self._candidates if self._try({switch: word}) is not None)

    @property
    def _candidates(self) -> list[str]:
        source = str(self._tokenizer.chat_template)
        return [
            word
            for word in EFFORTS
            if word in USUAL or f"'{word}'" in source or f'"{word}"' in source
        ]

    def _try(self, told: dict[str, Any]) -> str | None:
        """How a short chat is written under a switch; None where the template refuses that."""
        try:
            return self._render(QUESTION, True, told)
        except DFlashError:
            raise
        except Exception:  # a template says so by raising, with whatever its author chose
            return None

    def _render(self, messages: Messages, opening: bool, told: dict[str, Any]) -> str:
        if not self._tokenizer.has_chat_template:
            raise DFlashError(
                f"the tokenizer of '{self._name}' has no chat template.",
                hint="use --raw to send the text as it is",
            )
        # mlx-lm's wrapper turns thinking on where nothing is said; the template knows better.
        return self._tokenizer._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=opening, **told
        )


def either(words: Sequence[str]) -> str:
    """Words as a choice: a, b or c."""
    return " or ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)
