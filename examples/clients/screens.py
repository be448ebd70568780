"""Draw screens of `dflash` and of programs that talk to it, as SVG, from real terminals.

    .venv/bin/python examples/clients/screens.py chat
    .venv/bin/python examples/clients/screens.py serve metrics
    .venv/bin/python examples/clients/screens.py llm --program venv/bin/llm
    .venv/bin/python examples/clients/screens.py aider --program venv/bin/aider --model ./smollm2
    .venv/bin/python examples/clients/screens.py opencode claude --model ./smollm2 \\
        --program node_modules/.bin/opencode

Needs tmux. The clients are installed elsewhere (`pip install llm`, `pip install aider-chat`, `npm
install opencode-ai @anthropic-ai/claude-code`), and `real_models/install.py` makes the folder
for `--model`; else the bundled pair is served. Rates are those of the machine that draws. `chat` is
taken while the last answer streams, with the colours of passes, the status line and a queued line.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

HERE = Path(__file__).parent
URL = "http://127.0.0.1:8080"
SCREENS = ("chat", "serve", "metrics", "llm", "aider", "opencode", "claude")
COLUMNS, ROWS = 92, 46
PATIENCE = 240.0
PROMPTS = (
    "What is 12 plus 7?",
    "Write a Python function that counts the vowels of a text.",
    "Name three colors.",
)
CHAT = (
    "/think on",
    "Anna has 5 apples and buys 7 more. How many does she have?",
    "/compare",
    "/clear",
    "/think off",
    "/watch on",
)
LAST = "Write a Python function that counts the vowels in a word."
NEXT = "Which day comes after Wednesday?"  # typed during the last answer
PROMPT = "›"
TRIES = 6  # the last answer takes a second, and a look at the screen takes a part of it
LLM_MODEL = f"""\
- model_id: dflash
  model_name: bundled
  api_base: {URL}/v1
  supports_schema: true
