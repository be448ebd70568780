"""How each family's calls look when they are forced: text, with places for names and values.

Read off mlx-lm's parsers and the families' chat templates. NAME is the tool's name, KEY an
argument's. Marks that are tokens of their own are found in the text by whoever uses it.
"""

import re
from dataclasses import dataclass

BREAK = "\0"  # a line break that may be there
NUMBER = "\1"  # a few digits


@dataclass(frozen=True, slots=True)
class Tags:
    """Arguments that are written one by one, each between `opens` and `closes`.

    quote: stands around a string that is written as plain text; None where strings are JSON. reads_
    null: the bare text null is null. never: what plain text must not have in it, for the parser.
    keys: an expression for arguments' names. nested: "json" where objects and arrays are JSON,
    "own" where they are written as arguments are, "" where the parser cannot read them.
    """

    opens: str
    closes: str
    never: tuple[str, ...] = ()
    quote: str | None = ""
    between: str = ""
    reads_null: bool = True
    nested: str = "json"
    keys: str = r"[^\s<>\"'=]+"


@dataclass(frozen=True, slots=True)
class Shape:
    """A family's calls: `opens`, calls with `between` among them, `closes`.

    before, after: what stands around one call's arguments; `instead` may stand for `before`.
    `between` is None where an answer has one call at most. tags: None where arguments are one JSON
    object. names: an expression for the names of tools.
    """

    before: str
    after: str
    opens: str = ""
    closes: str = ""
    between: str | None = ""
    tags: Tags | None = None
    names: str = ".+"
    instead: str = ""


JSON_CALL = '{"name": "NAME", "arguments": '
GLM = Tags(
    f"<arg_key>KEY</arg_key>{BREAK}<arg_value>",
    f"</arg_value>{BREAK}",
    ("</arg_value>", "</tool_call>"),
    reads_null=False,
)
GLM_CALLS = Shape(f"<tool_call>NAME{BREAK}", "</tool_call>", between=BREAK, tags=GLM)
SHAPES = {
    "json_tools": Shape(f"<tool_call>\n{JSON_CALL}", "}\n</tool_call>", between="\n"),
    "mistral": Shape("[TOOL_CALLS]NAME[ARGS]", "", names=r"[\w\-]+"),
    "mistral_list": Shape(JSON_CALL, "}", "[TOOL_CALLS][", "]", ", "),
    "kimi_k2": Shape(
        f"<|tool_call_begin|>functions.NAME:{NUMBER}<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
    ),
    "kimi_k3": Shape(
        f'<|open|>call tool="NAME" index="{NUMBER}"<|sep|><|open|>json type="object"<|sep|>',
        "<|close|>json<|sep|><|close|>call<|sep|>",
        "<|open|>tools<|sep|>",
        "<|close|>tools<|sep|>",
    ),
    "harmony": Shape(
        "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>",
        "",
        between=None,
        instead=" to=functions.NAME<|channel|>commentary json<|message|>",  # as in its template
    ),
    "qwen3_coder": Shape(
        "<tool_call>\n<function=NAME>\n",
        "</function>\n</tool_call>",
        between="\n",
        tags=Tags(
            "<parameter=KEY>\n",
            "\n</parameter>\n",
            ("</parameter>", "</function>", "</tool_call>"),
        ),
    ),
    "glm47": GLM_CALLS,
    "laguna": GLM_CALLS,
    "minimax_m2": Shape(
        '<invoke name="NAME">\n',
        "</invoke>\n",
        "<minimax:tool_call>\n",
        "</minimax:tool_call>",
        tags=Tags(
            '<parameter name="KEY">',
            "</parameter>\n",
            ("</parameter>", "</invoke>", "</minimax:tool_call>"),
        ),
    ),
    "minicpm5": Shape(
        '<function name="NAME">',
        "</function>",
        between=BREAK,
        tags=Tags(
            '<param name="KEY">', "</param>", ("</param>", "</function>", "<![CDATA["), nested=""
        ),
    ),
    "pythonic": Shape(
        "NAME(",
        ")",
        "<|tool_call_start|>[",
        "]<|tool_call_end|>",
        ", ",
        Tags("KEY=", "", quote=None, between=", ", keys=r"[^\W\d]\w*"),
        names=r"[^\W\d]\w*(\.[^\W\d]\w*)*",
    ),
    "gemma4": Shape(
        "<|tool_call>call:NAME{",
        "}<tool_call|>",
        tags=Tags("KEY:", "", ('<|"|>', "<tool_call|>"), '<|"|>', ",", nested="own", keys=r"\w+"),
        names=r"[\w\-]+",
    ),
    "function_gemma": Shape(
        "<start_function_call>call:NAME{",
        "}<end_function_call>",
        tags=Tags(
            "KEY:",
            "",
            ("<escape>", "}", "<end_function_call>"),
            "<escape>",
            ",",
            nested="",
            keys=r"\w+",
        ),
        names=r"\w+",
    ),
}
CODES = re.compile(f"([{BREAK}{NUMBER}])")
