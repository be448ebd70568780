"""The chat template of a tokenizer: rendering of messages, and the options that it supports.

The supported options are found by rendering with them, not by the name of the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx.errors import DFlashError, UsageError, first_line
from dflash_mlx.types import EFFORTS

from .messages import Messages

# Template variables: Qwen, GLM, Gemma; Kimi, DeepSeek.
THINK_VARIABLES = ("enable_thinking", "thinking")
# Template variables: gpt-oss; Muse.
EFFORT_VARIABLES = ("reasoning_effort", "reasoning_strength")
COMMON_EFFORTS = ("low", "medium", "high")  # others are tried if the template mentions them
SAMPLE_CHAT: Messages = [{"role": "user", "content": "?"}]


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    """Options of a template; None is the template's default.

    `think`: whether to think. `reasoning_effort`: "low", "medium" or "high" (some templates have
    more). `tools`: JSON schemas of the functions that the model may call.
    """

    think: bool | None = None
    reasoning_effort: str | None = None
    tools: Sequence[dict[str, Any]] | None = None


DEFAULTS = TemplateOptions()


class Template:
    """The chat template of one tokenizer; `name` is the model's, for error messages."""

    def __init__(self, tokenizer: TokenizerWrapper, name: str):
        self._tokenizer, self._name = tokenizer, name

    def write(
        self, messages: Messages, options: TemplateOptions = DEFAULTS, *, opening: bool = True
    ) -> str:
        """Render a chat as text; with `opening` the generation prompt is added.

        The messages are passed to the template as they are, with tool calls and results; a template
        without tool support ignores `tools`. Raises UsageError for an option that the template does
        not support, DFlashError if there is no template or it refuses the messages.
        """
        variables: dict[str, Any] = self.switches(options)
        if options.tools:
            variables["tools"] = list(options.tools)
        try:
            return self._render(messages, opening, variables)
        except DFlashError:
            raise
        except Exception as error:  # a template may raise any exception
            raise DFlashError(
                f"the chat template refuses these messages ({first_line(error)}).",
                hint="check the roles, their order, and the tools",
            ) from error

    def check(self, think: bool | None, effort: str | None) -> None:
        """Raise UsageError for what the template does not support, as `switches` does."""
        self.switches(TemplateOptions(think, effort))

    def switches(self, options: TemplateOptions) -> dict[str, Any]:
        """The options as variables of this template. Raises UsageError for an unsupported one."""
        variables: dict[str, Any] = {}
        effort = options.reasoning_effort
        if options.think is not None:
            if self.think_switch is None:
                instead = (
                    f"set the effort instead, with --effort or /think: {choices_text(self.efforts)}"
                )
                raise UsageError(
                    "this target's chat template has no switch for thinking.",
                    hint=instead
                    if self.efforts
                    else "leave the switch out, or choose another target",
                )
            variables[self.think_switch] = options.think
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
                    hint=f"give {choices_text(self.efforts)}",
                )
            if options.think is False:
                raise UsageError(
                    "an effort of thinking was asked for, and no thinking.",
                    hint="ask for one of them",
                )
            variables[self.effort_switch] = effort
        return variables

    @cached_property
    def think_switch(self) -> str | None:
        """The template's variable that turns thinking on and off; None without one."""
        texts = {name: [self._try({name: to}) for to in (True, False)] for name in THINK_VARIABLES}
        return next((name for name, (on, off) in texts.items() if on != off), None)

    @cached_property
    def effort_switch(self) -> str | None:
        """The template's variable for the reasoning effort; None without one."""
        for name in EFFORT_VARIABLES:
            texts = {self._try({name: effort}) for effort in self._candidates}
            if len(texts - {None}) > 1:
                return name
        return None

    @cached_property
    def efforts(self) -> tuple[str, ...]:
        """The reasoning efforts that the template supports."""
        switch = self.effort_switch
        if switch is None:
            return ()
        return tuple(
            effort for effort in self._candidates if self._try({switch: effort}) is not None
        )

    @property
    def _candidates(self) -> list[str]:
        source = str(self._tokenizer.chat_template)
        return [
            effort
            for effort in EFFORTS
            if effort in COMMON_EFFORTS or f"'{effort}'" in source or f'"{effort}"' in source
        ]

    def _try(self, variables: dict[str, Any]) -> str | None:
        """A sample chat rendered with these variables; None if the template refuses them."""
        try:
            return self._render(SAMPLE_CHAT, True, variables)
        except DFlashError:
            raise
        except Exception:  # a template may raise any exception
            return None

    def _render(self, messages: Messages, opening: bool, variables: dict[str, Any]) -> str:
        if not self._tokenizer.has_chat_template:
            raise DFlashError(
                f"the tokenizer of '{self._name}' has no chat template.",
                hint="use --raw to send the text as it is",
            )
        # Not by mlx-lm's wrapper, which sets enable_thinking if it is not given.
        return self._tokenizer._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=opening, **variables
        )


def choices_text(choices: Sequence[str]) -> str:
    """Choices as text: a, b or c."""
    return " or ".join([", ".join(choices[:-1]), choices[-1]] if choices[1:] else choices)
