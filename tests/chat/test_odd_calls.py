"""Calls that are not as their format wants them: each is read as it was meant, or stays text."""

import json
from typing import Any

import pytest
from call_families import TEXT, parser_of, tokenizer_of, tool

from dflash_mlx.chat.reasoning_parser import TagReasoningParser
from dflash_mlx.chat.tool_parser import call_finder

KEYS = {"path": TEXT, "text": TEXT, "lines": {"type": "integer"}}
TOOLS = [tool(name, KEYS) for name in ("write", "now")]
Calls = list[tuple[str, dict[str, Any]]]


def read(family: str, said: str, *, thinks: bool = False) -> tuple[str, str, Calls]:
    """The thinking, the text and the calls; the same for pieces of any size."""
    results = []
    for size in (1, 3, len(said)):
        splitter = TagReasoningParser(None, None)
        if thinks:
            finder = call_finder(tokenizer_of(family), TOOLS)
            splitter = TagReasoningParser("<think>", "</think>", find_call=finder)
        parser = parser_of(family, TOOLS)
        thinking, text, calls = "", "", []
        for begin in range(0, len(said) + size, size):
            is_last = begin >= len(said)
            end = splitter.finish("") if is_last else splitter.feed(0, said[begin : begin + size])
            found = parser.feed(end[1], final=is_last)
            thinking += end[0]
            text += found.text
            assert all(call.complete for call in found.calls)
            calls += [(call.name, json.loads(call.arguments)) for call in found.calls]
        results.append((thinking, text, calls))
    assert results[0] == results[1] == results[2]
    return results[0]


def coder(text: str) -> str:
    return (
        "<tool_call>\n<function=write>\n<parameter=path>\na.md\n</parameter>\n"
        f"<parameter=text>\n{text}\n</parameter>\n</function>\n</tool_call>"
    )


PATH = "<tool_call>\n<function=write>\n<parameter=path>\na.py\n"
END = "</parameter>\n</function>\n</tool_call>"
WRITTEN = ("write", {"path": "a.py"})
BOTH = ("write", {"path": "a.py", "text": "x = 1"})
NOW = "<tool_call>\n<function=now>\n</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("said", "wanted", "text"),
    [
        (f"{PATH}<parameter=text>\nx = 1\n{END}", [BOTH], ""),
        (f"{PATH}<parameter=text>\nx = 1\n</function>\n</tool_call>", [BOTH], ""),
        (f"{PATH}</function>\n</tool_call>\nOk.", [WRITTEN], "Ok."),
        (f"{PATH}</function>\n</tool_call>\n{PATH}{END}", [WRITTEN, WRITTEN], ""),
        (f"{PATH}</parameter>\n</tool_call>", [WRITTEN], ""),
        (f"{PATH}</parameter>\n</function>\n\nOk.", [WRITTEN], "Ok."),
        (f"{PATH}</parameter>\n{NOW}", [WRITTEN, ("now", {})], ""),
        (f"{PATH}</parameter>\n</function>\n{NOW}", [WRITTEN, ("now", {})], ""),
        (
            f"{PATH}</parameter>\n<parameter=lines>\n12345678901234567\n{END}",
            [("write", {"path": "a.py", "lines": 12345678901234567})],
            "",
        ),
    ],
)
def test_a_tag_that_the_model_dropped(said: str, wanted: Calls, text: str) -> None:
    """It swallows neither the next argument, nor the next call, nor the text after it."""
    found = read("qwen3_coder", said)
    assert (found[1].strip(), found[2]) == (text, wanted)


def hermes(arguments: str, name: str = "write") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ('{"text": "1\n2\t3"}', "1\n2\t3"),
        (r'{"text": "\d+ \\d \"q\" \u00e9"}', '\\d+ \\d "q" é'),
        (r'{"text": "C:\Users\x"}', r"C:\Users\x"),
        ('{"text": "</tool_call> is the end"}', "</tool_call> is the end"),
        (r'"{\"text\": \"a\"}"', "a"),
    ],
)
def test_nearly_json(arguments: str, value: str) -> None:
    assert read("json_tools", hermes(arguments)) == ("", "", [("write", {"text": value})])


@pytest.mark.parametrize(
    "arguments",
    [
        '{"text": "say "hi" there"}',
        '{"text": "a""b"}',
        '{"text": "a"',
        '{"lines": NaN}',
        "[1]",
        '"x"',
        '{"path": "a" "text": "b"}',
        '{"text": "a}',
    ],
)
@pytest.mark.parametrize(
    ("family", "form"),
    [
        ("json_tools", hermes("ARGUMENTS")),
        ("mistral", "[TOOL_CALLS]write[ARGS]ARGUMENTS"),
        (
            "kimi_k2",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.write:0"
            "<|tool_call_argument_begin|>ARGUMENTS<|tool_call_end|><|tool_calls_section_end|>",
        ),
    ],
)
def test_what_cannot_be_mended_stays_text(family: str, form: str, arguments: str) -> None:
    """A value would be guessed or cut."""
    said = form.replace("ARGUMENTS", arguments)
    _, text, calls = read(family, said)
    if family == "json_tools" and arguments == '{"text": "a"':
        assert calls == [("write", {"text": "a"})]  # the last bracket is that of the call
    else:
        assert (text, calls) == (said, [])


