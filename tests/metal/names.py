"""The names that a kernel's text declares at global scope, where `using namespace metal` holds."""

import re

from .source import Token, tokens

KINDS = {"struct", "class", "union", "enum", "namespace"}
MACRO = re.compile(r"#\s*define\s+(\w+)")


def global_names(text: str) -> list[str]:
    """Macros, types, functions and variables, in the text's order; no parameters of templates."""
    names: list[str] = []
    statement: list[Token] = []
    depth = 0
    for token in tokens(text):
        if token.kind == "space":
            names += MACRO.findall(token.text)
            continue
        if depth == 0 and token.text not in "{}":
            statement.append(token)
        if depth == 0 and token.text in "{;":
            names += _declared(_without_template([part.text for part in statement]))
            statement = []
        depth += {"{": 1, "}": -1}.get(token.text, 0)
    return names


def _without_template(words: list[str]) -> list[str]:
    """A declaration without `template <...>` before it."""
    while words[:1] == ["template"]:
        depth = 0
        for at, word in enumerate(words):
            depth += {"<": 1, ">": -1}.get(word, 0)
            if word == ">" and depth == 0:
                words = words[at + 1 :]
                break
    return words


def _declared(words: list[str]) -> list[str]:
    """The name that a declaration up to `{` or `;` declares."""
    kinds = [at for at, word in enumerate(words) if word in KINDS]
    if kinds and "(" not in words:
        return words[kinds[-1] + 1 : kinds[-1] + 2]
    if words[:1] == ["using"]:
        return words[1:2] if "=" in words else []
    ends = [at for at, word in enumerate(words) if word in ("(", "=", "[", ";")]
    return [words[ends[0] - 1]] if ends and ends[0] else []
