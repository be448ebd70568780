"""Send the same calls to two versions of dflash, and compare what they answer, exit with and write.

    python examples/measure/old_new.py OLD_PYTHON NEW_PYTHON [--calls 500] [--seed 0] [--only KIND]

Each argument is the interpreter of an environment with one version installed. The calls are drawn
by seed: command lines, Python, HTTP requests, chats on a terminal, and bad input. All of them use
the bundled pair. Timings, rates, memory, versions, dates and places of files are left out of the
comparison; messages for people are compared by whether there is an error and a hint, and other
words are counted apart. Ends with exit code 1 if anything differs that is not listed as intended in
`old_new_intended.toml`.
"""

import argparse
import contextlib
import fcntl
import http.client
import io
import json
import os
import pty
import random
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

Call = dict[str, Any]
Result = dict[str, Any]

SHARES = {"cli": 0.42, "python": 0.16, "api": 0.22, "chat": 0.08, "bad": 0.12}
PROMPTS = (
    "What is 12 plus 7?",
    "What is 40 minus 15?",
    "Sort these numbers: 9, 4, 7, 1.",
    "Write a function that adds two numbers.",
    "Tom has 12 apples and buys 7 more. How many apples does Tom have now?",
    "Name the days of the week.",
    "Reverse this list: red, blue, green.",
    "Count from 1 to 20.",
    "Say hello. Say it again: hello, hello.",
)
SCHEMA = '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'
CONFIG = """
max_tokens = 24
[preset.short]
max_tokens = 6
temp = 0.0
[preset.warm]
temp = 0.9
seed = 4
[models.bundled]
top_k = 20
"""
# JSON keys whose values are measured, or depend on the machine or the time.
MEASURED = re.compile(
    r"(.*_)?(s|ms|seconds|tok_s|per_second|memory|gb|versions?|created|at|saved|changed|time|"
    r"timings?|id|date|host|fingerprint|updated|duration)|policy"
)
UNSTABLE_FILES = re.compile(r"costs\.json|\.lock$|history|__pycache__|prefix|kernels")
WAIT = 60.0  # seconds to wait for a program that does not answer
QUIET = 0.5  # seconds without output after which a chat waits for a key


# The calls


def sampling(dice: random.Random) -> list[str]:
    """Sampling flags; with a seed, so that answers are repeatable."""
    flags = ["--seed", str(dice.randrange(100))]
    flags += ["--temp", dice.choice(["0", "0.7", "1", "1.4", "2"])]
    for name, values in (
        ("--top-p", ["0.5", "0.9"]),
        ("--top-k", ["2", "5", "40"]),
        ("--min-p", ["0.05"]),
        ("--repetition-penalty", ["1.1"]),
        ("--presence-penalty", ["0.5"]),
    ):
        if dice.random() < 0.2:
            flags += [name, dice.choice(values)]
    return flags


def mode(dice: random.Random) -> list[str]:
    """Flags about drafting."""
    return dice.choice(
        [
            [],
            ["--mode", "dflash"],
            ["--mode", "auto"],
            ["--mode", "baseline"],
            ["--no-draft"],
            ["--mode", "dflash", "--block-size", "8"],
            ["--mode", "ddtree"],
            ["--mode", "ddtree", "--tree-budget", "12"],
            ["--draft", "lookup", "--mode", "dflash"],
            ["--lookup", "--mode", "dflash"],
            ["--mode", "dflash", "--accept", "block"],
        ]
    )


