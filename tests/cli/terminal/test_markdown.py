"""Markdown taken apart while it streams, and how its pieces look."""

import random
import re
from importlib import import_module

import pytest

markdown, render, passes = (
    import_module(f"dflash_mlx.cli.{name}")
    for name in ("terminal.markdown", "terminal.renderer", "passes")
)
Fragment = markdown.Fragment

# Lines that begin, go on with, end or only look like every kind of block.
LINES = [
    *["", "", "text", "more *text* here", "- a", "- b", "  - n", "    - deep", "* star", "+ p"],
    *["1. one", "2. two", "10) x", "  cont", "    four", "\ttab", "> q", ">", "> - ql", "```"],
    *["```py", "~~~", "  ```", "   code", "# h", "## h2 #", "===", "---", "***", "- - -", "-"],
    *["| a | b |", "|---|---|", "| 1 | 2 | 3", "a | b", "--- | ---", "$$", "\\[", "\\]", "<div>"],
    *["</div>", "<!-- c -->", "[x]: http://y", "[x] `c", "\\", "1.", "   - i3", "    1. sub"],
    *["     lazy", "=", "`````", "你好 世界", "hard  ", "line\\", "  > q2", " ", "- ```", "  ~~~"],
    *[" 1. s1", "+", "- # hh", "- > bq", "- | a | b |", "  |---|---|", "  | 1 | 2 |"],
]


def random_text(rng):
    return "\n".join(rng.choice(LINES) for _ in range(rng.randint(1, 25)))


def fragments_of(text, size=None, *, look=False, stream=markdown.MarkdownStream):
    """The pieces when the text comes `size` characters at a time; `look` at the tail in between."""
    found, source = [], stream()
    for start in range(0, len(text), size or len(text) or 1):
        found += source.feed(text[start : start + (size or len(text))])
        if look:
            source.tail()
    return found + source.finish()


def shown(text, width=60, **options):
    return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in styled(text, width, **options)]


def styled(text, width=60, **options):
    return render.Renderer(**options).lines(fragments_of(text), width)


def kinds(tokens):
    """Top-level blocks in order, items in place of lists, without empty blocks of code."""
    found = []
    for token in tokens:
        if token.type == "list_item_open" and token.level == 1:
            found.append("item")
        elif token.level or token.nesting < 0 or token.type in markdown.LIST_TYPES:
            continue
        elif token.type != "fence" or token.content.strip():
            found.append(token.type)
    return found


@pytest.mark.parametrize("seed", range(150))
def test_pieces_do_not_depend_on_how_the_text_was_cut(seed):
    """A fragment that a later word could change would be wrong on the screen for ever."""
    text = random_text(random.Random(seed))
    whole = fragments_of(text)
    for size in (1, 3, 12):
        assert fragments_of(text, size, look=size == 3) == whole


@pytest.mark.parametrize("seed", range(150))
def test_pieces_are_the_blocks_of_the_whole_text(seed):
    """Each by itself reads as it does in the whole, and no line but a fence is left out."""
    text = random_text(random.Random(seed))
    parser = markdown.make_parser(blocks_only=True)
    found, lines = [], []
    for fragment in fragments_of(text):
        lines += [line.strip() for line in fragment.source.split("\n") if line.strip()]
        if fragment.kind == "block":
            found += kinds(parser.parse(fragment.source))
        elif fragment.first:
            found.append("fence")
    assert found == kinds(parser.parse(text))
    left = iter([*lines, None])
    following = next(left)
    for line in filter(None, (line.strip() for line in text.split("\n"))):
        if line == following:
            following = next(left)
        else:
            assert re.match("[`~]{3}", line), line
    assert following is None


