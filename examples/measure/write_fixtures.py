"""Writes the files of tests/fixtures: what a given version of `dflash` leaves on disk.

    python examples/measure/write_fixtures.py DFLASH FOLDER

DFLASH is the program of an environment with that version installed. FOLDER is emptied first, all
but its README.md. Paths of this machine are replaced by neutral ones.
tests/behaviour/test_old_files.py reads the files.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from typed_chat import run_typed

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "qwen3_full"
NEUTRAL_HOME = "/home/user"
MADE_AT = 1_700_000_000  # Unix time: the time of change of the copied weights
THINKING = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '</think>' }}"
    "{% else %}{{ '<think>' }}{% endif %}{% endif %}"
)
CONFIG = """\
# The settings of every command.
temp = 0.0
max-tokens = 24
stop = ["STOP"]

[preset.review]
system = "You review code. Name each fault and its line."
temp = 0.3
seed = 5
max-tokens = 12

[preset.tree]
mode = "ddtree"
tree-budget = 16

[models.bundled]
block-size = 8

[models."{home}/models/target"]
max-tokens = 4

[mcp.weather]
command = "python3"
args = ["mcp_server.py"]

[mcp.off]
url = "http://127.0.0.1:9/mcp"
headers = {{ Authorization = "Bearer ${{TRACKER_TOKEN}}" }}
disabled = true
"""
TRAIN = "--layers 1 --block-size 4 --taps 3 --intermediate 32 --steps 4 --batch 2 --max-tokens 16"
TRAIN += " --save-every 2 --eval-every 100 --val-share 0.2"
PROMPTS = "".join(f'"say {number * number}"\n' for number in range(6))
SYSTEM = "You add numbers."


class Maker:
    """Runs one version of the program in a scratch home folder."""

    def __init__(self, program: str, home: Path):
        self.program = program
        self.home = home
        self.target = home / "models" / "target"
        self.drafter = home / "models" / "draft"
        self.thinker = home / "models" / "thinker"
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "TERM": "dumb",
            "LANG": "C.UTF-8",
            "OPENBLAS_NUM_THREADS": "1",
            "DFLASH_MODE": "dflash",
            "EDITOR": "sed -i s/8/6/g",
        }

    def run(self, *arguments: str | Path, without_mode: bool = False, **more: str) -> str:
        """Run a command to its end; returns its stdout."""
        env = {**self.env, **more}
        if without_mode:
            del env["DFLASH_MODE"]
        done = subprocess.run(
            [self.program, *map(str, arguments)],
            env=env,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(f"{arguments} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def chat(self, arguments: Sequence[str | Path], lines: Sequence[str]) -> None:
        """Type lines into a chat; the last one must leave it."""
        command = [self.program, "chat", "--plain", *map(str, arguments)]
        code, shown = run_typed(command, lines, self.env, self.home)
        if code:
            raise SystemExit(f"a chat ended with {code}: {''.join(shown)}")
        print("".join(shown))

    def models(self) -> None:
        """Copy the random pair of the tests, and a second time with a template that thinks.

        The prefix cache identifies weights by their time of change, too, so it is set here.
        """
        shutil.copytree(GOLDEN / "target", self.target)
        shutil.copytree(GOLDEN / "draft", self.drafter)
        shutil.copytree(GOLDEN / "target", self.thinker)
        path = self.thinker / "tokenizer_config.json"
        config = json.loads(path.read_text("utf-8"))
        path.write_text(json.dumps({**config, "chat_template": THINKING}), "utf-8")
        for file in (self.home / "models").rglob("*.*"):
            os.utime(file, (MADE_AT, MADE_AT))

    def chats(self) -> None:
        """Write chats of every kind, the history of prompts, and a run log."""
        (self.home / "notes.md").write_text("Buy milk and 12 eggs.\n", "utf-8")
        self.chat(
            ["--log", "chat.log", "--log-text"], ["What is 7 plus 5?", "And 25 plus 17?", "/exit"]
        )
        self.chat(
            ["--system", SYSTEM],
            [
                *("What is 3 plus 4?", "What is 9 plus 9?", "/undo", "What is 8 plus 8?"),
                *("/retry", "/edit", "/save sums", "/fork more sums", "What is 2 plus 2?", "/exit"),
            ],
        )
        self.chat([], ["What does @notes.md say?", "/exit"])
        self.chat(
            ["--temp", "0.8", "--seed", "3"],
            ["/save drawn", "Good evening!", "/set seed 4", "Good morning!", "/exit"],
        )
        pair = ["-m", self.thinker, "-d", self.drafter, "--max-tokens", "24"]
        self.chat(pair, ["/save thoughts", "engine winter.", "/think off", "water signal", "/exit"])

    def tools(self) -> None:
        """Write a chat with calls of a tool that the user allows always."""
        shutil.copy(ROOT / "tests" / "support" / "mcp_server.py", self.home)
        address = self.home / "address"
        command = [
            sys.executable,
            str(ROOT / "tests" / "support" / "openai_server.py"),
            str(address),
        ]
        server = subprocess.Popen(command)
        try:
            while not address.exists() or not address.read_text("utf-8"):
                time.sleep(0.05)
            lines = ["/save weather", "Is it dry in Brno?", "a", "/exit"]
            self.chat(["-m", address.read_text("utf-8")], lines)
        finally:
            server.kill()
            server.wait()

    def config(self) -> None:
        """Write the config file by hand, as the README describes it."""
        path = self.home / ".config" / "dflash" / "config.toml"
        path.parent.mkdir(parents=True)
        path.write_text(CONFIG.format(home=NEUTRAL_HOME), "utf-8")

    def caches(self) -> None:
        """Write a prefix cache on disk, and the costs that the mode auto measures."""
        pair = ["-m", self.target, "-d", self.drafter, "--max-tokens", "8"]
        self.run("generate", *pair, "--cache-disk", "50MB", "engine winter.")
        self.run("generate", "What is 7 plus 5?", "--max-tokens", "40", without_mode=True)

    def results(self) -> None:
        """Write the results of a benchmark: the file to continue from, and the report."""
        flags = "-n 1 --max-tokens 8 --repeats 1 --modes dflash:8,baseline --temps 0".split()
        report = self.run("bench", *flags, "--out", "bench.jsonl", "--json")
        (self.home / "bench.json").write_text(report, "utf-8")
        self.run(
            "generate", "What is 7 plus 5?", "--max-tokens", "40", "--log", "run.log", "--log-text"
        )

    def training(self) -> None:
        """Train a tiny drafter, and save the same run as if power was lost after step 2."""
        (self.home / "prompts.jsonl").write_text(PROMPTS, "utf-8")
        out = self.home / "trained"
        self.run("train", "prompts.jsonl", "-m", self.target, "--out", out, *TRAIN.split())
        stopped = self.home / "stopped"
        shutil.copytree(out, stopped, ignore=shutil.ignore_patterns("taps", "step-000004"))
        (stopped / "config.json").unlink()
        (stopped / "model.safetensors").unlink()
        lines = (stopped / "log.jsonl").read_text("utf-8").splitlines(keepends=True)
        (stopped / "log.jsonl").write_text("".join(lines[:2]), "utf-8")
        shutil.rmtree(out / "taps")
        shutil.rmtree(out / "checkpoints")

    def answers(self) -> None:
        """Save the output of some commands for comparison."""
        pair = ["-m", self.target, "-d", self.home / "trained", "--max-tokens", "24"]
        disk = ["-m", self.target, "-d", self.drafter, "--max-tokens", "8", "--cache-disk", "50MB"]
        found = {
            "trained": json.loads(self.run("generate", *pair, "--json", "engine winter.")),
            "cached": json.loads(self.run("generate", *disk, "--json", "engine winter.")),
            "cache list": json.loads(self.run("cache", "list", "--json")),
        }
        kept = ("text", "tokens", "usage", "speculation", "finish_reason", "versions")
        for name in ("trained", "cached"):
            found[name] = {key: found[name][key] for key in kept}
        (self.home / "answers.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def copy(home: Path, folder: Path) -> None:
    """Copy the files to the fixtures, with neutral paths."""
    for name in ("data", "config", "cache"):
        source = {"data": ".local/share", "config": ".config", "cache": ".cache"}[name]
        shutil.copytree(home / source / "dflash", folder / name)
    for name in ("trained", "stopped"):
        shutil.copytree(home / name, folder / name)
    for name in (
        "prompts.jsonl",
        "bench.jsonl",
        "bench.json",
        "run.log",
        "chat.log",
        "answers.json",
    ):
        shutil.copy(home / name, folder)
    for file in folder.rglob("*"):
        if file.is_file() and file.suffix != ".safetensors":
            text = file.read_text("utf-8").replace(str(home), NEUTRAL_HOME)
            text = text.replace(platform.platform(), "Linux").replace(platform.release(), "6")
            file.write_text(re.sub(r"127\.0\.0\.1:\d{4,}", "127.0.0.1:8000", text), "utf-8")
        file.chmod(0o755 if file.is_dir() else 0o644)


def main() -> None:
    """Make all fixtures."""
    program, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if old.is_dir():
            shutil.rmtree(old)
        elif old.name != "README.md":
            old.unlink()
    with tempfile.TemporaryDirectory() as scratch:
        maker = Maker(str(Path(program).absolute()), Path(scratch).resolve())
        maker.models()
        maker.chats()
        maker.caches()
        maker.results()
        maker.training()
        maker.answers()
        maker.config()  # applies from here on
        maker.tools()
        copy(maker.home, folder)


if __name__ == "__main__":
    main()
