"""The Markdown that models write: CommonMark, tables and formulas; HTML is text, nothing vanishes.

Knows syntax only. Two rules keep the parts of an answer independent of what comes after them: there
are no link definitions, and a block of formulas ends at the first empty line.
"""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

MATH = re.compile(
    r"\$\$.{1,2000}?\$\$|\\\(.{1,2000}?\\\)|\\\[.{1,2000}?\\\]"
    r"|\$(?=[^\s$])(?:\\.|[^$\\`\n]){1,500}?(?<=\S)\$(?!\d)",
    re.DOTALL,
)
MATH_BLOCKS = {"$$": "$$", "\\[": "\\]"}  # line that opens one -> end of the line that closes it
ESCAPES = frozenset("*_`~#|<>!+-.\"'$&")  # the backslash before others stays: it may be a formula
CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)")
BAR = re.compile(r"(?<!\\)\|")
PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


def parser(*, blocks_only: bool = False) -> "MarkdownIt":
    """A parser; `blocks_only` leaves the text in the blocks unread."""
    from markdown_it import MarkdownIt

    found = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    found.disable(["reference", "html_block", "html_inline"])
    if blocks_only:
        found.core.ruler.disable(["inline", "text_join"])
    found.inline.ruler.at("escape", escape)
    found.inline.ruler.before("escape", "math", math)
    found.block.ruler.before(
        "fence", "math_block", math_block, {"alt": ["paragraph", "blockquote", "list"]}
    )
    return found


def parse(md: "MarkdownIt", text: str) -> list["Token"]:
    """Tokens of a text; what a table's rows have too much stays in their last cells."""
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
                lines[line] = fit_row(lines[line], columns)
    return md.parse("\n".join(lines))


def fit_row(line: str, columns: int) -> str:
    """A table's row with no more cells than columns: a bar in code is no border."""
    line = CODE_SPAN.sub(lambda span: BAR.sub(r"\\|", span.group()), line)
    bars = [bar.start() for bar in BAR.finditer(line)]
    bars = bars[1:] if line.lstrip(" \t>").startswith("|") else bars
    last = line.rstrip().endswith("|") and len(bars) >= columns
    for place in reversed(bars[columns - 1 : len(bars) - last]):
        line = line[:place] + "\\" + line[place:]
    return line


def language_of(info: str) -> str:
    """The language that a block of code names after its first marks."""
    return re.split(r"[\s,:{}]", info.strip().lstrip("{."))[0]


def math(state: "StateInline", silent: bool) -> bool:
    """A formula in a line: its stars and underscores are no emphasis."""
    if state.src[state.pos] not in "$\\":
        return False
    found = MATH.match(state.src, state.pos, state.posMax)
    if found is None:
        return False
    if not silent:
        state.pending += found.group()
    state.pos = found.end()
    return True


def escape(state: "StateInline", silent: bool) -> bool:
    """A backslash and a sign of Markdown's; before any other sign it is shown."""
    if state.src[state.pos] != "\\" or state.pos + 1 >= state.posMax:
        return False
    sign = state.src[state.pos + 1]
    if sign == "\n":
        if not silent:
            state.push("hardbreak", "br", 0)
    elif sign not in PUNCTUATION:
        return False
    elif not silent:
        state.pending += sign if sign in ESCAPES else "\\" + sign
    state.pos += 2
    return True


def math_block(state: "StateBlock", start: int, end: int, silent: bool) -> bool:
    """Lines between `$$` or `\\[ \\]`, each sign alone on its line."""
    if state.is_code_block(start):
        return False
    close = MATH_BLOCKS.get(line_of(state, start))
    if close is None:
        return False
    if silent:
        return True
    line = start + 1
    while line < end and not state.isEmpty(line) and state.sCount[line] >= state.blkIndent:
        line += 1
        if line_of(state, line - 1).endswith(close):
            break
    state.line = line
    token = state.push("math_block", "", 0)
    token.map = [start, line]
    token.content = state.getLines(start, line, state.sCount[start], False)
    return True


def line_of(state: "StateBlock", line: int) -> str:
    """A line without the space around it."""
    return state.src[state.bMarks[line] + state.tShift[line] : state.eMarks[line]].rstrip()