OBJECTS = '{"name": "write", "parameters": {"text": "a"}}', '{"name": "now", "arguments": {}}'


@pytest.mark.parametrize(
    "said",
    [
        f"<tool_call>\n{OBJECTS[0]}\n{OBJECTS[1]}\n</tool_call>",
        f"<tool_call>\n[{OBJECTS[0]}, {OBJECTS[1]}]\n</tool_call>",
        f"<tool_call>\n{OBJECTS[0]}}}\n</tool_call>\n<tool_call>{OBJECTS[1]}</tool_call>",
        f"{OBJECTS[0]}\n</tool_call>\n<tool_call>\n{OBJECTS[1]}\n</tool_call>",
        f"I look.\n\n{OBJECTS[0]}\n</tool_call>\n\n{OBJECTS[1]}\n</tool_call>",
        '<tool_call>\n{"arguments": {"text": "a"}, "name": "write"}\n{"name": "now"}\n</tool_call>',
    ],
)
def test_objects_as_no_template_writes_them(said: str) -> None:
    _, text, calls = read("json_tools", said)
    assert calls == [("write", {"text": "a"}), ("now", {})]
    assert text.strip() in ("", "I look.")


BARE = f"{PATH.removeprefix('<tool_call>').strip()}\n</parameter>\n</function>"


@pytest.mark.parametrize(
    ("family", "said", "count", "text"),
    [
        ("qwen3_coder", f"I look.\n\n{BARE}\n</tool_call>", 1, "I look."),
        ("qwen3_coder", f"{BARE}\n\nDone.", 1, "Done."),
        ("qwen3_coder", f"{BARE}\n{BARE}\n</tool_call>\nDone.", 2, "Done."),
        ("qwen3_coder", f"<tool_call> is a tag.\n<tool_call>{BARE}</tool_call>", 1, ""),
        (
            "minimax_m2",
            'So:\n<invoke name="write">\n<parameter name="path">a.py</parameter>\n</invoke>',
            1,
            "So:",
        ),
        ("glm47", "write\n<arg_key>path</arg_key><arg_value>a.py</arg_value></tool_call>", 1, ""),
    ],
)
def test_a_call_without_its_start(family: str, said: str, count: int, text: str) -> None:
    _, found, calls = read(family, said)
    assert calls == [WRITTEN] * count
    assert found.strip() == (text or found.strip())
    assert "</tool_call>" not in found


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("qwen3_coder", "A call is <function=nosuch>\n</function> in XML."),
        ("qwen3_coder", "Begin with\n\n<function=write> and go on."),
        ("qwen3_coder", BARE.replace("write", "nosuch")),
        ("qwen3_coder", "<tool_call>\n<function=write>\nwhat?\n</function>\n</tool_call> So."),
        ("glm47", "rewrite\n<arg_key>path</arg_key><arg_value>a.py</arg_value>"),
        ("glm47", "<tool_call>write the file, please</tool_call>"),
    ],
)
def test_prose_about_calls_stays_text(family: str, said: str) -> None:
    assert read(family, said) == ("", said, [])


@pytest.mark.parametrize("end", ["", "</think>", "\n</think>\n\nDone."])
@pytest.mark.parametrize("call", [BARE, f"{BARE}\n</tool_call>", f"<tool_call>{BARE}</tool_call>"])
def test_a_call_in_thinking(call: str, end: str) -> None:
    """It ends the thinking."""
    thinking, text, calls = read("qwen3_coder", f"<think>I need it.\n{call}{end}", thinks=True)
    assert (thinking, calls) == ("I need it.\n", [WRITTEN])
    assert text.strip() == ("Done." if "Done." in end else "")


@pytest.mark.parametrize(
    "thought",
    [
        "The tag <tool_call> is odd.",
        BARE.replace("write", "nosuch"),
        "<function=write> is for files.",
    ],
)
def test_thinking_about_calls(thought: str) -> None:
    said = f"<think>{thought}</think>Hi {coder('</think>')}"
    wanted = [("write", {"path": "a.md", "text": "</think>"})]
    thinking, text, calls = read("qwen3_coder", said, thinks=True)
    assert (thinking, text.strip(), calls) == (thought, "Hi", wanted)
    cut = f"a {PATH}"
    assert read("qwen3_coder", f"<think>{cut}</think>Hi", thinks=True) == (cut, "Hi", [])


def test_text_shows_as_soon_as_it_is_no_call() -> None:
    """Only what may still become a call waits."""
    parser = parser_of("qwen3_coder", TOOLS)
    assert parser.feed("a <function=wri").text == "a "
    assert parser.feed("te>").text == ""
    assert parser.feed("\n is").text == "<function=write>\n is"
    assert parser.feed(" <tool_call>").text == " "
    assert parser.feed(" i").text == "<tool_call> i"
    finder = call_finder(tokenizer_of("qwen3_coder"), TOOLS)
    splitter = TagReasoningParser("<think>", "</think>", find_call=finder)
    assert splitter.feed(0, "<think>a <tool_call>") == ("a ", "")
    assert splitter.feed(0, " i") == ("<tool_call> i", "")
