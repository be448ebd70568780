"""Markdown rules for answers of models: CommonMark, tables and formulas; HTML is plain text.

Knows syntax only. Two rules make each part of an answer independent of later text: there are no
link definitions, and a formula block ends at the first empty line.
"""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

INLINE_MATH = re.compile(
    r"\$\$.{1,2000}?\$\$|\\\(.{1,2000}?\\\)|\\\[.{1,2000}?\\\]"
    r"|\$(?=[^\s$])(?:\\.|[^$\\`\n]){1,500}?(?<=\S)\$(?!\d)",
    re.DOTALL,
)
MATH_DELIMITERS = {"$$": "$$", "\\[": "\\]"}  # opening line -> end of the closing line
ESCAPABLE = frozenset("*_`~#|<>!+-.\"'$&")  # a backslash before others may be a formula
CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)")
CELL_BORDER = re.compile(r"(?<!\\)\|")
PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


def make_parser(*, blocks_only: bool = False) -> "MarkdownIt":
    """A parser; `blocks_only` does not parse inline text."""
    from markdown_it import MarkdownIt

    md = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    md.disable(["reference", "html_block", "html_inline"])
    if blocks_only:
        md.core.ruler.disable(["inline", "text_join"])
    md.inline.ruler.at("escape", escape_rule)
    md.inline.ruler.before("escape", "math", inline_math_rule)
    md.block.ruler.before(
        "fence", "math_block", math_block_rule, {"alt": ["paragraph", "blockquote", "list"]}
    )
    return md


def parse_markdown(md: "MarkdownIt", text: str) -> list["Token"]:
    """Tokens of a text; surplus cells of a table row are joined into its last cell."""
    tokens = md.parse(text)
    if not any(token.type == "tbody_open" for token in tokens):
        return tokens
    lines = text.split("\n")
    columns = 0
    for token in tokens:
        if token.type == "table_open":
            columns = 0
        elif token.type == "th_open":
            columns += 1
        elif token.type == "tbody_open" and token.map:
            for line in range(*token.map):
                lines[line] = limit_cells(lines[line], columns)
    return md.parse("\n".join(lines))


def limit_cells(line: str, columns: int) -> str:
    """Escape the surplus borders of a table row; a bar inside code is not a border."""
    line = CODE_SPAN.sub(lambda span: CELL_BORDER.sub(r"\\|", span.group()), line)
    bars = [bar.start() for bar in CELL_BORDER.finditer(line)]
    bars = bars[1:] if line.lstrip(" \t>").startswith("|") else bars
    closed = line.rstrip().endswith("|") and len(bars) >= columns
    for position in reversed(bars[columns - 1 : len(bars) - closed]):
        line = line[:position] + "\\" + line[position:]
    return line


def fence_language(info: str) -> str:
    """The language named in the info string of a code fence."""
    return re.split(r"[\s,:{}]", info.strip().lstrip("{."))[0]


def inline_math_rule(state: "StateInline", silent: bool) -> bool:
    """Inline rule: a formula is plain text, so its stars and underscores are not emphasis."""
    if state.src[state.pos] not in "$\\":
        return False
    match = INLINE_MATH.match(state.src, state.pos, state.posMax)
    if match is None:
        return False
    if not silent:
        state.pending += match.group()
    state.pos = match.end()
    return True


def escape_rule(state: "StateInline", silent: bool) -> bool:
    """Inline rule: a backslash escapes Markdown characters only; elsewhere it stays visible."""
    if state.src[state.pos] != "\\" or state.pos + 1 >= state.posMax:
        return False
    character = state.src[state.pos + 1]
    if character == "\n":
        if not silent:
            state.push("hardbreak", "br", 0)
    elif character not in PUNCTUATION:
        return False
    elif not silent:
        state.pending += character if character in ESCAPABLE else "\\" + character
    state.pos += 2
    return True


def math_block_rule(state: "StateBlock", start: int, end: int, silent: bool) -> bool:
    """Block rule: lines between `$$` or `\\[ \\]`, each delimiter alone on its line."""
    if state.is_code_block(start):
        return False
    close = MATH_DELIMITERS.get(stripped_line(state, start))
    if close is None:
        return False
    if silent:
        return True
    line = start + 1
    while line < end and not state.isEmpty(line) and state.sCount[line] >= state.blkIndent:
        line += 1
        if stripped_line(state, line - 1).endswith(close):
            break
    state.line = line
    token = state.push("math_block", "", 0)
    token.map = [start, line]
    token.content = state.getLines(start, line, state.sCount[start], False)
    return True


def stripped_line(state: "StateBlock", line: int) -> str:
    """A line without surrounding whitespace."""
    return state.src[state.bMarks[line] + state.tShift[line] : state.eMarks[line]].rstrip()
