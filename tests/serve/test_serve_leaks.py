"""No thinking and no text of a call shows in an answer, whole and streamed, in each API."""

import pytest
from every_api import OLLAMA, PATHS, TOOLS, Answer
from every_api import ask as ask_api
from scripted_server import CALL, HI, TEMPLATE, TOLD, pair_saying, server_of
from scripted_server import tool_tokenizer as tokenizer_of

from dflash_mlx.serve.app import Server

OPENS = TEMPLATE.replace("[assistant]", "[assistant]<think>")
IN_CALL = "the answer ended inside"
# What the model says, and at how many tokens or which stop string it is cut.
CALL_CASES: dict[str, tuple[str, int | None, str | None]] = {
    "the length, in the tag's first line": ("Look.<tool_call>\n", 7, None),
    "the length, before the name": (f"Look.{CALL}", 20, None),
    "the length, in the arguments": (f"Look.{CALL}", 45, None),
    "the model, after the tag": ("Look.<tool_call>", None, None),
    "the model, in the arguments": (
        'Look.<tool_call>{"name": "add", "arguments": {"a"',
        None,
        None,
    ),
    "a stop string, in the tag": (f"Look.{CALL}", None, "tool_c"),
    "a stop string, before the name": (f"Look.{CALL}", None, "name"),
    "a stop string, in the arguments": (f"Look.{CALL}", None, '"b"'),
}


def ask(server: Server, path: str, stream: bool, most: int | None, stop: str | None) -> Answer:
    """Ask with a tool; `most` tokens, or up to a stop string."""
    return ask_api(server, path, stream=stream, limit=most or 300, stop=stop, tools=TOOLS[path])


CUT: dict[str, str] = dict(
    zip(PATHS, ("length", "incomplete", "max_tokens", "length"), strict=True)
)
TOOL_REASONS = ("tool_calls", "tool_use")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", CALL_CASES)
def test_an_answer_that_ends_inside_a_call(path: str, case: str) -> None:
    """Its text is what came before; it never claims that the call is complete."""
    said, most, stop = CALL_CASES[case]
    server = server_of(pair_saying(said, HI, tools=TOLD, strict=False))
    for stream in (False, True):
        found = ask(server, path, stream, most, stop)
        assert (found.text.strip(), found.thinking) == ("Look.", "")
        assert found.reason not in TOOL_REASONS
        assert (found.reason == CUT[path]) == (most is not None)
        assert found.incomplete.startswith(IN_CALL)
        begun = ["add"] if "arguments" in case else []
        if path == OLLAMA:  # which knows whole calls only
            assert found.incomplete.endswith("of add") == bool(begun)
            begun = []
        assert found.calls == begun


@pytest.mark.parametrize("path", PATHS)
def test_a_stop_string_after_a_call(path: str) -> None:
    """The call counts, as older agents stop at its end tag."""
    server = server_of(pair_saying(f"Look.{CALL}", HI, tools=TOLD))
    for stream in (False, True):
        found = ask(server, path, stream, None, "</tool_call>")
        assert (found.text.strip(), found.calls, found.incomplete) == ("Look.", ["add"], "")
        assert found.reason in (*TOOL_REASONS, "completed", "stop")


THINKING_CASES: dict[str, tuple[str, str, int | None, str | None, str, str]] = {
    # Template, what the model says, its cut, the text and the thinking.
    "opened by the template": (OPENS, "hm</think>yes", None, None, "yes", "hm"),
    "opened by the template and by the model": (
        OPENS, "<think>hm</think>yes", None, None, "yes", "hm",
    ),
    "opened by the template, cut": (OPENS, "hm</think>yes", 2, None, "", "hm"),
    "opened by the template, ended there": (OPENS, "hm", None, None, "", "hm"),
    "cut at the tag": (TEMPLATE, "<think>hm</think>yes", 1, None, "", ""),
    "a stop string in the thinking": (TEMPLATE, "<think>a, b</think>yes", None, "b", "yes", "a, b"),
    "a stop string in the tag": (TEMPLATE, "<think>hm</think>yes", None, "think", "yes", "hm"),
    "a stop string beside the tag": (TEMPLATE, "<think>hm</think>\n\nyes", None, "\n", "", "hm"),
    "a tag too many": (TEMPLATE, "</think>yes", None, None, "yes", ""),
}  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", THINKING_CASES)
def test_thinking_with_odd_ends(path: str, case: str) -> None:
    template, said, most, stop, text, thinking = THINKING_CASES[case]
    pair = pair_saying(said, HI, tokenizer_of(template), tools=TOLD, strict=False)
    server = server_of(pair)
    for stream in (False, True):
        found = ask(server, path, stream, most, stop)
        assert (found.text.strip(), found.thinking, found.calls) == (text, thinking, [])
        assert not found.incomplete