def cli_call(dice: random.Random) -> Call:
    """One command line."""
    kind = dice.random()
    if kind < 0.08:
        command = dice.choice("chat generate serve bench train doctor models chats cache".split())
        return {"argv": [command, "--help"], "flags_only": True}
    if kind < 0.16:
        argv = dice.choice(
            [
                ["models", "list", "--json"],
                ["models", "list"],
                ["chats", "list"],
                ["cache", "list"],
                ["--version"],
            ]
        )
        return {"argv": argv}
    call: Call = {"argv": ["generate", "--max-tokens", str(dice.randrange(1, 40)), *mode(dice)]}
    argv = call["argv"]
    if dice.random() < 0.6:
        argv += sampling(dice)
    if dice.random() < 0.6:
        argv.append("--json")
    if dice.random() < 0.15:
        argv += ["--system", "Answer in one line only."]
    if dice.random() < 0.15:
        argv.append(dice.choice(["--think", "--no-think"]))
    if dice.random() < 0.1:
        argv += ["--stop", dice.choice(["1", " is", "."])]
    if dice.random() < 0.1:
        argv += ["--schema", SCHEMA]
    if dice.random() < 0.1:
        argv += ["--logprobs", "2"]
    if dice.random() < 0.2:
        call["config"] = CONFIG
        if dice.random() < 0.6:
            argv += ["--preset", dice.choice(["short", "warm"])]
    if dice.random() < 0.15:
        call["env"] = dict([dice.choice([("DFLASH_MAX_TOKENS", "9"), ("DFLASH_TEMP", "0.3")])])
    prompt = dice.choice(PROMPTS)
    way = dice.random()
    if way < 0.2:
        call["stdin"] = prompt
        argv.append("-")
    elif way < 0.3:
        call["files"] = {"notes.txt": "The sum is 19.\n"}
        argv += ["--file", "notes.txt", prompt]
    elif way < 0.4:
        call["stdin"] = "1, 2, 3"
        argv.append(prompt)
    else:
        argv.append(prompt)
    if "--temp" not in argv and "warm" not in argv:
        call.setdefault("env", {}).setdefault("DFLASH_SEED", "1")
    return call


def python_call(dice: random.Random) -> Call:
    """A call of `generate` in Python, or a session with two prompts."""
    options: dict[str, Any] = {"max_tokens": dice.randrange(1, 40)}
    options["mode"] = dice.choice(["dflash", "ddtree", "auto", "baseline"])
    if dice.random() < 0.3 and options["mode"] == "dflash":
        options["block_size"] = dice.choice([2, 5, 16])
    if options["mode"] == "ddtree" and dice.random() < 0.5:
        options["tree_budget"] = 9
    if dice.random() < 0.3:
        options["stop"] = ["7"]
    if dice.random() < 0.2:
        options["logprobs"] = 1
    if dice.random() < 0.1:
        options["raw"] = True
    if dice.random() < 0.1:
        options["schema"] = SCHEMA
    params = {"temperature": dice.choice([0.0, 0.8, 1.2]), "seed": dice.randrange(50)}
    wrong = dice.random()
    if wrong < 0.1:
        options["max_tokens"] = 0
    elif wrong < 0.2:
        options["temprature"] = 1
    elif wrong < 0.25:
        params["top_p"] = 7.0
    return {
        "options": options,
        "sampling": params,
        "prompts": dice.sample(PROMPTS, 1 + (dice.random() < 0.4)),
        "session": dice.random() < 0.5,
    }


def api_call(dice: random.Random) -> Call:
    """One HTTP request, sometimes with a wrong field."""
    prompt = dice.choice(PROMPTS)
    most = dice.randrange(1, 30)
    body: dict[str, Any] = {"model": "bundled", "temperature": dice.choice([0, 0.8])}
    body["seed"] = dice.randrange(50)
    which = dice.choice(["chat", "chat", "completions", "responses", "messages", "get"])
    if which == "get":
        path = dice.choice(["/v1/models", "/health", "/nothing", "/v1/models/none"])
        return {"method": "GET", "path": path}
    if which == "chat":
        path = "/v1/chat/completions"
        body |= {"messages": [{"role": "user", "content": prompt}], "max_tokens": most}
        if dice.random() < 0.2:
            body |= {"logprobs": True, "top_logprobs": 2}
        if dice.random() < 0.15:
            body["n"] = 2
        if dice.random() < 0.15:
            body["response_format"] = {"type": "json_object"}
    elif which == "completions":
        path = "/v1/completions"
        body |= {"prompt": prompt, "max_tokens": most}
        if dice.random() < 0.2:
            body["echo"] = True
    elif which == "responses":
        path = "/v1/responses"
        body |= {"input": prompt, "max_output_tokens": most}
        body.pop("seed")
        body["temperature"] = 0
    else:
        path = "/v1/messages"
        body |= {"messages": [{"role": "user", "content": prompt}], "max_tokens": most}
        body.pop("seed")
        body["temperature"] = 0
    if dice.random() < 0.3:
        body["stream"] = True
    wrong = dice.random()
    if wrong < 0.06:
        body["temperature"] = "warm"
    elif wrong < 0.12:
        body["max_tokens"] = -3
    elif wrong < 0.16:
        body["no_such_field"] = 1
    elif wrong < 0.2:
        body["model"] = "another"
    elif wrong < 0.23:
        return {"method": "POST", "path": path, "text": "{"}
    return {"method": "POST", "path": path, "body": body}