@pytest.mark.parametrize(
    ("begun", "finished"),
    [
        ("# Title\n", ["# Title"]),
        ("a paragraph", []),
        ("a paragraph\n", []),
        ("a paragraph\n\n", ["a paragraph"]),
        ("a paragraph\n---\n", ["a paragraph\n---"]),
        ("- one\n- two\n", ["- one"]),
        ("- one\n\n\n", []),
        ("- one\nlazy\n", []),
        ("| a |\n|---|\n| 1 |\n", []),
        ("| a |\n|---|\n| 1 |\n\n", ["| a |\n|---|\n| 1 |"]),
        ("```py\nx = 1\ny =", ["x = 1"]),
        ("```py\nx = 1\n\n\ny = 2\n", ["x = 1", "", "", "y = 2"]),
        ("```py\nx = 1\n\n", ["x = 1"]),
        ("\\[\na\n- b\n", []),
    ],
)
def test_when_a_piece_is_finished(begun, finished):
    stream = markdown.MarkdownStream()
    assert [fragment.source for fragment in stream.feed(begun)] == finished


def test_numbers_go_on_across_pieces():
    """Also when each item of the source has the same number, and from what the first one says."""
    text = "7. a\n7. b\n\n   more\n7. c\n\ntext\n\n1. d"
    assert shown(text) == [
        *[" 7. a", " 8. b", "", "    more", " 9. c", "", "text", "", " 1. d"],
    ]
    assert [fragment.number for fragment in fragments_of(text)] == [7, 8, 9, None, 1]


def test_lists_are_as_tight_as_the_source():
    assert shown("- a\n- b\n\n- c\n  - d\n  - e\n\n    f\n") == [
        *[" • a", " • b", "", " • c", "    • d", "    • e", "", "      f"],
    ]


def test_nothing_vanishes():
    """HTML, images, addresses, formulas, backslashes, stray signs and surplus cells are shown."""
    text = (
        "<b>x</b> & &amp; a < b [ ] \\ C:\\dir \\* ![pic](u.png) [l](http://e.x) <http://a.b>\n"
        "\n<div>\n<p>html</p>\n</div>\n\n[1]: http://ref\n\n<!-- note -->\n\n"
        "\\(a_1*b_2*c\\) $x_1 y_1$ costs $5 and $6 \\frac{a}{b} \\\\ :smile:\n\n"
        "|a|b|\n|-|-|\n|1|`x|y`|z|\n"
    )
    assert shown(text, 100) == [
        "<b>x</b> & & a < b [ ] \\ C:\\dir * pic (u.png) l (http://e.x) http://a.b",
        "",
        *["<div>", "<p>html</p>", "</div>", "", "[1]: http://ref", "", "<!-- note -->", ""],
        "\\(a_1*b_2*c\\) $x_1 y_1$ costs $5 and $6 \\frac{a}{b} \\\\ :smile:",
        "",
        *["a   b", "─────────", "1   x|y|z"],
    ]


def test_formula_is_no_list_and_no_heading():
    text = "\\[\na\n- b\n=\n    c\n\\]\n\n$$\n# x\n\nafter"
    assert shown(text) == ["\\[", "a", "- b", "=", "    c", "\\]", "", "$$", "# x", "", "after"]


def test_code_is_shown_as_it_is():
    """What is copied from the screen must run: no marks, no breaks, blank lines and tabs kept."""
    code = 'def f():\n\treturn "' + "x" * 100 + '"\n\n\n# end'
    assert shown(f"text\n```python\n\n{code}\n\n\n```\ntext", 40) == [
        *["text", "", *code.split("\n"), "", "text"]
    ]
    assert "\x1b[35mdef\x1b[0m f():" in styled(f"```python\n{code}", 40)


@pytest.mark.parametrize(
    "info", ["python", "Python title=x", "{.python}", "python:a.py", "python,"]
)
def test_language_of_a_fence(info):
    assert styled(f"```{info}\nreturn 1") == ["\x1b[35mreturn\x1b[0m \x1b[36m1\x1b[0m"]


