"""The chat template of a tokenizer: rendering of messages, and the options that it supports.

The supported options are found by rendering with them, not by the name of the model.
"""

import re
from collections.abc import Sequence
from functools import cached_property
from inspect import signature
from itertools import chain
from secrets import token_hex
from typing import Any

from jinja2 import Environment, TemplateError
from jinja2.meta import find_undeclared_variables
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load_tokenizer as load_mlx_tokenizer

from dflash_mlx.errors import DFlashError, UsageError, first_line
from dflash_mlx.files.checkpoint import TEXTS, Checkpoint, check_file
from dflash_mlx.files.folder import matching, readable
from dflash_mlx.options import EFFORTS, GenerationOptions

from .messages import SYSTEM, Messages, accepted_forms, is_begun
from .reasoning_parser import end_of_turn_ids

# Template variables: Qwen, GLM, Gemma; Kimi, DeepSeek.
THINK_VARIABLES = ("enable_thinking", "thinking")
# Template variables: gpt-oss; Muse.
EFFORT_VARIABLES = ("reasoning_effort", "reasoning_strength")
# Names in templates that stand for other things than switches.
OWN_NAMES = frozenset(("messages", "raise_exception", "strftime_now"))
GENERATION = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")  # tags for training, of transformers
COMMON_EFFORTS = ("low", "medium", "high")  # others are tried if the template mentions them
SAMPLE_CHAT: Messages = [{"role": "user", "content": "?"}]
TEXT_ENDS = "\ue000 the text ends here \ue000"  # marks where an answer goes on
SAID, THOUGHT = "said so", "thought so"  # no template has these texts
SAMPLE_ANSWER = {"role": "assistant", "content": SAID}
SAMPLE_THINKING = {**SAMPLE_ANSWER, "reasoning_content": THOUGHT, "thinking": THOUGHT}
SAMPLE_TOOL = {
    "type": "function",
    "function": {"name": "probe", "description": "?", "parameters": {}},
}


DEFAULTS = GenerationOptions()
APART = f"\ufdd0{token_hex(8)}\ufdd1"  # where a text is split to be encoded; no message can know it
CONTROL = re.compile("<[|\uff5c].*[|\uff5c]>")  # DeepSeek's have wide bars


