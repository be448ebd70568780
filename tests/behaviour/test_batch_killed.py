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


def test_killed_twice(tmp_path: Path) -> None:
    """Few prompts, whose answers take a while."""
    prompts = [f"{word} {number}" for number, word in enumerate(WORDS)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    words = ["--batch", "prompts.jsonl", "--out", "answers.jsonl", "--max-sequences", "2"]
    words += [*PAIR, "--max-tokens", str(MAX_TOKENS)]
    command = [sys.executable, "-m", "dflash_mlx.cli", "generate", *words]
    out = tmp_path / "answers.jsonl"
    dice = random.Random(1)
    for lines in (2, 5):
        process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE)
        while not out.exists() or out.read_bytes().count(b"\n") < lines:
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.001)
        time.sleep(dice.random() * 0.02)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    assert out.read_bytes().count(b"\n") < len(prompts)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert f"{len(prompts)} of {len(prompts)} prompts answered" in done.stderr
    found = [json.loads(line) for line in out.read_text().splitlines()]
    texts = {answer["key"]: answer["text"] for answer in found}
    assert len(found) == len(texts) == len(prompts)
    pair = tiny.golden_pair("qwen3_full")
    for number, prompt in enumerate(prompts, 1):
        alone = dflash_mlx.generate(pair, prompt, max_tokens=MAX_TOKENS)
        assert texts[str(number)] == alone.text.lstrip("\n"), prompt  # as `generate --json` has it
