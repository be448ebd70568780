"""The sampling that a model recommends: read, and taken in chats, by servers, or where asked."""

import json
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import tiny
import typer
from golden_pair import PAIR
from recorded_chat import RecordedState, recorded_chat
from typer.testing import CliRunner, Result

from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.files.recommended import recommended_sampling
from dflash_mlx.options import SamplingParams

commands = import_module("dflash_mlx.cli.chat.commands")
dialogue = import_module("dflash_mlx.cli.chat.dialogue")
settings = import_module("dflash_mlx.cli.chat.settings")

QWEN = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "eos_token_id": [1]}
SAID = "temp 0.6, top-p 0.95, top-k 20 (generation_config.json)"


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (QWEN, {"temperature": 0.6, "top_p": 0.95, "top_k": 20}),
        ({"do_sample": True, "eos_token_id": 2}, {"temperature": 1.0}),
        ({"temperature": 0.7, "min_p": 0, "top_k": None}, {"temperature": 0.7, "min_p": 0.0}),
        ({"do_sample": False, "temperature": 0.7}, {}),
        ({"top_p": 0.9}, {}),
        ({"temperature": 0}, {}),
        ({}, {}),
        (None, {}),
    ],
)
def test_what_a_file_recommends(tmp_path: Path, raw: Any, found: dict[str, float]) -> None:
    """As transformers reads it: nothing without a temperature above 0."""
    if raw is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(raw))
    assert recommended_sampling(Checkpoint(tmp_path, {})) == found


@pytest.mark.parametrize("raw", ["[]", "{", '{"temperature": "hot"}', '{"top_p": 2}'])
def test_a_damaged_file(tmp_path: Path, raw: str) -> None:
    (tmp_path / "generation_config.json").write_text(raw)
    with pytest.raises(DFlashError, match=r"generation_config\.json"):
        recommended_sampling(Checkpoint(tmp_path, {}))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    for file in Path(PAIR[1]).iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "generation_config.json").write_text(json.dumps(QWEN))
    return folder


@pytest.fixture
def sampling(cli_app: typer.Typer, target: Path) -> Callable[..., tuple[float, ...]]:
    """Temperature, top-p and top-k of an answer with these flags."""

    def run(*flags: str) -> tuple[float, ...]:
        args = ["generate", "--raw", "hi", "--json", "--max-tokens", "2", "-m", str(target)]
        done = CliRunner().invoke(cli_app, [*args, *PAIR[2:], *flags])
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)["sampling"]
        return found["temperature"], found["top_p"], found["top_k"]

    return run


def test_never_by_itself_in_a_command_and_who_counts_first(
    sampling: Callable[..., tuple[float, ...]],
    config: Callable[[str], int],
    monkeypatch: pytest.MonkeyPatch,
    target: Path,
) -> None:
    """Nothing is taken unasked; what is said as near as the wish, or nearer, stays."""
    assert sampling() == (0, 1, 0)
    assert sampling("--sampling", "recommended") == (0.6, 0.95, 20)
    assert sampling("--sampling", "recommended", "--temp", "0.2") == (0.2, 0.95, 20)
    config("temp = 0.4\n[preset.p]\nsampling = 'recommended'\ntop-k = 7\n")
    assert sampling("--sampling", "recommended") == (0.6, 0.95, 20)  # the flag is nearer
    assert sampling("-p", "p") == (0.6, 0.95, 7)
    assert sampling("-p", "p", "--sampling", "given") == (0.4, 1, 7)
    monkeypatch.setenv("DFLASH_SAMPLING", "recommended")
    config(f"temp = 0.4\n[models.'{target}']\ntop-p = 0.5\n")
    assert sampling() == (0.6, 0.95, 20)  # a variable counts before both tables
    config("temp = 0.4\nsampling = 'recommended'\n")
    monkeypatch.delenv("DFLASH_SAMPLING")
    assert sampling() == (0.4, 0.95, 20)


@pytest.fixture
def chat_sampling(
    cli_app: typer.Typer, target: Path, tmp_path: Path
) -> Callable[..., tuple[float, ...]]:
    def run(*flags: str) -> tuple[float, ...]:
        log = tmp_path / "log"
        log.unlink(missing_ok=True)
        args = ["chat", "--log", str(log), "--max-tokens", "2", "-m", str(target), *PAIR[2:]]
        done = CliRunner().invoke(cli_app, [*args, *flags], input="hi")
        assert done.exit_code == 0, done.output
        lines = map(json.loads, log.read_text().splitlines())
        (found,) = [line for line in lines if line["type"] == "pair"]
        return found["temperature"], found["top_p"], found["top_k"]

    return run


@pytest.fixture
def served_sampling(
    cli_app: typer.Typer, target: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[float, ...]]:
    def run(*flags: str) -> tuple[float, ...]:
        servers: list[Any] = []
        monkeypatch.setattr(
            "dflash_mlx.cli.serve.run_until_stopped", lambda server, *_: servers.append(server)
        )
        args = ["serve", "--port", "0", "-m", str(target), *PAIR[2:]]
        done = CliRunner().invoke(cli_app, [*args, *flags])
        assert done.exit_code == 0, done.output
        found = servers[0].first.runner.settings.options.sampling
        return found.temperature, found.top_p, found.top_k

    return run