class Template:
    """The chat template of one tokenizer; `name` is the model's, for error messages."""

    def __init__(self, tokenizer: TokenizerWrapper, name: str):
        self._tokenizer = tokenizer
        self._name = name

    def write(
        self,
        messages: Messages,
        options: GenerationOptions = DEFAULTS,
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """Render a chat as text; with `add_generation_prompt` the generation prompt is added.

        With it, a chat whose last message is the assistant's ends after the text of that message.

        The messages are passed to the template as they are, with tool calls and results; only if
        it refuses them, in the first of `accepted_forms` that it does not. Raises UsageError for an
        option that the template does not support, DFlashError if there is no template or it refuses
        all forms.
        """
        variables = self.switches(options)
        messages = [self._untrusted_as_text(message) for message in messages]
        goes_on = add_generation_prompt and is_begun(messages)
        if goes_on:
            messages = with_end_marked(messages)
        refusal: Exception | None = None
        for form in accepted_forms(messages):
            try:
                text = self._render(form, add_generation_prompt and not goes_on, variables)
                if goes_on and TEXT_ENDS not in text:
                    raise DFlashError(
                        "this chat template does not write the last answer, to go on from it.",
                        hint="end with the user's message",
                    )
                return text.rpartition(TEXT_ENDS)[0] if goes_on else text
            except DFlashError:
                raise
            except Exception as error:  # a template may raise any exception
                refusal = error
        assert refusal is not None
        raise DFlashError(
            f"the chat template refuses these messages ({first_line(refusal)}).",
            hint="check the roles, their order, and the tools",
        ) from refusal

    def encode(self, text: str) -> list[int]:
        """The ids of a text as `write` returns it, which has its special tokens already."""
        pieces = [
            self._tokenizer.encode(piece, add_special_tokens=False) for piece in text.split(APART)
        ]
        return [*chain.from_iterable(pieces)]

    def _untrusted_as_text(self, message: dict[str, Any]) -> dict[str, Any]:
        """A message of a user or a tool, whose control tokens are taken apart: they are text."""
        content = message.get("content")
        if message.get("role") in (*SYSTEM, "assistant") or not isinstance(content, str):
            return message
        split = self._control_tokens.sub(lambda found: found[0][0] + APART + found[0][1:], content)
        return {**message, "content": split}

    @cached_property
    def _control_tokens(self) -> re.Pattern[str]:
        """The added tokens that are no text: special ones, and those that look like <|this|>."""
        added = self._tokenizer.added_tokens_decoder.values()
        names = [token.content for token in added if token.special or CONTROL.match(token.content)]
        names = sorted(filter(str.strip, names), key=len, reverse=True)
        if not names:
            return re.compile("(?!)")
        first = "".join({re.escape(name[0]) for name in names})  # some have thousands of names
        return re.compile(f"(?=[{first}])(?:{'|'.join(map(re.escape, names))})")

    def check(self, think: bool | None, effort: str | None) -> None:
        self.switches(GenerationOptions(think=think, reasoning_effort=effort))

    def switches(self, options: GenerationOptions) -> dict[str, Any]:
        """The options as variables of this template. Raises UsageError for an unsupported one."""
        variables = dict(options.chat_template_kwargs or {})
        if unread := variables.keys() - self.variables:
            raise UsageError(
                f"this target's chat template reads no '{min(unread):.40}'.",
                hint=f"leave it out; it reads {', '.join(sorted(self.variables)) or 'no others'}",
            )
        effort = options.reasoning_effort
        if options.think is not None:
            if self.think_switch is None:
                hint = "leave the switch out, or choose another target"
                if self.efforts:
                    efforts = choices_text(self.efforts)
                    hint = f"set the effort instead, with --effort or /think: {efforts}"
                raise UsageError(
                    "this target's chat template has no switch for thinking.", hint=hint
                )
            variables[self.think_switch] = options.think
        if effort is not None:
            if self.effort_switch is None:
                raise UsageError(
                    "this target's chat template has no reasoning effort.",
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
                    "a reasoning effort needs thinking, which is switched off.",
                    hint="ask for one of them",
                )
            variables[self.effort_switch] = effort
        if options.tools:
            if not self.shows_tools:
                raise UsageError(
                    "this model does not call tools: its chat template has no place for them.",
                    hint="leave tools out, or choose a model that calls tools",
                )
            variables["tools"] = list(options.tools)
        return variables

    @cached_property
    def variables(self) -> frozenset[str]:
        """The variables that the template reads, beside the messages and other arguments."""
        source = GENERATION.sub("", str(self._tokenizer.chat_template))
        try:
            tree = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(source)
            names = find_undeclared_variables(tree)
        except TemplateError:  # of a tag that only transformers knows
            names = set(re.findall(r"[^\W\d]\w*", source))
        arguments = signature(self._tokenizer._tokenizer.apply_chat_template).parameters
        return frozenset(names - OWN_NAMES - (arguments.keys() - {"documents"}))

    @cached_property
    def shows_tools(self) -> bool:
        return self._try({"tools": [SAMPLE_TOOL]}) not in (None, self._try({}))

    @cached_property
    def think_switch(self) -> str | None:
        """The template's variable that turns thinking on and off; None without one."""
        texts = {name: [self._try({name: to}) for to in (True, False)] for name in THINK_VARIABLES}
        return next((name for name, (on, off) in texts.items() if on != off), None)

    @property
    def thinks(self) -> bool:
        """Whether the model can think: by a switch, by an effort, or always."""
        switched = self.think_switch is not None or self.effort_switch is not None
        return switched or bool(self._tokenizer.has_thinking)

    @cached_property
    def effort_switch(self) -> str | None:
        for name in EFFORT_VARIABLES:
            texts = {self._try({name: effort}) for effort in self._candidates}
            if len(texts - {None}) > 1:
                return name
        return None

    @cached_property
    def efforts(self) -> tuple[str, ...]:
        switch = self.effort_switch
        if switch is None:
            return ()
        return tuple(
            effort for effort in self._candidates if self._try({switch: effort}) is not None
        )

    def end_of_turn(self) -> str:
        """The added token that the template writes right after an assistant's text; or empty.

        The same token follows the text at the end of a chat and before the next question, and only
        white space or more added tokens come after it. So it is neither the start of a message nor
        of a tag such as <|close|>response. A token that also follows thinking only ends a part.
        """
        if not self._tokenizer.has_chat_template:
            return ""
        added = [token.content for token in self._tokenizer.added_tokens_decoder.values()]
        names = tuple(name for name in added if name.strip())
        for answer in (SAMPLE_THINKING, SAMPLE_ANSWER):
            chat = [*SAMPLE_CHAT, answer]
            last = self._try({}, chat, add_generation_prompt=False)
            earlier = self._try({}, [*chat, *SAMPLE_CHAT], add_generation_prompt=False)
            if last is None or earlier is None or SAID not in last:
                continue
            before, _, after = last.rpartition(SAID)
            token = max((name for name in names if after.startswith(name)), key=len, default="")
            rest = after.removeprefix(token)
            ends = earlier.rpartition(SAID)[2].startswith(token)
            if ends and (not rest or rest[0].isspace() or rest.startswith(names)):
                return "" if token in before.partition(THOUGHT)[2] else token
            return ""
        return ""

    @property
    def _candidates(self) -> list[str]:
        source = str(self._tokenizer.chat_template)
        return [
            effort
            for effort in EFFORTS
            if effort in COMMON_EFFORTS or f"'{effort}'" in source or f'"{effort}"' in source
        ]

    def _try(
        self,
        variables: dict[str, Any],
        messages: Messages = SAMPLE_CHAT,
        *,
        add_generation_prompt: bool = True,
    ) -> str | None:
        """A sample chat rendered with these variables; None if the template refuses them."""
        try:
            return self._render(messages, add_generation_prompt, variables)
        except DFlashError:
            raise
        except Exception:  # a template may raise any exception
            return None

    def _render(
        self, messages: Messages, add_generation_prompt: bool, variables: dict[str, Any]
    ) -> str:
        if not self._tokenizer.has_chat_template:
            raise DFlashError(
                f"the tokenizer of '{self._name}' has no chat template.",
                hint="use --raw to send the text as it is",
            )
        # Not by mlx-lm's wrapper, which sets enable_thinking if it is not given.
        return self._tokenizer._tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            **variables,
        )