def chat_call(dice: random.Random) -> Call:
    """A chat in a terminal: prompts, slash commands, and the way it ends."""
    commands = [
        "/temp 0.7", "/set", "/set max_tokens 12", "/set top_k 9", "/undo", "/retry", "/stats",
        "/think off", "/draft off", "/draft on", "/system Answer in one line only.", "/clear",
        "/help", "/tmep", "/set temp 99", "/export out.md", "/save kept",
    ]  # fmt: skip
    lines = [dice.choice(PROMPTS)]
    for _ in range(dice.randrange(2, 6)):
        lines.append(dice.choice(commands) if dice.random() < 0.6 else dice.choice(PROMPTS))
    return {"argv": ["chat", "--seed", "3", "--max-tokens", "16"], "lines": lines}


def bad_call(dice: random.Random) -> Call:
    """A command line that must be refused."""
    argv = dice.choice(
        [
            ["generate"],
            ["generate", ""],
            ["generate", "hi", "--temp", "warm"],
            ["generate", "hi", "--temp", "-1"],
            ["generate", "hi", "--max-tokens", "0"],
            ["generate", "hi", "--block-size", "1"],
            ["generate", "hi", "--mode", "fast"],
            ["generate", "hi", "--tree-budget", "5"],
            ["generate", "hi", "--accept", "never"],
            ["generate", "hi", "--no-such-flag"],
            ["generate", "hi", "--file", "missing.txt"],
            ["generate", "hi", "--schema", "{"],
            ["generate", "hi", "--preset", "none"],
            ["generate", "hi", "--model", "./missing", "--offline"],
            ["generate", "hi", "--draft", "./missing"],
            ["generate", "hi", "--no-draft", "--mode", "dflash"],
            ["chats", "show", "none"],
            ["models", "rm", "nobody/none"],
            ["nonsense"],
            ["train"],
            ["bench", "--modes", "fast"],
            ["serve", "--port", "99999"],
            ["chat", "--resume", "none"],
        ]
    )
    call: Call = {"argv": argv}
    if dice.random() < 0.25:
        wrong = ["temp = 'x'\n", "= 3\n", "[preset]\nx = 1\n", "no_such = 1\n", "max_tokens = 0\n"]
        call = {"argv": ["generate", "hi", "--max-tokens", "3"], "config": dice.choice(wrong)}
    return call


MAKERS = {
    "cli": cli_call,
    "python": python_call,
    "api": api_call,
    "chat": chat_call,
    "bad": bad_call,
}


def draw_calls(count: int, seed: int) -> list[Call]:
    """The calls of a seed, grouped by kind."""
    calls = []
    for kind, share in SHARES.items():
        for number in range(round(count * share)):
            dice = random.Random(f"{seed} {kind} {number}")
            calls.append({"kind": kind, "name": f"{kind}-{number}", **MAKERS[kind](dice)})
    return calls


# The worker: runs calls with the version of its interpreter