def test_unknown_language_has_no_colours():
    assert styled("```nonsense\nreturn 1\n```\n```\nreturn 1") == ["return 1", "", "return 1"]


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", 'x = """\nfor\nreturn\n"""'),
        ("js", "/* a\n for\n return */"),
        ("html", "<!-- a\n<b>\n-->"),
    ],
)
def test_colours_know_the_lines_before(language, code):
    """Strings and comments go on over lines, long after the lines that are read again."""
    highlighter = render.Highlighter(language)
    filler = ["x" if language == "html" else "x = 1"] * 30
    lines = [highlighter.line(line) for line in [*filler, *code.split("\n")]]
    inner = lines[31]
    assert {str(span.style) for span in inner.spans} <= {"green", "dim"}
    assert inner.spans


def test_only_a_few_lines_are_read_again():
    """Or the cost of a block of code would grow with its square."""
    highlighter = render.Highlighter("python")
    for _ in range(2 * render.MAX_CONTEXT_LINES):
        highlighter.line("    x = 1")
        assert len(highlighter._context) <= render.MAX_CONTEXT_LINES


def test_a_long_tail_is_not_parsed_for_each_line(monkeypatch):
    """Or the cost of a table would grow with its square: assert the lines that are parsed."""
    parsed = []
    stream = markdown.MarkdownStream()
    parse = stream._parser.parse
    monkeypatch.setattr(
        stream._parser, "parse", lambda text: parsed.append(text.count("\n") + 1) or parse(text)
    )
    stream.feed("| a |\n|---|\n")
    for _ in range(2000):
        stream.feed("| 1 |\n")
    assert sum(parsed) < 2000 * 20


def test_headings_are_bold_and_left():
    assert styled("# One\n## Two\nthree\n===") == [
        *["\x1b[1;4mOne\x1b[0m", "", "\x1b[1mTwo\x1b[0m", "", "\x1b[1;4mthree\x1b[0m"]
    ]


def test_no_color_leaves_no_colour(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    text = "# t\n\n`c` **b** [l](u)\n\n|a|\n|-|\n|1|\n\n```python\nreturn 1 # c\n```\n\n> q"
    codes = {code for line in styled(text) for code in re.findall(r"\x1b\[([0-9;]*)m", line)}
    assert codes == {"0", "1", "2", "1;4"}


def test_table_that_is_too_wide_becomes_records():
    text = "| Name | Description | Price |\n|---|---|--:|\n| Tea | A hot drink | 1.20 |\n| Gin |\n"
    assert shown(text, 60)[0].split() == ["Name", "Description", "Price"]
    assert shown(text, 19) == [
        *["Name: Tea", "Description: A hot", "drink", "Price: 1.20"],
        *["", "Name: Gin", "Description:", "Price:"],
    ]


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("width", [9, 30])
def test_preview_fits(seed, width):
    """A moving line that the terminal breaks could not be erased; deep nesting has its minimum."""
    from rich.cells import cell_len

    text = random_text(random.Random(seed))
    lines = render.Renderer().preview(fragments_of(text), width)
    for line in lines:
        plain = re.sub(r"\x1b\[[0-9;]*m", "", line)
        assert cell_len(plain) <= width
        assert "\t" not in plain


def test_preview_changes_nothing():
    """Code that is looked at while it is open keeps the colours that it gets when it is whole."""
    renderer = render.Renderer()
    renderer.lines([Fragment("code", 'x = """', language="python", first=True)], 60)
    renderer.preview([Fragment("code", '"""', language="python")], 60)
    assert renderer.lines([Fragment("code", "text", language="python")], 60) == [
        "\x1b[32mtext\x1b[0m"
    ]


@pytest.mark.parametrize("rest", ["-", "1.", "```", "--", "| -", "$$", "2", "=="])
def test_tail_does_not_guess(rest):
    """A sign that may become anything would flicker between a list, a heading and a rule."""
    stream = markdown.MarkdownStream()
    stream.feed(f"text\n{rest}")
    assert [fragment.source for fragment in stream.tail()] == ["text"]
    assert rest in "".join(fragment.source for fragment in stream.finish()) or rest == "```"


def test_lines_are_lines():
    text = "one\n\n  two  \n# three"
    found = fragments_of(text, 2, stream=passes.TextStream)
    assert found == fragments_of(text, stream=passes.TextStream)
    assert [fragment.source for fragment in found] == text.split("\n")
    assert [fragment.gap for fragment in found] == [True, False, False, False]