"""
AIDER_SETTINGS = """\
check-update: false
analytics: false
show-model-warnings: false
show-release-notes: false
git: false
yes-always: true
dark-mode: true
"""
LLM = (
    "cat extra-openai-models.yaml",
    'llm -m dflash "Tom has 12 apples and buys 7 more. How many apples does Tom have now?"',
    'llm -m dflash "Write a Python function that counts the vowels of a text." -u',
    'llm -m dflash --schema \'{"enum": ["gold", "silver"]}\' \'Name a metal.\'',
)
AIDER = (
    f"export OPENAI_API_BASE={URL}/v1 OPENAI_API_KEY=none",
    "aider --model openai/smollm2 --chat-mode ask --map-tokens 0",
    "Write a Python function that returns the square of a number.",
    "/tokens",
    "/exit",
)
OPENCODE_SETTINGS = {
    "autoupdate": False,
    "provider": {
        "dflash": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": f"{URL}/v1"},
            "models": {"smollm2": {"tool_call": False, "limit": {"context": 8192, "output": 200}}},
        }
    },
    # the model calls no tools, and is slow to read the usual prompt of 10,000 tokens
    "agent": {"plain": {"prompt": "You are a helpful assistant.", "tools": {"*": False}}},
}
OPENCODE = (
    "cat opencode.json",
    'opencode run -m dflash/smollm2 --agent plain "Write a Python function that adds two numbers."',
)
# no tools and a short prompt, for the same reasons
CLAUDE = (
    f"export ANTHROPIC_BASE_URL={URL} ANTHROPIC_AUTH_TOKEN=none",
    "export ANTHROPIC_MODEL=smollm2 ANTHROPIC_DEFAULT_HAIKU_MODEL=smollm2",
    "claude --version",
    "claude -p --tools '' --system-prompt 'You are a helpful assistant.' \\\n"
    "    'Write a Python function that adds two numbers.'",
)


class Window:
    """A tmux session with a shell."""

    def __init__(self, folder: Path, name: str, path: str = ""):
        self._tmux = ["tmux", "-S", str(folder / "tmux"), "-f", "/dev/null"]
        self._name = name
        environment = os.environ | {"HOME": str(folder), "LC_ALL": "C.UTF-8"}
        environment |= {"PATH": f"{path}:{os.environ['PATH']}", "TERM": "xterm-256color"}
        environment |= {"LLM_USER_PATH": str(folder), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        environment |= {"OPENCODE_DISABLE_MODELS_FETCH": "1"}
        environment |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
        size = ["-x", str(COLUMNS), "-y", str(ROWS)]
        shell = "PS1='$ ' exec bash --noprofile --norc"
        subprocess.run(
            [*self._tmux, "-u", "new-session", "-d", "-s", name, *size, "-c", str(folder), shell],
            env=environment,
            check=True,
        )
        self.wait("$")

    def _run(self, *command: str) -> str:
        found = subprocess.run([*self._tmux, *command], capture_output=True, check=True, text=True)
        return found.stdout

    def text(self, *, colours: bool = False) -> str:
        """The text on the screen."""
        flags = ["-e"] if colours else []
        return self._run("capture-pane", "-p", "-t", self._name, *flags).rstrip()

    def wait(self, end: str) -> None:
        """Wait until the last line ends with `end` and the screen stays the same for a second."""
        before, until = "", time.monotonic() + PATIENCE
        while not (before.endswith(end) and before == self.text()):
            if time.monotonic() > until:
                raise SystemExit(f"this did not end with {end!r}:\n{self.text()}")
            before = self.text()
            time.sleep(1.0)

    def type(self, line: str, end: str = "$") -> None:
        """Type a line and wait for the next prompt."""
        self._run("send-keys", "-t", self._name, "-l", line)
        self._run("send-keys", "-t", self._name, "Enter")
        time.sleep(0.5)
        self.wait(end)

    def chat(self) -> str:
        """Chat with the bundled pair; returns the longest screen while the last answer streams."""
        self.type("dflash chat --demo --no-history", PROMPT)
        for line in CHAT:
            self.type(line, PROMPT)
        for line in (LAST, NEXT):
            self._run("send-keys", "-t", self._name, "-l", line)
            self._run("send-keys", "-t", self._name, "Enter")
        best, lines = "", list[str]()
        while not (lines and lines[-1] == PROMPT):
            shown = self.text(colours=True)
            lines = Text.from_ansi(shown).plain.splitlines()
            streams = len(lines) > 1 and "tok/s" in lines[-2] and NEXT in lines[-1]
            if streams and len(lines) >= len(best.splitlines()):
                best = shown
        self.type("/exit")
        return best

    def stop(self) -> None:
        """Press Ctrl-C and end the tmux server."""
        self._run("send-keys", "-t", self._name, "C-c")
        self.wait("$")
        self._run("kill-server")

    def draw(self, file: Path, title: str, shown: str = "") -> None:
        """Save the screen, or what was shown on it earlier, as SVG."""
        shown = shown or self.text(colours=True)
        console = Console(width=COLUMNS, record=True, file=StringIO())
        console.print(Text.from_ansi(shown))
        svg = console.export_svg(title=title, theme=MONOKAI, unique_id=file.stem)
        file.write_text(svg, encoding="utf-8")
        print(f"{file}\n{Text.from_ansi(shown).plain}\n")


@contextmanager
def serving(folder: Path, model: Path | None) -> Iterator[Window]:
    """Run `dflash serve` in a window."""
    window = Window(folder, "serve", str(Path(sys.executable).parent))
    command = "dflash serve"
    if model is not None:
        (folder / model.name).symlink_to(model.resolve())
        command += f" -m ./{model.name} --alias {model.name} --no-draft"
    try:
        window.type(command, "Ctrl-C stops")
        yield window
    finally:
        window.stop()


def ask() -> None:
    """Send requests to several APIs, three of them at once, and one that is refused."""

    def post(path: str, **body: Any) -> None:
        httpx.post(f"{URL}{path}", json={"model": "bundled", **body}, timeout=60)

    with ThreadPoolExecutor() as pool:
        for prompt in PROMPTS:
            chat = [{"role": "user", "content": prompt}]
            pool.submit(post, "/v1/chat/completions", messages=chat, max_tokens=200)
    post("/v1/responses", input=PROMPTS[1])
    chat = [{"role": "user", "content": PROMPTS[1]}]
    post("/v1/messages", messages=chat, max_tokens=200)
    post("/v1/chat/completions", messages=[], model="gpt-5")


def main() -> None:
    """Draw the screens named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("screens", nargs="+", choices=SCREENS)
    parser.add_argument("--program", type=Path, help="the client")
    parser.add_argument(
        "--model", type=Path, help="a folder to serve, in place of the bundled pair"
    )
    options = parser.parse_args()
    program = str(options.program.absolute().parent) if options.program else ""
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)  # short, because the path of a socket is limited
        if "chat" in options.screens:
            window = Window(folder, "chat", str(Path(sys.executable).parent))
            pictures = [window.chat() for _ in range(TRIES)]
            longest = max(pictures, key=lambda shown: shown.count("\n"))
            window.draw(HERE.parent / "chat.svg", "dflash chat", longest)
            window.stop()
        if {*options.screens} == {"chat"}:
            return
        with serving(folder, options.model) as server:
            window = Window(folder, "client", program)
            if {"serve", "metrics"} & set(options.screens):
                ask()
            if "serve" in options.screens:
                server.draw(HERE / "serve.svg", "dflash serve")
            if "metrics" in options.screens:
                window.type("clear")
                window.type(f"curl -s {URL}/metrics | grep -vE '^#|_created|_bucket'")
                window.draw(HERE / "metrics.svg", "GET /metrics")
            if "llm" in options.screens:
                (folder / "extra-openai-models.yaml").write_text(LLM_MODEL, encoding="utf-8")
                for line in ("clear", *LLM):
                    window.type(line)
                window.draw(HERE / "llm.svg", "llm")
            if "aider" in options.screens:
                prices = folder / ".aider/caches/model_prices_and_context_window.json"
                prices.parent.mkdir(parents=True)  # otherwise aider downloads a price list
                prices.write_text('{"none": {}}', encoding="utf-8")
                (folder / ".aider.conf.yml").write_text(AIDER_SETTINGS, encoding="utf-8")
                for line in ("clear", *AIDER):
                    window.type(line, "$" if line in ("clear", AIDER[0], "/exit") else "ask>")
                window.draw(HERE / "aider.svg", "aider")
            if "opencode" in options.screens:
                settings = json.dumps(OPENCODE_SETTINGS, indent=2) + "\n"
                (folder / "opencode.json").write_text(settings, encoding="utf-8")
                for line in ("clear", *OPENCODE):
                    window.type(line)
                window.draw(HERE / "opencode.svg", "opencode")
            if "claude" in options.screens:
                for line in ("clear", *CLAUDE):
                    window.type(line)
                window.draw(HERE / "claude.svg", "Claude Code")


if __name__ == "__main__":
    main()
