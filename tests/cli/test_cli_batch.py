"""`dflash generate --batch`: each prompt is answered once, as alone, whatever ends a run."""

import json
import os
import signal
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from golden_pair import PAIR
from typer.testing import CliRunner, Result

from dflash_mlx.engine.stats import Stats
from dflash_mlx.files.line_file import LineFile

PROMPTS = ["river", "stone, lantern", "paper boat", "amber", "north", "harbor wind and a meter"]
SHORT = ["--max-tokens", "12"]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines: list[Any] = [*PROMPTS]
    lines[1] = {"prompt": PROMPTS[1], "key": "second"}
    lines[2] = {"messages": [{"role": "user", "content": PROMPTS[2]}], "key": 3}
    Path("prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))


@pytest.fixture
def batch(cli_app: Any) -> Callable[..., Result]:
    def run(*flags: str) -> Result:
        words = ["--batch", "prompts.jsonl", "--out", "answers.jsonl", *SHORT, *flags]
        return CliRunner().invoke(cli_app, ["generate", *PAIR, *words])

    return run


def answers() -> list[dict[str, Any]]:
    *lines, rest = Path("answers.jsonl").read_text().split("\n")
    assert not rest
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def alone() -> dict[str, str]:
    app = import_module("dflash_mlx.cli.app").app
    texts = {}
    for key, prompt in zip(["1", "second", "3", "4", "5", "6"], PROMPTS, strict=True):
        result = CliRunner().invoke(app, ["generate", *PAIR, prompt, *SHORT, "--mode", "dflash"])
        texts[key] = result.stdout.removesuffix("\n")
    return texts


def check_answers(alone: dict[str, str]) -> None:
    found = answers()
    assert len(found) == len(alone)
    assert {answer["key"]: answer["text"] for answer in found} == alone


def test_each_prompt_is_answered_as_alone(
    batch: Callable[..., Result], alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has the numbers. A flag without effect would be refused, but not a variable."""
    monkeypatch.setenv("DFLASH_STATS", "1")
    result = batch("--log", "run.log")
    records = map(json.loads, Path("run.log").read_text().splitlines())
    (record,) = [record for record in records if record["type"] == "batch"]
    assert (record["prompts"], record["answered"], record["tokens"]) == (6, 6, 72)
    assert "river" not in Path("run.log").read_text()
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("  6 of 6 prompts answered · 72 tokens in ")
    assert result.stderr.count("\n") == 1
    check_answers(alone)
    first = next(answer for answer in answers() if answer["key"] == "1")
    assert first["finish_reason"] == "length"
    assert first["usage"]["generated"] == 12


def test_what_is_answered_is_not_asked_again(
    batch: Callable[..., Result], alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even a model is loaded. Another run that writes to the file is named."""
    batch()
    with LineFile(Path("answers.jsonl"), "run"):
        other = batch()
    assert other.exit_code == 1
    assert "another run is writing to 'answers.jsonl'." in other.stderr
    before = Path("answers.jsonl").read_bytes()
    monkeypatch.delattr("dflash_mlx.cli.batch.load_pair")
    result = batch("--block-size", "3")
    assert result.exit_code == 0
    assert result.stderr == "  6 of 6 prompts answered · 6 before this run\n"
    assert Path("answers.jsonl").read_bytes() == before
    assert batch("-q").stderr == ""


@pytest.mark.parametrize("kept", [1, 30, -2, -1, 0], ids=str)
def test_a_line_that_was_cut_is_written_again(
    batch: Callable[..., Result], alone: Any, kept: int
) -> None:
    """As kill -9 leaves it: after so many bytes, or before the last ones."""
    batch()
    *lines, last, _ = Path("answers.jsonl").read_bytes().split(b"\n")
    Path("answers.jsonl").write_bytes(b"\n".join([*lines, (last + b"\n")[:kept]]))
    result = batch()
    assert result.exit_code == 0
    assert "5 before this run" in result.stderr
    check_answers(alone)


def test_ctrl_c_keeps_what_is_answered(
    batch: Callable[..., Result], alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = LineFile.append

    def interrupted(self: LineFile, *given: Any, **options: Any) -> None:
        append(self, *given, **options)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(LineFile, "append", interrupted)
        result = batch("--max-sequences", "2")
    assert result.exit_code == 130
    assert "stopped: the same command goes on from here" in result.stderr
    assert "Traceback" not in result.output
    assert 1 <= len(answers()) < len(PROMPTS)
    assert batch().exit_code == 0
    check_answers(alone)


@pytest.mark.parametrize(
    "content", ["dear diary", "a\nb\n", '{"key": "1", "text": "a"}\n', '{"id": 1', "[1]\n\n"]
)
def test_another_file_is_left_alone(batch: Callable[..., Result], content: str) -> None:
    Path("answers.jsonl").write_text(content)
    result = batch()
    assert result.exit_code == 2
    assert "is not an answer of --batch." in result.stderr
    assert Path("answers.jsonl").read_text() == content


def test_answers_with_other_options_are_refused(batch: Callable[..., Result]) -> None:
    """Also to another prompt with the same key. Ways to draft do not change answers."""
    batch()
    for flags in (["--temp", "1"], ["--system", "s"], ["--raw"], ["--stop", "x"], ["--seed", "1"]):
        result = batch(*flags)
        if "--raw" in flags:
            assert "messages cannot be sent with --raw" in result.stderr
        else:
            assert "for another prompt, or with another model or other options" in result.stderr
        assert result.exit_code == 2
    assert batch("--block-size", "3").exit_code == 0
    Path("prompts.jsonl").write_text('"another"\n')
    assert "answers the key '1' for another prompt" in batch().stderr


def test_more_prompts_are_added_later(batch: Callable[..., Result]) -> None:
    """Answers whose prompts were taken out are told."""
    batch()
    with Path("prompts.jsonl").open("a") as file:
        file.write('\n"one more"\n')
    result = batch()
    assert result.exit_code == 0
    assert "7 of 7 prompts answered · 6 before this run" in result.stderr
    Path("prompts.jsonl").write_text('"river"\n')
    assert "6 answers in answers.jsonl belong to no line of prompts.jsonl" in batch().stderr


def test_a_seed_gives_the_same_answers_again(batch: Callable[..., Result]) -> None:
    """In any order, with any number of sequences."""
    batch("--temp", "1", "--seed", "7")
    first = {answer["key"]: answer["text"] for answer in answers()}
    Path("answers.jsonl").unlink()
    batch("--temp", "1", "--seed", "7", "--max-sequences", "1")
    assert {answer["key"]: answer["text"] for answer in answers()} == first
    assert {answer["seed"] for answer in answers()} == {7}


def test_a_prompt_that_cannot_be_answered_has_a_line(batch: Callable[..., Result]) -> None:
    """The others are answered; the exit code says that some are not, again and again."""
    long = "x" * 100_000
    chat = {"messages": [{"role": "user", "content": long}], "key": "long"}
    Path("prompts.jsonl").write_text("\n".join(map(json.dumps, [long, "river", chat])))
    for _ in range(2):
        result = batch()
        assert result.exit_code == 1
        assert "1 of 3 prompts answered · 2 errors" in result.stderr
        assert "2 prompts have an error." in result.stderr
        assert "answers.jsonl say why" in result.stderr
    found = {answer["key"]: answer for answer in answers()}
    assert "error" not in found["2"]
    for key in ("1", "long"):
        assert found[key]["error"].startswith("prompt is too long")


def test_a_form_that_is_cut_is_an_error(batch: Callable[..., Result]) -> None:
    """As for one prompt; the text is kept."""
    Path("prompts.jsonl").write_text('"river"\n')
    result = batch("--grammar", 'start: "a" /[a-z#., 0-9A-Z]*/ ";"')
    assert result.exit_code == 1
    assert "0 of 1 prompt answered · 1 error" in result.stderr
    (answer,) = answers()
    assert answer["text"].startswith("a")
    assert answer["error"].startswith("the text does not follow its schema or grammar (")


def test_what_failed_is_tried_again(
    batch: Callable[..., Result], alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault that is not the prompt's leaves no line, and does not end the run."""
    record, seen = Stats.record, []
    errors = import_module("dflash_mlx.errors")

    def failing(self: Stats, block: Any) -> None:
        seen.append(block)
        if len(seen) == 3:
            raise errors.DFlashError("the cable is out", hint="plug it in")
        record(self, block)

    with monkeypatch.context() as patch:
        patch.setattr(Stats, "record", failing)
        result = batch()
    assert result.exit_code == 1
    assert "5 of 6 prompts answered · 1 failed" in result.stderr
    assert "the cable is out" in result.stderr
    assert "the same command tries them again" in result.stderr
    assert batch().exit_code == 0
    check_answers(alone)


def test_plain_lines(tmp_path: Path) -> None:
    """A line was refused unless it was JSON; a text may be a number, and has commas."""
    batch_file = import_module("dflash_mlx.batch_file")
    Path("plain.txt").write_text("Why, then?\n\n7\n  true\r\n")
    lines = batch_file.read_batch(Path("plain.txt"), batch_file.Defaults("m", ""))
    assert [line.prompt[0]["content"] for line in lines] == ["Why, then?", "7", "true"]
    assert [line.key for line in lines] == ["1", "3", "4"]


WRONG = [
    ("{", "it is not JSON."),
    ("[7]", "it is neither a text nor an object."),
    ('""', "prompt must be a text that is not empty."),
    ('{"prompt": "a", "tepm": 1}', "there is no field 'tepm'"),
    ('{"prompt": "a", "messages": []}', "either a prompt or messages"),
    ('{"prompt": "a", "key": true}', "key must be a text or a number."),
    ('{"prompt": "a", "key": "1"}', "line 1 has the key '1', too."),
    ('{"messages": []}', "messages must be a list of messages"),
    ('{"messages": ["a"]}', "messages must be a list of messages"),
    ('{"custom_id": "a", "method": "POST"}', "there is no field 'custom_id'"),
]


@pytest.mark.parametrize(("line", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_wrong_line_is_named_before_anything_is_loaded(
    batch: Callable[..., Result], line: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No answer is lost to a slip in the last line of a night's work."""
    monkeypatch.delattr("dflash_mlx.cli.batch.load_pair")
    Path("prompts.jsonl").write_text(f'"river"\n\n{line}\n')
    result = batch()
    assert result.exit_code == 2
    assert "line 3 of 'prompts.jsonl': " in result.stderr
    assert message in result.stderr
    assert "Hint:" in result.stderr
    assert not Path("answers.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "a.jsonl"], "--out needs --batch."),
        (["--max-sequences", "2"], "--max-sequences needs --batch."),
        (["--batch", "prompts.jsonl"], "--batch needs a file for the answers."),
        (["--batch", "a", "--out", "./a"], "--batch and --out are the same file."),
        (["--batch", "none", "--out", "a"], "'none' cannot be read"),
        (["--batch", "prompts.jsonl", "--out", "a", "hello"], "PROMPT has no effect"),
        (["--batch", "prompts.jsonl", "--out", "a", "--json"], "--json has no effect"),
        (["--batch", "prompts.jsonl", "--out", "a", "--no-stats"], "--stats has no effect"),
        (["--batch", "prompts.jsonl", "--out", "no/a"], "'no/a' cannot be written"),
        (
            ["-m", "http://127.0.0.1:9/v1", "--batch", "prompts.jsonl", "--out", "a"],
            "--batch needs a model on this machine",
        ),
    ],
)
def test_flags_that_contradict_each_other(cli_app: Any, words: list[str], message: str) -> None:
    pair = [] if "-m" in words else PAIR
    result = CliRunner().invoke(cli_app, ["generate", *pair, *words])
    assert result.exit_code in (1, 2)
    assert message in result.stderr
