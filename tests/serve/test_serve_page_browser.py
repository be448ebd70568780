"""The chat page in headless Chromium: what a person does, and what they see.

DFLASH_SCREENSHOTS names a folder for pictures of the page, DFLASH_BROWSER a browser.
"""

import asyncio
import json
import os
import re
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser import Browser, Tab
from serving import Served, fail_to_answer, serving

from dflash_mlx.engine.stats import Stats
from dflash_mlx.pair import Pair
from dflash_mlx.serve import guard
from dflash_mlx.serve.runner import Runner
from dflash_mlx.types import Block

SCREENSHOTS = os.environ.get("DFLASH_SCREENSHOTS")
KEY = "geheim-ü"
CODE = "Write a Python function that adds 3 to a number."
THIRD = 3  # passes so far
SUM = "What is 25 plus 17?"
ANSWERED = "document.querySelector('.assistant:last-child .numbers')?.innerText"
STORED = "Object.keys(localStorage).filter((name) => name.startsWith('dflash.chat.')).length"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def keyed(pair: Pair) -> Iterator[Served]:
    with serving(pair, api_key=KEY, hosts=guard.LOCAL_HOSTS) as running:
        yield running


@pytest.fixture
def go_on(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Until it is set, an answer waits after its first three passes."""
    answer = Runner.answer
    go_on = threading.Event()

    async def waiting(self: Runner, *given: Any) -> AsyncGenerator[Any]:
        async with aclosing(answer(self, *given)) as events:
            passes = 0
            async for event in events:
                yield event
                passes += isinstance(event, tuple)
                while passes == THIRD and not go_on.is_set():
                    await asyncio.sleep(0.02)

    monkeypatch.setattr(Runner, "answer", waiting)
    return go_on


def script(monkeypatch: pytest.MonkeyPatch, *pieces: tuple[str, str]) -> None:
    """Every answer is these pieces of thinking and text, one a pass of 8 tokens and 7 drafts."""

    async def answer(runner: Runner, request: Any, choices: Any) -> AsyncGenerator[Any]:
        said = choices[0].answer
        said.stats = Stats(generated=8 * len(pieces), committed=[8] * len(pieces))
        for number, (thinking, text) in enumerate(pieces):
            last = "stop" if number == len(pieces) - 1 else None
            block = Block((1,) * 8, 7, 5, text=text, thinking=thinking, finish_reason=last)
            yield 0, said.add(block)

    monkeypatch.setattr(Runner, "answer", answer)


def ask(tab: Tab, text: str) -> None:
    tab.click("#prompt")
    while tab.js("document.activeElement.id") != "prompt":  # it moved while the page filled
        tab.click("#prompt")
    tab.type(text)
    tab.press("Enter")


def greedy_tokens(served: Served, prompt: str) -> int:
    body = {"messages": [{"role": "user", "content": prompt}], "temperature": 0}
    answer = httpx.post(f"{served.url}/v1/chat/completions", json=body).json()
    return answer["usage"]["completion_tokens"]


def answer_text(tab: Tab) -> str:
    return tab.text(".assistant:last-child > .text")


def shoot(tab: Tab, name: str) -> None:
    if SCREENSHOTS:
        tab.wait("document.getAnimations().every((one) => one.playState !== 'running')", 5)
        tab.shoot(Path(SCREENSHOTS) / f"{name}.png")


def test_an_answer_and_its_numbers(browser: Browser, served: Served) -> None:
    count = greedy_tokens(served, CODE)
    with browser.tab() as tab:
        tab.open(served.url)
        tab.wait("document.querySelector('#model').value === 'm'")
        assert tab.js("document.activeElement.id") == "prompt"
        assert "drafter bundled · mode dflash · context 4,096 tokens" in tab.text("#numbers")
        shoot(tab, "empty")
        ask(tab, CODE)
        numbers = tab.wait(ANSWERED)
        assert re.fullmatch(
            rf"{count} tokens · [\d.]+ tok/s · τ \d+\.\d\d · accept \d+% · "
            r"prompt \d+ new( \+ \d+ cached)? · first token after [\d.]+ s",
            numbers,
        )
        assert tab.text(".code code").splitlines()[0] == "def add_3(n):"
        assert tab.js("document.querySelector('.code .keyword').textContent") == "def"
        assert tab.text("#spoken") == f"Answered: {count} tokens"
        assert tab.text("nav .open[aria-current]") == CODE
        shoot(tab, "answer")
        addresses = [address for address in tab.requests() if not address.startswith("about:")]
        assert {address.startswith(f"{served.url}/") for address in addresses} == {True}


def test_colours_show_the_passes_of_the_stream(browser: Browser, served: Served) -> None:
    """Each pass has the text of its chunk, whatever marks Markdown takes away."""
    body = {
        "messages": [{"role": "user", "content": SUM}], "stream": True, "return_passes": True,
        "temperature": 0,
    }  # fmt: skip
    lines = httpx.post(f"{served.url}/v1/chat/completions", json=body).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    texts = {
        event["dflash"]["pass"]["number"]: "".join(event["choices"][0]["delta"]["content"].split())
        for event in events
        if "pass" in event.get("dflash", {})
    }
    shown = """Object.entries(Object.groupBy(document.querySelectorAll(
        '.assistant .pass'), (span) => span.title)).map(([title, spans]) =>
        [title, spans.map((span) => span.textContent).join('')])"""
    with browser.tab() as tab:
        tab.open(served.url)
        tab.js("localStorage.setItem('dflash.settings', '{\"temperature\": 0}')")
        tab.reload()
        ask(tab, SUM)
        tab.wait(ANSWERED)
        assert tab.js("document.querySelectorAll('.pass').length") == 0
        tab.press("Tab")  # to a button, where keys are shortcuts
        tab.press("c")
        tab.wait("document.querySelectorAll('.pass').length")
        found = dict(tab.js(shown))
        numbers = {}
        for title, text in found.items():
            match = re.match(r"pass (\d+): (\d+) tokens?, (\d+) of 15 drafts accepted$", title)
            number = int(match[1]) if match else 0
            numbers[number] = "".join(text.split())
        assert numbers == texts
        assert "end of the prompt: 1 token" in found
        cells = tab.js("[...document.querySelectorAll('.strip li')].map((one) => one.innerText)")
        assert len(cells) == len(texts)
        assert sum(map(int, cells)) == greedy_tokens(served, SUM)
        tab.press("c")
        assert tab.js("document.querySelectorAll('.pass').length") == 0
        assert not tab.js("document.querySelector('.strip').checkVisibility()")


@pytest.mark.parametrize("how", ["click", "Escape"])
def test_a_stop_in_the_middle(
    browser: Browser, served: Served, go_on: threading.Event, how: str
) -> None:
    with browser.tab() as tab:
        tab.open(served.url)
        ask(tab, CODE)
        tab.wait("document.querySelectorAll('.assistant .code code').length")
        assert re.match(r"\d+ tokens · [\d.]+ tok/s · τ \d", tab.text("#numbers"))
        shoot(tab, "running")
        tab.click("#stop") if how == "click" else tab.press(how)
        tab.wait("!document.body.classList.contains('busy')")
        served.wait_until_idle()
        assert tab.text(".assistant .note") == "Stopped."
        kept = answer_text(tab)
        assert "Here is a Python function" in kept
        assert "For example" not in kept
        go_on.set()
        tab.click("[data-do=goOn]")
        tab.wait("!document.body.classList.contains('busy')")
        whole = answer_text(tab)
        assert whole.count("Here is a Python function") == whole.count("For example") == 1
        assert not tab.text(".assistant .note")
        assert not tab.js("document.querySelector('[data-do=goOn]').checkVisibility()")
        tab.click("[data-do=retry]")
        tab.wait(f"{ANSWERED} && {ANSWERED}.startsWith('{greedy_tokens(served, CODE)} tokens')")
        assert "For example" in answer_text(tab)
        assert tab.js("document.querySelectorAll('article').length") == 2


def test_a_reload_in_the_middle(browser: Browser, served: Served, go_on: threading.Event) -> None:
    with browser.tab() as tab:
        tab.open(served.url)
        ask(tab, CODE)
        tab.wait("document.querySelector('.assistant > .text')?.innerText.includes('Here is')")
        tab.reload()
        tab.wait("document.querySelector('.note')?.innerText")
        served.wait_until_idle()
        assert tab.text(".assistant .note") == "Cut by a reload."
        assert "Here is a Python function" in answer_text(tab)
        assert tab.text(".user .text") == CODE
        go_on.set()
        ask(tab, SUM)  # the chat goes on
        tab.wait(ANSWERED)
        assert tab.js("document.querySelectorAll('article').length") == 4


def test_errors(browser: Browser, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    with browser.tab() as tab:
        tab.expected = ("status of 400", "ERR_CONNECTION_REFUSED")
        with serving(pair) as served:
            tab.open(served.url)
            ask(tab, "word " * 6000)
            tab.wait("document.querySelector('.note.error')?.innerText")
            assert tab.text(".note.error").startswith("prompt is too long: ")
            tab.click("#new-chat")
            with monkeypatch.context() as fault:
                fail_to_answer(served.server, fault)
                ask(tab, SUM)
                tab.wait("document.querySelector('.note.error')?.innerText")
                assert tab.text(".note.error") == "the cable is out. (plug it in)"
                shoot(tab, "error")
            tab.click("[data-do=retry]")
            tab.wait(ANSWERED)
        tab.click("[data-do=retry]")
        tab.wait("document.querySelector('.note.error')?.innerText")
        assert tab.text(".note.error") == "The server does not answer. Is it still running?"


def test_the_key(browser: Browser, keyed: Served) -> None:
    with browser.tab(width=700, height=500) as tab:
        tab.expected = ("status of 401",)
        tab.open(keyed.url)
        tab.wait("document.querySelector('#login').open")
        assert tab.js("document.activeElement.name") == "key"
        assert tab.text("#login-problem") == ""
        tab.type("wrong")
        tab.press("Enter")
        tab.wait("document.querySelector('#login-problem').innerText")
        assert tab.text("#login-problem") == "The server does not take this key."
        shoot(tab, "key")
        tab.press("Escape")  # without a key the server still answers nothing
        ask(tab, SUM)
        tab.wait("document.querySelector('.note.error')?.innerText")
        assert tab.text(".note.error") == "the API key is missing or wrong."
        tab.wait("document.querySelector('#login').open")
        tab.type(KEY)
        tab.press("Enter")
        tab.wait("document.querySelector('#model').value === 'm'")
        tab.click("[data-do=retry]")
        tab.wait(ANSWERED)
        assert tab.js("JSON.stringify(Object.values(sessionStorage))") == json.dumps(
            [KEY], ensure_ascii=False
        )
        stored = tab.js("JSON.stringify([localStorage, document.cookie])")
        assert "geheim" not in stored
        assert "wrong" not in stored.replace("missing or wrong", "")
        assert not any("geheim" in address or "?" in address for address in tab.requests())
        tab.reload()
        tab.wait("document.querySelector('#model').value === 'm'")  # the tab still has it
        tab.click("#show-settings")
        tab.click("#forget-key")
        tab.wait("document.querySelector('#login').open")
        assert tab.js("sessionStorage.length") == 0
    assert not any("geheim" in line for line in keyed.lines)


def test_edit_copy_and_chats(browser: Browser, served: Served) -> None:
    with browser.tab() as tab:
        tab.open(served.url)
        ask(tab, SUM)
        tab.wait(ANSWERED)
        tab.js("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
        tab.click(".assistant [data-copy]")
        assert tab.js("copied").endswith("\n\n25 plus 17 is 42.")
        tab.press("Escape")
        tab.click("#prompt")
        tab.press("ArrowUp")  # edits the last prompt
        assert tab.js("document.activeElement.value") == SUM
        tab.press("Escape")
        assert tab.text(".user .text") == SUM
        tab.click("[data-do=edit]")
        tab.js("document.activeElement.select()")
        tab.type(CODE)
        tab.press("Enter")
        tab.wait("document.querySelector('.assistant .code') && !document.body.matches('.busy')")
        assert tab.text(".user .text") == CODE
        assert tab.js("document.querySelectorAll('article').length") == 2
        tab.click(".code [data-copy]")
        assert tab.js("copied") == 'def add_3(n):\n    """Return n plus 3."""\n    return n + 3'
        tab.js("document.activeElement.blur()")
        tab.press("n")
        assert tab.js("document.activeElement.id") == "prompt"
        assert tab.js("document.querySelectorAll('article').length") == 0
        ask(tab, "Hello")
        tab.wait(ANSWERED)
        titles = "[...document.querySelectorAll('nav .open')].map((one) => one.innerText)"
        assert tab.js(titles) == ["Hello", CODE]
        tab.click("nav li:last-child .open")
        assert tab.text(".user .text") == CODE
        tab.js("window.confirm = () => true")
        tab.click("nav li:last-child [data-remove]")
        assert tab.js(titles) == ["Hello"]
        assert tab.js(STORED) == 1
        tab.click("#clear")
        assert tab.js(titles) == []
        assert tab.js(STORED) == 0


def test_settings_are_sent(browser: Browser, served: Served) -> None:
    with browser.tab(width=700, height=700) as tab:
        tab.expected = ("status of 400",)
        tab.open(served.url)
        tab.wait("document.querySelector('#model').value")
        tab.click("main")
        tab.press("s")
        tab.wait("document.querySelector('#settings').open")
        assert tab.js("document.activeElement.name") == "system"
        tab.type("Be brief.")
        for name, value in (("temperature", "0.5"), ("max_tokens", "5"), ("seed", "7")):
            tab.click(f"[name={name}]")
            tab.type(value)
        tab.js("document.querySelector('[name=thinking]').value = 'off'")
        shoot(tab, "settings")
        tab.click("#settings .main")
        ask(tab, SUM)
        tab.wait(ANSWERED)
        posts = [e["request"] for e in tab.events("Network.requestWillBeSent")
                 if e["request"]["method"] == "POST"]  # fmt: skip
        assert json.loads(posts[0]["postData"]) == {
            "messages": [
                {"role": "system", "content": "Be brief."}, {"role": "user", "content": SUM}
            ],
            "model": "m", "stream": True, "return_progress": True, "return_passes": True,
            "temperature": 0.5, "max_tokens": 5, "seed": 7,
            "chat_template_kwargs": {"enable_thinking": False},
        }  # fmt: skip
        assert tab.text(".assistant .note").startswith("The answer ended at max tokens")


THOUGHT = [("They want a table", ""), (" and a list.", ""), ("", "## Tea\n\n| tea | minutes |\n|:--"
           "|--:|\n| green"), ("", " | 2 |\n| black | 4 |\n\n1. Boil **water**.\n2. Wait"),
           ("", ", then `pour`.\n\n```js\nconst tea = `${kind} tea`; // hot\n"), ("", "```\n\n"
           "> [More](https://example.org/tea)")]  # fmt: skip


@pytest.mark.parametrize("dark", [False, True])
def test_thinking_is_folded_and_everything_can_be_read(
    browser: Browser, served: Served, monkeypatch: pytest.MonkeyPatch, *, dark: bool
) -> None:
    """Colours have the contrast of WCAG's level AA, on every ground."""
    script(monkeypatch, *THOUGHT)
    with browser.tab(dark=dark) as tab:
        tab.open(served.url)
        ask(tab, "How do I make tea?")
        tab.wait(ANSWERED)
        assert tab.text("summary").startswith("Thought for ")
        assert not tab.js("document.querySelector('details').open")
        assert "They want" not in tab.text(".assistant")
        tab.click("summary")
        assert "They want a table and a list." in tab.text("details")
        tab.click("#colours")
        shoot(tab, "dark" if dark else "light")
        worst = tab.js(CONTRASTS)
        assert len(worst) > 40
        assert {name: value for name, value in worst.items() if value < 4.5} == {}
        luminance = tab.js("getComputedStyle(document.body).backgroundColor")
        assert (luminance == "rgb(22, 24, 28)") is dark


# The contrast of each text colour on each ground; colours of passes are transparent.
CONTRASTS = """(() => {
  const probe = document.body.appendChild(document.createElement('i'));
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
  const luminance = (...names) => {
    for (const name of names) {
      probe.style.color = `var(--${name})`;
      canvas.fillStyle = getComputedStyle(probe).color;
      canvas.fillRect(0, 0, 1, 1);
    }
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (text, ...grounds) => {
    const both = [luminance(...grounds), luminance(...grounds, text)].sort();
    return (both[1] + 0.05) / (both[0] + 0.05);
  };
  const found = { button: contrast('on-accent', 'accent') };
  for (const ground of ['back', 'panel']) {
    for (const text of ['text', 'quiet', 'accent', 'error']) {
      found[`${text} on ${ground}`] = contrast(text, ground);
    }
  }
  for (const text of ['text', 'quiet', 'accent', 'keyword', 'string', 'number']) {
    for (let pass = 0; pass < 6; pass += 1) {
      found[`${text} on ${pass}`] = contrast(text, 'back', `pass-${pass}`);
    }
  }
  probe.remove();
  return found;
})()"""


def test_360_pixels(browser: Browser, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "a" * 200
    script(monkeypatch, ("", f"{long} `{long}` https://example.org/{long}\n\n"),
           ("", f"```py\nx = '{long}'\n```\n\n| {'wide | ' * 30}\n|{'--|' * 30}\n\n- {long}\n"),
           *THOUGHT)  # fmt: skip
    inside = """document.documentElement.scrollWidth <= 360 && [...document.querySelectorAll(
        'header > *, footer :not(.unseen), .text, .code, .table, .actions *')].every((one) => {
            const { left, right } = one.getBoundingClientRect();
            return left >= 0 && right <= 360; })"""
    with browser.tab(width=360, height=640) as tab:
        tab.open(served.url)
        ask(tab, f"{long} {long}")
        tab.wait(ANSWERED)
        tab.click("#colours")
        assert tab.js(inside)
        shoot(tab, "phone")
        tab.click("#show-chats")
        assert tab.js("document.querySelector('#clear').checkVisibility()")
        assert tab.js("document.querySelector('#show-chats').ariaExpanded") == "true"
        shoot(tab, "phone-chats")
        tab.click("#new-chat")
        assert not tab.js("document.querySelector('nav').checkVisibility()")
        tab.click("#show-settings")
        assert tab.js("document.querySelector('#settings').scrollWidth <= 360")
        shoot(tab, "phone-settings")


def test_the_policy_holds(browser: Browser, served: Served) -> None:
    with browser.tab() as tab:
        tab.expected = ("Content Security Policy", "Trusted", "evil.example")
        tab.open(served.url)
        tab.js("""(() => { const script = document.createElement('script');
            try { script.textContent = 'window.evil = 1'; } catch {}
            document.body.append(script); })()""")
        assert tab.js("window.evil") is None
        for code in ("eval('1')", "document.body.innerHTML = '<b>x</b>'", "new Function('1')()"):
            # The tool's own expressions are let through, those of a timer are not.
            tab.js("window.thrown = null")
            tab.js(f"""new Promise((resolve) => setTimeout(() => {{
                try {{ {code}; }} catch (error) {{ window.thrown = error.name; }}
                resolve(); }}))""")
            assert tab.js("window.thrown") in ("EvalError", "TypeError"), code
        for code in (
            "fetch('http://evil.example/')",
            "new Promise((resolve, reject) => { const image = new Image(); image.onload = resolve;"
            " image.onerror = reject; image.src = 'http://evil.example/a.png'; })",
        ):
            assert tab.js(f"{code}.then(() => 'sent', () => 'refused')") == "refused"