@pytest.mark.parametrize("command", ["chat_sampling", "served_sampling"])
def test_chats_and_servers_sample_as_recommended(
    command: str, request: pytest.FixtureRequest, config: Callable[[str], int], target: Path
) -> None:
    """Unless something says how to sample, wherever it stands."""
    sampling = request.getfixturevalue(command)
    assert sampling() == (0.6, 0.95, 20)
    assert sampling("--seed", "3") == (0.6, 0.95, 20)
    assert sampling("--temp", "0") == (0, 1, 0)
    assert sampling("--top-p", "0.5") == (0, 0.5, 0)
    assert sampling("--sampling", "given") == (0, 1, 0)
    config("temp = 0.4\n")
    assert sampling() == (0.4, 1, 0)
    config(f"[models.'{target}']\ntemp = 0.3\n")
    assert sampling() == (0.3, 1, 0)


def test_a_model_without_one(cli_app: typer.Typer, config: Callable[[str], int]) -> None:
    """The flag is refused; the file is for all models, and this one goes on as it is."""

    def run(*flags: str) -> Result:
        args = ["generate", "--raw", "hi", "--max-tokens", "2", *PAIR]
        return CliRunner().invoke(cli_app, [*args, *flags])

    done = run("--sampling", "recommended")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "recommends no sampling" in done.stderr
    config("sampling = 'recommended'\n")
    assert run().exit_code == 0


@pytest.fixture
def state(cli_app: typer.Typer, target: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedState:
    """A chat with that target; `/model NAME` takes the folder NAME as the target's."""
    pair = tiny.golden_pair("qwen3_full")
    monkeypatch.setattr(pair.target, "checkpoint", Checkpoint(target, {}))
    state = recorded_chat(cli_app, pair)
    state.sampling_by = "given"
    actions = import_module("dflash_mlx.cli.chat.actions")

    def load(model_options: Any, *rest: Any) -> Any:
        folder = target.parent / model_options.model
        monkeypatch.setattr(pair.target, "checkpoint", Checkpoint(folder, {}))
        return pair

    monkeypatch.setattr(actions, "fetch_pair", lambda model_options, *rest: model_options)
    monkeypatch.setattr(actions, "load_downloaded", load)
    return state


def test_in_a_chat(state: RecordedState, target: Path, config: Callable[[str], int]) -> None:
    """The header offers it, /set lists it, /set recommended makes sampling just that."""
    use = state.enter

    def now() -> SamplingParams:
        return state.dialogue.settings.sampling

    offer = f"recommended sampling: {SAID} · /set recommended takes it"
    assert settings.chat_sampling_note(state.dialogue) == offer
    assert use("/set").endswith(f"\n  {offer}")
    use("/set seed 3")
    use("/set min-p 0.5")
    assert use("/set recommended") == f"  sampling as recommended: {SAID}"
    assert now() == SamplingParams(temperature=0.6, top_p=0.95, top_k=20, seed=3)
    assert use("/set").endswith(f"\n  sampling as recommended: {SAID}")
    assert ("recommended", "") in commands.complete(state, "/set ")
    # A preset may name it, and a model's defaults; the next model has its own.
    config(
        "[preset.p]\nsampling = 'recommended'\ntop-k = 7\n"
        "[models.B]\nsampling = 'recommended'\ntop-p = 0.5\n"
    )
    state.dialogue.settings = replace(state.dialogue.settings, sampling=SamplingParams())
    assert use("/preset p") == "  preset p: sampling, top-k"
    assert now() == SamplingParams(temperature=0.6, top_p=0.95, top_k=7)
    state.dialogue.settings = replace(state.dialogue.settings, sampling=SamplingParams())
    state.options = state.options.changed(**settings.present_values(state))
    state.options = replace(state.options, sources={})
    (target.parent / "B").mkdir()
    (target.parent / "B/generation_config.json").write_text('{"temperature": 0.9, "top_p": 0.8}')
    (target.parent / "C").mkdir()
    use("/model B")
    assert now() == SamplingParams(temperature=0.9, top_p=0.5)
    told = use("/model target")
    assert now() == SamplingParams()
    assert offer in told
    use("/model C")
    with pytest.raises(DFlashError, match="recommends no sampling"):
        use("/set recommended")
    assert "recommended" not in use("/set")


def test_another_model_in_a_chat(
    state: RecordedState, target: Path, config: Callable[[str], int]
) -> None:
    """Where nothing says how to sample, each model samples as its authors recommend."""
    state.sampling_by = None
    (target.parent / "B").mkdir()
    (target.parent / "B/generation_config.json").write_text('{"temperature": 0.9, "top_p": 0.8}')
    (target.parent / "C").mkdir()
    config("[models.target]\ntop-k = 7\n")
    assert "  sampling as recommended: temp 0.9, top-p 0.8" in state.enter("/model B")
    assert state.dialogue.settings.sampling == SamplingParams(temperature=0.9, top_p=0.8)
    state.enter("/model target")
    assert state.dialogue.settings.sampling == SamplingParams(top_k=7)
    state.enter("/model B")
    state.enter("/temp 0.2")
    state.enter("/model C")
    assert state.dialogue.settings.sampling == SamplingParams(temperature=0.2)