@contextlib.contextmanager
def fresh_home(call: Call) -> Iterator[Path]:
    """A new home and working folder for a call, with its files and configuration."""
    before, folder = dict(os.environ), Path.cwd()
    with tempfile.TemporaryDirectory() as place:
        home = Path(place) / "home"
        work = Path(place) / "work"
        (home / ".config" / "dflash").mkdir(parents=True)
        work.mkdir()
        for name in [name for name in os.environ if name.startswith(("DFLASH_", "XDG_"))]:
            del os.environ[name]
        os.environ |= {"HOME": str(home), "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"}
        os.environ |= call.get("env", {})
        if "config" in call:
            (home / ".config" / "dflash" / "config.toml").write_text(call["config"])
        for name, text in call.get("files", {}).items():
            (work / name).write_text(text)
        os.chdir(work)
        try:
            yield Path(place)
        finally:
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(before)


def written(place: Path) -> dict[str, Any]:
    """The files in a folder: JSON parsed, other files as text."""
    found: dict[str, Any] = {}
    for file in sorted(place.rglob("*")):
        name = re.sub(r"\d{4}-\d\d-\d\d[\w.-]*", "DATE", str(file.relative_to(place)))
        if not file.is_file() or UNSTABLE_FILES.search(name):
            continue
        try:
            text = file.read_text("utf-8")
        except UnicodeDecodeError:
            found[name] = f"{file.stat().st_size} bytes"
            continue
        found[name] = as_data(text) if file.suffix in (".json", ".jsonl") else text
    return found


def as_data(text: str) -> Any:
    """Parsed JSON or JSON lines without measured values; other text unchanged."""
    try:
        return without_measured(json.loads(text))
    except ValueError:
        pass
    try:
        return [without_measured(json.loads(line)) for line in text.splitlines() if line.strip()]
    except ValueError:
        return text


def without_measured(value: Any) -> Any:
    """JSON without measured values, and without those that name a time or place.

    Log-probabilities keep three decimals: their last bits depend on which answers share a pass.
    """
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if not MEASURED.fullmatch(k)}
        return {k: without_measured(v) for k, v in kept.items()}
    if isinstance(value, list):
        return [without_measured(each) for each in value]
    return round(value, 3) if isinstance(value, float) else value


def run_cli(call: Call) -> Result:
    """Run a command line in this process, with pipes."""
    runner = import_module("typer.testing").CliRunner()
    app = import_module("dflash_mlx.cli.app").app
    with fresh_home(call) as place:
        done = runner.invoke(app, call["argv"], input=call.get("stdin"))
        files = written(place)
    result: Result = {"code": done.exit_code, "files": files}
    if call.get("flags_only"):
        result["flags"] = sorted(set(re.findall(r"--[a-z][a-z-]+", done.stdout)))
        return result
    auto = "auto" in call["argv"] or not any(
        flag in call["argv"] for flag in ("--mode", "--no-draft")
    )
    data = as_data(done.stdout)
    if isinstance(data, dict) and auto:  # the number of drafts depends on measured latencies
        data.pop("speculation", None)
    result["stdout"] = data
    result["words"] = done.stderr.replace(str(place), "")
    result["error"] = ["Error" in done.stderr, "Hint" in done.stderr]
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        result["raised"] = type(done.exception).__name__
    return result


class Python:
    """Runs calls from Python with one loaded pair."""

    def __init__(self) -> None:
        self.pair: Any = None

    def run(self, call: Call) -> Result:
        """Run a call: tokens, text and counts of each answer, or the error."""
        import dflash_mlx

        if self.pair is None:
            self.pair = dflash_mlx.load()
        try:
            return {"answers": self._answers(dflash_mlx, call)}
        except Exception as error:
            hint = bool(getattr(error, "hint", ""))
            return {"raised": type(error).__name__, "hint": hint, "words": str(error)}

    def _answers(self, dflash: Any, call: Call) -> list[Any]:
        options = dict(call["options"])
        options["sampling"] = dflash.SamplingParams(**call["sampling"])
        if not call["session"]:
            return [
                self._numbers(dflash.generate(self.pair, p, **options)) for p in call["prompts"]
            ]
        session = dflash.Session(self.pair, mode=options.pop("mode"))
        found = []
        for prompt in call["prompts"]:
            blocks = list(session.stream(prompt, **options))
            tokens = [token for block in blocks for token in block.tokens]
            text = "".join(block.text for block in blocks)
            found.append([tokens, text, blocks[-1].finish_reason])
        return found

    def _numbers(self, result: Any) -> list[Any]:
        return [list(result.tokens), result.text, result.finish_reason, result.stats.generated]


