"""The chat page's Markdown, in headless Chromium: what becomes of a text."""

import json
import re
from collections.abc import Iterator

import pytest
from browser import Browser, Tab
from serving import Served

pytestmark = pytest.mark.slow

MARKDOWN = {
    "a *b* **c** ***d*** ~~e~~ _f_ __g__ snake_case 2 * 3 * 4": (
        "<p>a <em>b</em> <strong>c</strong> <strong><em>d</em></strong> <del>e</del> <em>f</em> "
        "<strong>g</strong> snake_case 2 * 3 * 4</p>"
    ),
    "*a **b** c* **not closed": "<p><em>a <strong>b</strong> c</em> **not closed</p>",
    r"\*a\* `b*c` ``d`e`` `open": (
        "<p>*a* <code>b*c</code> <code>d`e</code> `open</p>"
    ),
    "# A\n### B *c*": "<h3>A</h3><h5>B <em>c</em></h5>",
    "a\nb\n\nc\n---\nd": "<p>a\nb</p><p>c</p><hr><p>d</p>",
    "> a\n> > b\n\nc": "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><p>c</p>",
    "text:\n- a\n  - b\n    1. c\n- d\n\n  e": (
        "<p>text:</p><ul><li><p>a</p><ul><li>b<ol><li>c</li></ol></li></ul></li>"
        "<li><p>d</p><p>e</p></li></ul>"
    ),
    "3. a\n4. b\n\nyear\n1999. No list": '<ol start="3">'
    "<li>a</li><li>b</li></ol><p>year\n1999. No list</p>",
    "|a|b|\n|:-:|--:|\n|1|`x|y`|\n|2|": (
        '<div class="table"><table><tr><th class="centre">a</th><th class="right">b</th></tr>'
        '<tr><td class="centre">1</td><td class="right"><code>x|y</code></td></tr>'
        '<tr><td class="centre">2</td><td class="right"></td></tr></table></div>'
    ),
    "[a](https://b.example/c_(d)) <https://e.example> https://f.example/g_h_i.": (
        '<p><a href="https://b.example/c_(d)" target="_blank" rel="noopener noreferrer">a</a> '
        '<a href="https://e.example/" target="_blank" rel="noopener noreferrer">'
        "https://e.example</a> "
        '<a href="https://f.example/g_h_i" target="_blank" rel="noopener noreferrer">'
        "https://f.example/g_h_i</a>.</p>"
    ),
    "<img src=x onerror=alert(1)><script>alert(1)</script> &lt;": (
        "<p>&lt;img src=x onerror=alert(1)&gt;&lt;script&gt;alert(1)&lt;/script&gt; &amp;lt;</p>"
    ),
    "[a](javascript:alert(1)) [b](data:text/html,x) [c](/v1/models) [d](JaVaScRiPt://x)": (
        "<p><span>a</span> <span>b</span> <span>c</span> <span>d</span></p>"
    ),
    "![cat](https://evil.example/cat.png)": (
        '<p><a href="https://evil.example/cat.png" target="_blank" rel="noopener noreferrer">'
        "cat</a></p>"
    ),
    "```sql\nSELECT 1 -- one\n": (
        '<div class="code"><div class="code-head">sql<button class="quiet" data-copy="code">Copy'
        '</button></div><pre tabindex="0"><code><span class="keyword">SELECT</span> '
        '<span class="number">1</span> <span class="comment">-- one</span>\n</code></pre></div>'
    ),
    "~~~ x\" onclick=\"y\n'a' <b>\n~~~~\nz": (
        '<div class="code"><div class="code-head">x"<button class="quiet" data-copy="code">Copy'
        '</button></div><pre tabindex="0"><code><span class="string">\'a\'</span> &lt;b&gt;</code>'
        "</pre></div><p>z</p>"
    ),
}  # fmt: skip
PIECES = [
    "`", "``` ", "` `` ", "*a ", "**a *b ", "_a", "[", "[a](x", "![", "> ", "- ", "1. ", "  - a\n",
    "|", "|-", "\\", "<https://", '"\\', "'\\", "/*", '```py\n"\\', "# ", "-", "~", "\x01",
    "a|b\n|-\n",
]  # fmt: skip
SHOW = """(async (source, spans) => {
  const { Colours, MarkdownView } = await import('/page/markdown.js');
  const element = document.createElement('div');
  const colours = spans ? new Colours(spans, String) : null;
  const view = new MarkdownView(element);
  view.show(source.slice(0, source.length / 2), colours);
  view.show(source, colours);
  return element.innerHTML;
})"""


@pytest.fixture(scope="module")
def page(browser: Browser, served: Served) -> Iterator[Tab]:
    with browser.tab() as tab:
        tab.open(served.url)
        yield tab


@pytest.mark.parametrize("source", MARKDOWN)
def test_markdown(page: Tab, source: str) -> None:
    """Shown in two steps, as it streams; colours only add spans."""
    assert page.js(f"{SHOW}({json.dumps(source)})") == MARKDOWN[source]
    spans = [[end, end // 3] for end in range(3, len(source) + 3, 3)]
    coloured = page.js(f"{SHOW}({json.dumps(source)}, {spans})")
    assert 'class="pass pass-' in coloured or "<hr>" in coloured
    bare = re.sub(
        r'<span class="pass pass-\d" title="\d+">(.*?)</span>', r"\1", coloured, flags=re.S
    )
    assert bare == MARKDOWN[source]


def test_no_text_holds_the_page_up(page: Tab) -> None:
    """50,000 characters of marks; a parser that tries each with each would take minutes."""
    for piece in PIECES:
        source = piece * (25_000 // len(piece))
        text = f"a {source}\n{source} x"
        page.js(f"{SHOW}({json.dumps(text)}, [[9, 0], [20, 1]])")
