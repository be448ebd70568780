"""`dflash bench` at the command line: its report, its object, its file, its exit codes."""

import json
import os
import re
import signal
from importlib import import_module

import pytest
from golden_pair import PAIR
from typer.testing import CliRunner

SMALL = ["--max-tokens", "10", "--repeats", "1", "--temps", "0"]
TWO = ["--modes", "baseline,dflash"]


@pytest.fixture(autouse=True)
def quick_costs(monkeypatch):
    """One pass of each width is enough where nobody looks at its time."""
    monkeypatch.setattr("dflash_mlx.bench.runner.PASSES", 1)


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "own.jsonl"
    lines = [
        {"prompt": "hello", "task": "sums"},
        {"prompt": "winter f!", "task": "sums"},
        {"turns": ["abc", "again"], "task": "chats"},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


@pytest.fixture
def run(cli_app, prompts):
    return lambda *args, **kwargs: CliRunner().invoke(
        cli_app, ["bench", *PAIR, "--prompts", str(prompts), *SMALL, *TWO, *args], **kwargs
    )


@pytest.fixture
def wrong(monkeypatch):
    """An acceptance that keeps one draft too many."""
    outcome, mx = import_module("dflash_mlx.kernels.outcome"), import_module("mlx.core")
    count = outcome.count_prefix
    monkeypatch.setattr(
        outcome, "count_prefix", lambda flags: mx.minimum(count(flags) + 1, flags.size)
    )


def plainly(text):
    """A report with its measured numbers taken out."""
    text = re.sub(r"\d[\d,.]*×|[\d.]+–[\d.]+", "N", text)
    return [re.sub(r"\s+", " ", line).strip() for line in text.splitlines()]


def test_report_through_a_pipe(run):
    result = run("--temps", "0,1")
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    lines = plainly(result.stdout)
    assert lines[0].startswith("machine ")
    assert lines[1].startswith(f"pair {PAIR[1]} float32 · drafter {PAIR[3]} · block 8")
    assert lines[2].startswith("run 3 prompts of own.jsonl · at most 10 tokens · warm-up, then 1 ")
    assert lines[2].endswith("· seed 0 · thinking as the template has it")
    assert [line for line in lines if line.startswith("temperature")] == [
        "temperature 0",
        "temperature 1",
    ]
    assert "task mode tok/s ratio quartiles τ accept same" in lines
    place = result.stdout.splitlines().index("temperature 0") + 1
    head, rule, first, second = result.stdout.splitlines()[place : place + 4]
    assert first.endswith(" –")
    assert len(first) == head.index("accept") + len("accept")  # numbers end below each other
    assert (set(rule), len(rule)) == ({"─"}, len(head))
    assert second.startswith(" ")  # the task is not repeated
    rows = [line.split()[:2] for line in lines if " baseline " in f" {line} "]
    assert ["sums", "baseline"] in rows
    assert ["all", "baseline"] in rows
    assert lines[-1] == "output identical to baseline in 3 of 3 greedy answers"
    assert "temp mode prefill tok/s first token ms memory rows a pass" in lines
    title = lines.index("accepted drafts a pass by position, %, at T=0")
    assert lines[title + 1] == "drafts 1 2 3 4 5 6 7"
    assert lines[title + 3].startswith("dflash ")
    assert result.stderr.splitlines()[-1] == "12 of 12 answers"


def test_quiet_says_nothing_beside_the_report(run):
    result = run("--quiet")
    assert result.stderr == ""
    assert "identical to baseline in 3 of 3" in result.stdout


def test_json_object(run):
    result = run("--json", "--modes", "baseline,dflash,dflash:4", "--check")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["complete"] is True
    assert found["pair"]["target"] == PAIR[1]
    assert found["settings"]["modes"] == ["baseline", "dflash", "dflash:4"]
    assert found["settings"]["max_tokens"] == 10
    assert set(found["versions"]) == {"dflash", "mlx", "mlx_lm", "python"}
    assert {"chip", "cores", "memory", "device"} <= set(found["machine"])
    assert found["differences"] == []
    assert [rows for rows, _ in found["costs"]["verify"]] == [1, 2, 4, 8, 16, 24, 32, 64]
    assert len(found["answers"]) == 9
    widest = {a["mode"]: max(r["rows"] for t in a["turns"] for r in t["rounds"])
              for a in found["answers"]}  # fmt: skip
    assert widest == {"baseline": 1, "dflash": 8, "dflash:4": 4}
    row = next(r for r in found["rows"] if (r["task"], r["mode"]) == ("all", "dflash"))
    assert (row["questions"], row["answers"]) == (3, 4)
    assert (row["identical"], row["compared"]) == (3, 3)
    assert row["speedup"]["low"] <= row["speedup"]["median"] <= row["speedup"]["high"]


def test_check_finds_a_difference(run, wrong):
    """Exit code 3, the place, and the gap between the target's best logits there."""
    result = run("--check")
    assert result.exit_code == 3
    lines = result.stdout[result.stdout.index("output") :].splitlines()
    assert re.fullmatch(r"output   identical to baseline in [0-2] of 3 greedy answers", lines[0])
    assert re.fullmatch(
        r"         own.jsonl \d · dflash · token \d+: .* for .*; the target's two best logits are "
        r"[\d.e-]+ apart",
        lines[1],
    )
    unchecked = run("--json")
    assert unchecked.exit_code == 0
    assert json.loads(unchecked.stdout)["differences"][0]["gap"] > 0


def test_bundled_suite_needs_nothing(cli_app):
    """No model, no prompts, no network: the first of each family, by every mode."""
    arguments = ["bench", "--json", "--max-tokens", "6", "--repeats", "1", "--temps", "0"]
    result = CliRunner().invoke(cli_app, [*arguments, "-n", "2"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [row["task"] for row in found["rows"][::4]] == ["arithmetic", "lists", "all"]
    assert [row["mode"] for row in found["rows"][:4]] == ["baseline", "auto", "dflash", "ddtree"]
    assert found["pair"]["target"] == "bundled"
    assert found["settings"]["think"] is False


def test_rules_that_judge_chains_leave_trees_out(cli_app, prompts):
    """All modes but ddtree, if none are named."""
    flags = ["--prompts", str(prompts), *SMALL, "-n", "1", "--accept", "token", "--json"]
    result = CliRunner().invoke(cli_app, ["bench", *PAIR, *flags])
    assert result.exit_code == 0
    rows = json.loads(result.stdout)["rows"]
    assert {row["mode"] for row in rows} == {"baseline", "auto", "dflash"}
    assert "ddtree is left out: the rule token judges chains" in result.stderr


def test_without_a_drafter(cli_app, prompts):
    arguments = ["bench", *PAIR[:2], "--no-draft", "--prompts", str(prompts), *SMALL]
    result = CliRunner().invoke(cli_app, arguments)
    assert result.exit_code == 0, result.output
    assert "not compared: that needs baseline and temperature 0" in result.stdout
    assert "dflash " not in result.stdout.replace("dflash 0.1.0", "")
    result = CliRunner().invoke(cli_app, [*arguments, "--modes", "dflash"])
    assert result.exit_code == 2
    assert "without a drafter" in result.stderr


def test_interrupt_keeps_what_was_measured(run, monkeypatch, tmp_path):
    """Ctrl-C: the report of what there is, how to go on, exit code 130.

    The next run makes what is missing, and nothing twice; half a line, as after a kill, is dropped.
    """
    runner, asked, file = import_module("dflash_mlx.bench.runner"), [], tmp_path / "r.jsonl"
    ask = runner.answer_question

    def asking(*args):
        asked.append(args)
        if len(asked) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return ask(*args)

    monkeypatch.setattr(runner, "answer_question", asking)
    handler = signal.getsignal(signal.SIGINT)
    result = run("--out", str(file))
    assert result.exit_code == 130
    assert "task " in result.stdout
    assert result.stderr.endswith("stopped after 3 answers; the same command goes on from here\n")
    assert signal.getsignal(signal.SIGINT) is handler
    asked.clear()
    result = run("--json")
    assert result.exit_code == 130
    assert json.loads(result.stdout)["complete"] is False
    assert "--out FILE would have kept it" in result.stderr

    monkeypatch.setattr(runner, "answer_question", ask)
    before = file.read_bytes()
    file.write_bytes(before + b'{"kind": "answer", "suite"')
    for _ in range(2):
        assert run("--out", str(file)).exit_code == 0
        found = file.read_bytes()
        assert found.startswith(before)
        lines = [json.loads(line) for line in found.splitlines()]
        assert [line["kind"] for line in lines] == ["run", *["answer"] * 6, "costs"]
        assert len({(line["number"], line["mode"]) for line in lines[1:-1]}) == 6
        before = found
    other = run("--max-tokens", "11", "--out", str(file))
    assert other.exit_code == 1
    assert "of another run: its settings max tokens is 10, now it is 11." in other.stderr


BAD = [
    (["mmlu"], 2, "there is no suite 'mmlu'."),
    (["bundled", "bundled"], 2, "the suite 'bundled' was given twice."),
    (["--modes", "fast"], 2, "there is no mode 'fast'."),
    (["--modes", "baseline:4"], 2, "the mode baseline has no width."),
    (["--modes", "dflash,dflash"], 2, "a mode was given twice."),
    (["--modes", " , "], 2, "no mode was given."),
    (["--modes", "dflash:999"], 2, "the block_size of 'dflash:999' cannot be '999'."),
    (["--temps", "hot"], 2, "temperatures cannot be 'hot'."),
    (["--temps", "-1"], 2, "temperature cannot be -1.0."),
    (["--temps", ","], 2, "there is nothing to run."),
    (["--repeats", "0"], 2, "--repeats cannot be 0."),
    (["--check", "--modes", "dflash"], 2, "--check needs the mode baseline"),
    (["--check", "--temps", "1"], 2, "--check needs the mode baseline"),
    (["--modes", "baseline,dflash:4", "--block-size", "8"], 2, "no mode takes a block size."),
    (["--prompts", "none.jsonl"], 1, "'none.jsonl' cannot be read (No such file or directory)."),
    (["--out", "no/folder/r.jsonl"], 1, "'no/folder/r.jsonl' cannot be written"),
    (["--accept", "token", "--modes", "ddtree"], 2, "'token' judges chains, not trees."),
    (["--think"], 2, "this target's chat template has no switch for thinking."),
]


@pytest.mark.parametrize(("flags", "code", "message"), BAD)
def test_bad_input_gets_one_sentence_and_a_hint(run, flags, code, message):
    result = run(*flags)
    assert result.exit_code == code
    assert result.stdout == ""
    error, hint = result.stderr.splitlines()[-2:]
    assert error.startswith("Error: ")
    assert message in error
    assert hint.startswith("Hint:  ")


def test_mode_leads_to_modes(run):
    listed = run("--help").stdout.split()
    assert "--modes" in listed
    assert not {"--mode", "--tree-budget"} & set(listed)
    result = run("--mode", "dflash")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1] == "Hint:  did you mean --modes?"
    assert run("--tree-budget", "8").exit_code == 2
    assert run("--limit", "1", "--modes", "baseline,ddtree:8").exit_code == 0