class Api:
    """Sends requests to a server of this version; starts it for the first one."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.port = 0
        self.home = tempfile.mkdtemp()

    def start(self) -> None:
        """Start the server on a free port."""
        line = [sys.executable, "-m", "dflash_mlx.cli", "serve", "--port", "0", "--mode", "dflash"]
        env = {**os.environ, "HOME": self.home, "HF_HUB_OFFLINE": "1"}
        self.process = subprocess.Popen(
            line, env=env, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        assert self.process.stderr is not None
        for text in self.process.stderr:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", text):
                self.port = int(found.group(1))
                break
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def run(self, call: Call) -> Result:
        """Send a request; returns the status and the body."""
        if self.process is None:
            self.start()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        body = call.get("text") or (json.dumps(call["body"]) if "body" in call else None)
        headers = {"Content-Type": "application/json"}
        connection.request(call["method"], call["path"], body, headers)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        if "text/event-stream" in (response.getheader("Content-Type") or ""):
            return {"code": response.status, "text": streamed_text(text)}
        data = as_data(text)
        words = ""
        if isinstance(data, dict) and isinstance(data.get("error"), dict):
            words = data["error"].pop("message", "")
        return {"code": response.status, "data": data, "words": words}

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
        shutil.rmtree(self.home, ignore_errors=True)


def streamed_text(text: str) -> list[str]:
    """The text of each choice of a stream; the cut into events varies between runs."""
    pieces: dict[int, str] = {}

    def add(place: int, text: str | None) -> None:
        pieces[place] = pieces.get(place, "") + (text or "")

    for line in text.splitlines():
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        event = json.loads(line[6:])
        for choice in event.get("choices", []):
            add(choice["index"], choice.get("text") or (choice.get("delta") or {}).get("content"))
        delta = event.get("delta")
        if isinstance(delta, str) and event.get("type", "").endswith("text.delta"):
            add(0, delta)
        elif isinstance(delta, dict):
            add(0, delta.get("text"))
    return [pieces[place] for place in sorted(pieces)]


def run_chat(call: Call) -> Result:
    """Run a chat in its own terminal; returns the exit code and the files that it writes."""
    with fresh_home(call) as place:
        line = [sys.executable, "-m", "dflash_mlx.cli", *call["argv"]]
        child, terminal = pty.fork()
        if child == 0:
            os.environ["TERM"] = "xterm"
            os.execv(line[0], line)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        screen = until_quiet(terminal, b"\xe2\x80\xba")
        for text in call["lines"]:
            os.write(terminal, text.encode() + b"\r")
            screen += until_quiet(terminal, b"\xe2\x80\xba")
        os.write(terminal, b"\x04")
        screen += until_quiet(terminal, None)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGHUP)
        _, status = os.waitpid(child, 0)
        os.close(terminal)
        return {"code": os.waitstatus_to_exitcode(status), "files": written(place)}


def until_quiet(terminal: int, mark: bytes | None) -> bytes:
    """The output until the program waits for a key, which `mark` shows; None: until it ends."""
    found = b""
    until = time.monotonic() + WAIT
    while time.monotonic() < until:
        ready, _, _ = select.select([terminal], [], [], QUIET)
        if not ready:
            if mark is not None and mark in found:
                break
            continue
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # the program has ended
            break
        if not piece:
            break
        if b"\x1b[6n" in piece:  # query for the position of the cursor
            os.write(terminal, b"\x1b[1;1R")
        found += piece
    return found


def work() -> None:
    """Read calls from stdin, one per line, and write their results to stdout."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    python = Python()
    api = Api()
    runs = {"cli": run_cli, "bad": run_cli, "chat": run_chat, "python": python.run, "api": api.run}
    try:
        for line in sys.stdin:
            call = json.loads(line)
            try:
                result = runs[call["kind"]](call)
            except Exception as error:
                result = {"worker": repr(error)}
            json.dump(result, out)
            out.write("\n")
            out.flush()
    finally:
        api.stop()


