"""Chat templates of all families: their switches, what they refuse, tools, and history."""

from typing import Any

import pytest
import templates
import tiny
from mlx_lm.tokenizer_utils import TokenizerWrapper
from templates import template_of

from dflash_mlx.chat.template import Template
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.options import GenerationOptions

ASK = [{"role": "user", "content": "why?"}]


# Family: its switch for thinking, its efforts.
KNOWN = {
    "llama": (None, ()),
    "qwen": ("enable_thinking", ()),
    "glm": ("enable_thinking", ()),
    "kimi": ("thinking", ()),
    "minimax": (None, ()),
    "gemma": ("enable_thinking", ()),
    "gpt_oss": (None, ("low", "medium", "high")),
    "muse": (None, ("low", "medium", "high", "xhigh")),
    "both": ("enable_thinking", ("low", "medium", "high")),
}


@pytest.mark.parametrize("family", KNOWN)
def test_every_switch_is_heard_or_refused(family: str) -> None:
    """A switch changes the text, or is refused with what to do; none is silently left out."""
    template, (switch, efforts) = template_of(family), KNOWN[family]
    assert (template.think_switch, template.efforts) == KNOWN[family]
    default = template.write(ASK)
    for on in (True, False):
        options = GenerationOptions(think=on)
        if switch:
            assert template.write(ASK, options) != template.write(
                ASK, GenerationOptions(think=not on)
            )
            continue
        with pytest.raises(UsageError, match="no switch for thinking") as caught:
            template.write(ASK, options)
        assert ("low, medium" in caught.value.hint) == bool(efforts)
    for effort in ("low", "medium", "high"):
        options = GenerationOptions(reasoning_effort=effort)
        if efforts:
            assert effort in template.write(ASK, options)
            continue
        with pytest.raises(UsageError, match="has no reasoning effort") as caught:
            template.write(ASK, options)
        assert ("--think or --no-think" in caught.value.hint) == bool(switch)
    assert template.write(ASK) == default  # asking what it knows has changed nothing


@pytest.mark.parametrize("effort", ["xhigh", "hihg", "", "none"])
def test_efforts_are_checked(effort: str) -> None:
    """gpt-oss's template would write any word into the prompt."""
    with pytest.raises(UsageError, match=f"cannot be '{effort}'") as caught:
        template_of("gpt_oss").write(ASK, GenerationOptions(reasoning_effort=effort))
    assert caught.value.hint == "give low, medium or high"


def test_both_switches() -> None:
    """Each is told; an effort of no thinking is refused."""
    template = template_of("both")
    assert "low[" in template.write(ASK, GenerationOptions(think=True, reasoning_effort="low"))
    with pytest.raises(UsageError, match="needs thinking"):
        template.write(ASK, GenerationOptions(think=False, reasoning_effort="low"))


def test_the_default_is_the_templates() -> None:
    """mlx-lm's wrapper would turn thinking on: Gemma's is off where nothing is said."""
    tokenizer = templates.tokenizer_of("gemma")
    assert tokenizer.has_thinking
    text = Template(tokenizer, "gemma").write(ASK)
    assert text == "[user]why?<turn|>[model]\n<|channel>thought\n<channel|>"
    wrapped = tokenizer.apply_chat_template(ASK, tokenize=False, add_generation_prompt=True)
    assert wrapped != text


def test_a_renderer_in_python() -> None:
    """Kimi's tokenizer class writes its chats itself, with a default of its own."""
    tokenizer = templates.tokenizer_of("kimi")
    inner = type(tokenizer._tokenizer)

    class Kimi(inner):
        """As tokenization_kimi.py has it."""

        def apply_chat_template(
            self, conversation: Any, tools: Any = None, thinking: bool = True, **options: Any
        ) -> Any:
            return super().apply_chat_template(
                conversation, tools=tools, thinking=thinking, **options
            )

    tokenizer._tokenizer.__class__ = Kimi
    template = Template(TokenizerWrapper(tokenizer._tokenizer), "kimi")
    assert template.think_switch == "thinking"
    assert template.write(ASK).endswith("<think>")
    assert template.write(ASK, GenerationOptions(think=False)).endswith("</think>")


def test_what_a_template_refuses() -> None:
    """Its own words are passed on; a tokenizer without a template is told apart."""
    template = template_of("gpt_oss")
    said = {"role": "assistant", "content": "<|channel|>final<|message|>yes"}
    with pytest.raises(DFlashError, match=r"refuses these messages \(tags in the content\)"):
        template.write([*ASK, said, *ASK])
    with pytest.raises(DFlashError, match="refuses these messages") as caught:
        template.write(ASK, GenerationOptions(tools=["add"]))  # type: ignore[list-item]
    assert "tools" in caught.value.hint
    with pytest.raises(DFlashError, match="begin with the user"):
        template_of("both").write([{"role": "assistant", "content": "yes"}, *ASK])
    bare = Template(tiny.byte_tokenizer(), "bare")
    for options in (
        GenerationOptions(),
        GenerationOptions(think=True),
        GenerationOptions(reasoning_effort="low"),
    ):
        with pytest.raises(DFlashError, match="'bare' has no chat template"):
            bare.write(ASK, options)
