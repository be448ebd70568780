"""Thinking and effort on the command line: told to the template, or refused; never left out."""

import json
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import templates
import typer
from golden_pair import CHAT, GOLDEN, PAIR
from typer.testing import CliRunner, Result

from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.options import GenerationOptions
from dflash_mlx.resolved_pair import ResolvedPair

# The golden vocabulary has <think>, and no marks of an answer of several messages.
EFFORT = templates.PLAIN + "{{ reasoning_effort | default('medium') }}"


@pytest.fixture
def run(cli_app: typer.Typer, tmp_path: Path) -> Callable[..., Result]:
    def run(*arguments: str, template: str = "", command: str = "generate", **more: Any) -> Result:
        folder = tmp_path / "target"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(PAIR[1], folder)
        path = folder / "tokenizer_config.json"
        config = json.loads(path.read_text("utf-8"))
        path.write_text(
            json.dumps({**config, "chat_template": template or config["chat_template"]})
        )
        names = ["-m", str(folder), *PAIR[2:], "--max-tokens", "3"]
        return CliRunner().invoke(cli_app, [command, *names, *arguments], **more)

    return run


def prompt_size(result: Result) -> int:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["usage"]["prompt"]


def test_an_effort_is_told(run: Callable[..., Result]) -> None:
    """Also when both ways are compared."""
    plain = prompt_size(run("--json", "why", template=EFFORT))
    assert prompt_size(run("--json", "why", "--effort", "low", template=EFFORT)) == plain - 3
    both = run("--json", "why", "--effort", "low", "--compare", template=EFFORT)
    assert prompt_size(both) == plain - 3


def test_thinking(run: Callable[..., Result]) -> None:
    """Apart from the answer; shown on stderr if asked for."""
    config = json.loads((GOLDEN / "target" / "tokenizer_config.json").read_text("utf-8"))
    template = config["chat_template"] + "{% if enable_thinking %}<think>\n{% endif %}"

    def said(*flags: str) -> Result:
        return run(CHAT, "--max-tokens", "40", *flags, template=template)

    found = json.loads(said("--json", "--think").stdout)
    assert found["reasoning"]
    assert found["text"] == ""
    for flags in (["--json", "--no-think"], ["--json"]):
        assert json.loads(said(*flags).stdout)["reasoning"] == ""
    assert said("--think").stdout == ""
    aloud = said("--think", "--show-thinking")
    assert aloud.stdout == ""
    assert aloud.stderr == (
        f"[thinking]\n{found['reasoning']}\n[end of thinking]\n"
        "the model ended in its thinking and gave no answer\n"
        "the answer was cut by --max-tokens, after 40 tokens\n"
    )


@pytest.mark.parametrize(
    ("flags", "template", "says", "hint"),
    [
        (["--think"], "", "has no switch for thinking", "leave the switch out"),
        (["--no-think"], EFFORT, "has no switch for thinking", "low, medium or high"),
        (["--effort", "low"], "", "has no reasoning effort", "leave the effort out"),
        (["--effort", "low"], templates.GLM, "has no reasoning effort", "--no-think"),
        (["--effort", "xhigh"], EFFORT, "cannot be 'xhigh'", "low, medium or high"),
        (["--effort", "lots"], EFFORT, "'lots' is not one of", "--help"),
        (["--effort", "low", "--no-think"], templates.BOTH, "needs thinking", "one of them"),
        (["--raw", "--think"], templates.GLM, "sent without one", "without --raw"),
    ],
)
def test_what_is_not_known_is_refused(
    flags: list[str], template: str, says: str, hint: str, run: Callable[..., Result]
) -> None:
    """Exit 2 and nothing on stdout, also from `dflash chat`."""
    for command, given in (("generate", ["why"]), ("chat", [])):
        if command == "chat" and "--raw" in flags:
            continue
        result = run(*given, *flags, template=template, command=command, input="why")
        assert (result.exit_code, result.stdout) == (2, "")
        assert says in result.stderr
        assert hint in result.stderr


def test_settings_for_all_models(
    run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The config file and variables are for the templates that know them; flags go before them."""
    path = tmp_path / "home" / ".config" / "dflash" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text("think = false\n")
    plain = prompt_size(run("--json", "why"))
    quiet = prompt_size(run("--json", "why", template=templates.QWEN))
    assert prompt_size(run("--json", "why", "--think", template=templates.QWEN)) == quiet - 6
    monkeypatch.setenv("DFLASH_EFFORT", "low")
    path.write_text("")
    assert prompt_size(run("--json", "why")) == plain
    low = prompt_size(run("--json", "why", template=EFFORT))
    assert prompt_size(run("--json", "why", "--effort", "high", template=EFFORT)) == low + 1
    assert prompt_size(run("--json", "why", "--no-think", template=templates.BOTH))
    assert prompt_size(run("--json", "--raw", "why", template=EFFORT)) == 3


def test_what_is_left_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    thinking = import_module("dflash_mlx.cli.resolve")
    output = import_module("dflash_mlx.cli.terminal.output")
    told: list[str] = []
    out = output.Output()
    monkeypatch.setattr(out, "note", told.append)
    template = templates.template_of("gpt_oss")
    kept = thinking.drop_unknown_thinking(
        GenerationOptions(think=False, reasoning_effort="low"), template, out
    )
    assert (kept.think, kept.reasoning_effort) == (None, "low")
    assert told == ["  this model's template knows no switch for thinking: it goes its own way"]


def test_code_of_a_tokenizer(run: Callable[..., Result], tmp_path: Path) -> None:
    """It needs the flag; what the flag says reaches the loader."""
    pairs = import_module("dflash_mlx.pair")
    seen: list[bool] = []

    def load(resolved: ResolvedPair, *progress: Any) -> Any:
        seen.append(resolved.options.trust_remote_code)
        return real(resolved, *progress)

    real = pairs.open_pair
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "open_pair", load)
        for flags in ([], ["--trust-remote-code"]):
            assert run("why", *flags).exit_code == 0
            assert run(*flags, command="chat", input="why").exit_code == 0
    assert seen == [False, False, True, True]


def test_code_of_a_tokenizer_in_training(
    cli_app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def load(checkpoint: Checkpoint, *, trust_remote_code: bool) -> None:
        seen.append(trust_remote_code)
        raise DFlashError("seen.")

    monkeypatch.setattr("dflash_mlx.pair.load_target", load)
    (prompts := tmp_path / "prompts.jsonl").write_text('"why"\n')
    for flags in ([], ["--trust-remote-code"]):
        arguments = ["train", str(prompts), "--out", str(tmp_path / "out"), "-m", PAIR[1], *flags]
        assert CliRunner().invoke(cli_app, arguments).exit_code == 1
    assert seen == [False, True]