# The comparison


def results_of(python: str, calls: list[Call], found: list[Result]) -> None:
    """Run all calls with one version; appends to `found`."""
    line = [os.path.abspath(python), str(Path(__file__).resolve()), "--worker"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    silent = subprocess.DEVNULL
    folder = tempfile.gettempdir()
    with subprocess.Popen(line, text=True, stderr=silent, cwd=folder, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for call in calls:
            process.stdin.write(json.dumps(call) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            found.append(json.loads(answer) if answer else {"worker": "it has ended"})
        process.stdin.close()


INTENDED = Path(__file__).with_name("old_new_intended.toml")


def intended(call: Call, differences: list[dict[str, str]]) -> str | None:
    """The reason if a difference in this call is intended, otherwise None."""
    line = json.dumps(call)
    for entry in differences:
        if re.search(entry["call"], line):
            return entry["reason"]
    return None


def without(names: list[str], thing: Any) -> Any:
    """A result without these keys and flags."""
    if isinstance(thing, dict):
        return {key: without(names, part) for key, part in thing.items() if key not in names}
    if isinstance(thing, list):
        return [without(names, part) for part in thing if part not in names]
    return thing


def wording(result: Result) -> str:
    """Remove the messages for people from a result; returns them without numbers."""
    return re.sub(r"[\d.,]+", "#", str(result.pop("words", "")))


def compare(calls: list[Call], old: list[Result], new: list[Result]) -> int:
    """Print a table by kind and each difference; returns the number of unintended ones."""
    wanted = tomllib.loads(INTENDED.read_text("utf-8"))
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in SHARES}
    wrong = 0
    for call, before, after in zip(calls, old, new, strict=True):
        after = without(wanted["added"], after)
        words = wording(before) != wording(after)
        count = counts[call["kind"]]
        count["calls"] += 1
        if before == after:
            count["wording" if words else "equal"] += 1
            continue
        reason = intended(call, wanted["difference"])
        if reason is not None:
            count["intended"] += 1
            continue
        count["different"] += 1
        wrong += 1
        shown = {k: v for k, v in call.items() if k not in ("name", "kind")}
        print(f"{call['name']}: {json.dumps(shown)[:300]}")
        for key in sorted({*before, *after}):
            if before.get(key) != after.get(key):
                print(f"  old {key}: {json.dumps(before.get(key))[:600]}")
                print(f"  new {key}: {json.dumps(after.get(key))[:600]}")
    columns = ("calls", "equal", "wording", "intended", "different")
    print(f"{'':8}" + "".join(f"{name:>11}" for name in columns))
    for kind, count in counts.items():
        print(f"{kind:8}" + "".join(f"{count[name]:>11}" for name in columns))
    return wrong


def main() -> int:
    """Compare two versions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("old", nargs="?")
    parser.add_argument("new", nargs="?")
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="a kind, or the name of one call such as cli-12")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.worker:
        work()
        return 0
    if wanted.new is None:
        parser.error("give two interpreters")
    calls = draw_calls(wanted.calls, wanted.seed)
    if wanted.only:
        calls = [call for call in calls if wanted.only in (call["kind"], call["name"])]
    old: list[Result] = []
    new: list[Result] = []
    began = time.monotonic()
    threads = [
        threading.Thread(target=results_of, args=(python, calls, found))
        for python, found in ((wanted.old, old), (wanted.new, new))
    ]
    for thread in threads:
        thread.start()
    progress = io.TextIOWrapper(sys.stderr.buffer, line_buffering=True)
    while any(thread.is_alive() for thread in threads):
        threads[0].join(5)
        threads[1].join(0.1)
        progress.write(f"\r{min(len(old), len(new))} of {len(calls)} calls")
        progress.flush()
    progress.write(f"\r{len(calls)} calls in {time.monotonic() - began:.0f} s\n")
    return 1 if compare(calls, old, new) else 0


if __name__ == "__main__":
    sys.exit(main())