def with_end_marked(messages: Messages) -> Messages:
    """The messages with TEXT_ENDS after the last text. Raises UsageError for a last call."""
    *earlier, last = messages
    if last.get("tool_calls"):
        raise UsageError(
            "the last message calls tools, and their results are missing.",
            hint="send the results, or end with the user's message",
        )
    return [*earlier, {**last, "content": (last.get("content") or "") + TEXT_ENDS}]


def choices_text(choices: Sequence[str]) -> str:
    if len(choices) < 2:
        return "".join(choices)
    return f"{', '.join(choices[:-1])} or {choices[-1]}"


# Loading of tokenizers


def load_tokenizer(checkpoint: Checkpoint, *, trust_remote_code: bool = False) -> TokenizerWrapper:
    """Load the tokenizer of a model, with all its end-of-sequence tokens.

    These are the ones that its files name, and the one after an assistant's message in its chat
    template, which the configs of some models leave out. With `trust_remote_code` the model's
    Python files for its tokenizer are run. Raises DFlashError if the tokenizer cannot be loaded, or
    not without these files.
    """
    path = checkpoint.path
    if not checkpoint.has_tokenizer:  # transformers would guess
        raise DFlashError(f"there is no tokenizer in '{path}'.", hint="download the model again")
    for file in matching(path):
        if file.suffix in TEXTS:
            check_file(file)
    code = [] if trust_remote_code else checkpoint.tokenizer_code
    if code and not (path / "tokenizer.json").exists():
        raise untrusted_code(checkpoint, code)  # transformers may fall back to a wrong tokenizer
    stops = eos_token_ids_of(checkpoint) or None
    # Without `trust_remote_code` transformers asks on the terminal.
    settings: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if template := checkpoint.processor_template:
        settings["chat_template"] = template
    try:
        with readable(path) as folder:
            tokenizer = load_mlx_tokenizer(folder, settings, eos_token_ids=stops)
    except Exception as error:  # transformers and tokenizers raise many types
        if code:
            raise untrusted_code(checkpoint, code) from error
        raise DFlashError(
            f"the tokenizer in '{path}' cannot be loaded ({first_line(error)}).",
            hint="install the packages that it names into the environment of dflash"
            if isinstance(error, ImportError)
            else "check that the folder holds a whole mlx-lm or Hugging Face model",
        ) from error
    end = Template(tokenizer, checkpoint.name).end_of_turn()
    if end and not end_of_turn_ids(tokenizer):  # an answer of several messages has its own ends
        tokenizer.add_eos_token(end)
    return tokenizer


def untrusted_code(checkpoint: Checkpoint, code: list[str]) -> DFlashError:
    return DFlashError(
        f"the tokenizer of '{checkpoint.path.name}' is Python code of its own ({', '.join(code)}).",
        hint="read that code, then let it run with --trust-remote-code "
        "(trust_remote_code=True in Python)",
    )


def eos_token_ids_of(checkpoint: Checkpoint) -> list[int]:
    """The sorted `eos_token_id`s of config.json, its text_config, and generation_config.json.

    mlx-lm reads only one of these. Raises DFlashError for a damaged file.
    """
    ids: set[int] = set()
    for name, settings in (
        ("config.json", checkpoint.config),
        ("config.json", checkpoint.config.get("text_config")),
        ("generation_config.json", checkpoint.generation_config),
    ):
        value = settings.get("eos_token_id") if isinstance(settings, dict) else None
        listed = value if isinstance(value, list) else [] if value is None else [value]
        if any(type(number) is not int for number in listed):
            raise DFlashError(
                f"the {name} of '{checkpoint.path.name}' has a wrong 'eos_token_id: {value}'.",
                hint="give it a token id or a list of them, or download the model again",
            )
        ids.update(listed)
    return sorted(ids)
