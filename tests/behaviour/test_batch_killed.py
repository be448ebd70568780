"""kill -9 during `dflash generate --batch`: each prompt is answered once, with the answer alone."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import tiny
from golden_pair import PAIR

import dflash_mlx

MAX_TOKENS = 40
WORDS = "river stone lantern paper boat amber north harbor wind meter light engine tea".split()


class Killed:
    """Runs of one batch of the golden pair in a folder."""

    def __init__(self, folder: Path, prompts: list[str]):
        self.prompts = prompts
        self.out = folder / "answers.jsonl"
        self._folder = folder
        words = ["--batch", "prompts.jsonl", "--out", "answers.jsonl", "--max-sequences", "2"]
        words += [*PAIR, "--max-tokens", str(MAX_TOKENS)]
        self._command = [sys.executable, "-m", "dflash_mlx.cli", "generate", *words]
        lines = [json.dumps(prompt) for prompt in prompts]
        (folder / "prompts.jsonl").write_text("\n".join(lines))

    @property
    def lines(self) -> int:
        return self.out.read_bytes().count(b"\n") if self.out.exists() else 0

    def kill_after(self, more: int, dice: random.Random) -> None:
        before = self.lines
        process = subprocess.Popen(self._command, cwd=self._folder, stderr=subprocess.PIPE)
        while self.lines < before + more:
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.001)
        time.sleep(dice.random() * 0.02)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL

    def finish(self) -> str:
        done = subprocess.run(self._command, cwd=self._folder, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        return done.stderr

    def check(self) -> None:
        found = [json.loads(line) for line in self.out.read_text().splitlines()]
        keys = [str(number) for number in range(1, len(self.prompts) + 1)]
        assert sorted(answer["key"] for answer in found) == sorted(keys)
        texts = {answer["key"]: answer["text"] for answer in found}
        pair = tiny.golden_pair("qwen3_full")
        for key, prompt in zip(keys, self.prompts, strict=True):
            alone = dflash_mlx.generate(pair, prompt, max_tokens=MAX_TOKENS)
            assert texts[key] == alone.text.lstrip("\n"), key  # as `generate --json` has it


def test_killed_twice(tmp_path: Path) -> None:
    """Few prompts, whose answers take a while."""
    prompts = [f"{word} {number}" for number, word in enumerate(WORDS)]
    killed = Killed(tmp_path, prompts)
    dice = random.Random(1)
    for more in (2, 3):
        killed.kill_after(more, dice)
    assert 5 <= killed.lines < len(prompts)
    summary = killed.finish()
    assert f"{len(prompts)} of {len(prompts)} prompts answered" in summary
    killed.check()
