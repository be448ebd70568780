"""Short names of models: what each means, what stays open, and what the command line says of it."""

from importlib import import_module

import pytest
from hub_server import tiny_repo
from typer.testing import CliRunner

from dflash_mlx.errors import DFlashError
from dflash_mlx.hub import registry, resolve

FOUR, EIGHT = "mlx-community/Qwen3-4B-4bit", "mlx-community/Qwen3-4B-8bit"


def none_here(repo: str) -> str:
    return "no"


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("qwen3:4b", FOUR),
        ("qwen3-4b", FOUR),
        ("Qwen_3 4B", FOUR),
        ("qwen3:4b-8bit", EIGHT),
        ("qwen3-4b-bf16", "mlx-community/Qwen3-4B-bf16"),
        ("qwen/qwen3-4b", "Qwen/Qwen3-4B"),
        ("qwen3-coder:30b", "mlx-community/Qwen3-Coder-30B-A3B-Instruct-4bit"),
        ("qwen3:30b", "mlx-community/Qwen3-30B-A3B-4bit"),
        ("qwen3.5:35b-a3b", "mlx-community/Qwen3.5-35B-A3B-4bit"),
        ("llama3.1:8b", "mlx-community/Meta-Llama-3.1-8B-Instruct-4bit"),
        ("meta-llama-3.1-8b-instruct-8bit", "mlx-community/Meta-Llama-3.1-8B-Instruct-8bit"),
        ("gpt-oss:20b", "mlx-community/gpt-oss-20b-MXFP4-Q4"),
        ("kimi-k2.5", "moonshotai/Kimi-K2.5"),
        ("glm-5.3", "zai-org/GLM-5.3"),
        ("qwen2.5:7b", "mlx-community/Qwen2.5-7B-Instruct-4bit"),
        ("qwen2.5 coder 7b", "mlx-community/Qwen2.5-Coder-7B-Instruct-4bit"),
        ("gemma3:4b", "mlx-community/gemma-3-4b-it-4bit"),
        ("phi-4", "mlx-community/phi-4-4bit"),
        ("phi4-mini", "mlx-community/Phi-4-mini-instruct-4bit"),
        ("mistral-small", "mlx-community/Mistral-Small-3.2-24B-Instruct-2506-4bit"),
        ("mistral", "mlx-community/Mistral-7B-Instruct-v0.3-4bit"),
        ("mistral-8bit", "mlx-community/Mistral-7B-Instruct-v0.3-8bit"),
        ("devstral", "mlx-community/Devstral-Small-2-24B-Instruct-2512-4bit"),
        ("granite4", "mlx-community/granite-4.0-micro-8bit"),
        ("deepseek-r1:8b", "mlx-community/DeepSeek-R1-0528-Qwen3-8B-4bit"),
        # A guess would take another model than the one that was meant.
        ("qwen3:72b", None),
        ("qwen3-coder:30b-a22b", None),
        ("qwen3", None),
        ("qwen3-4v", None),
        ("qwen3-4b-4bit-8bit", None),
        ("gemma3", None),
        ("Qwen/Qwen3-4", None),
        ("./qwen3-4b", None),
        ("", None),
    ],
)
def test_what_a_name_means(name, target):
    """All words of one target's name, in any writing; never one of several."""
    assert registry.find_target(name, none_here) == target


def test_every_known_target_has_a_name():
    """What stands behind the owner means the target itself, or its published form's default."""
    for entry in registry.entries():
        name = entry.target.rpartition("/")[2]
        found = registry.find_target(name, none_here)
        assert found is not None, name
        assert found == entry.target or not entry.quant, name


def test_what_is_downloaded_counts():
    """One form that is here is meant; of two none is guessed, and both are suggested."""
    here = {EIGHT}
    assert registry.find_target("qwen3:4b", lambda r: "yes" if r in here else "no") == EIGHT
    here.add(FOUR)
    assert registry.find_target("qwen3:4b", lambda r: "yes" if r in here else "no") is None
    assert {FOUR, EIGHT} <= set(registry.similar_targets("qwen3:4b"))


def test_a_folder_is_no_short_name(tmp_path, monkeypatch):
    """What lies here is meant by its name, as before."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qwen3-4b").mkdir()
    assert registry.find_target("qwen3-4b", none_here) is None


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("qwen3-4v", f"did you mean {FOUR} or "),
        ("qwen3", f"did you mean {FOUR} or mlx-community/Qwen3-8B-4bit or "),
        ("gpt-oss", "MXFP4-Q4 or mlx-community/gpt-oss-120b-MXFP4-Q4?"),
        ("gemma3", "did you mean mlx-community/gemma-3-270m-it-4bit or "),
        ("mistral-smal", "did you mean mlx-community/Mistral-Small-3.2-24B-Instruct-2506-4bit"),
        ("nope", "give a folder, or a Hub id"),
    ],
)
def test_an_open_name_gets_the_nearest(name, part):
    """Python gets the same hint."""
    with pytest.raises(DFlashError) as caught:
        resolve.open_checkpoint(name)
    assert part in caught.value.hint


@pytest.fixture
def run(cli_app, hub):
    """Run `dflash` beside a Hub that has one small repository under the name of a known target."""
    hub.repos = {FOUR: tiny_repo()}
    return lambda *args: CliRunner().invoke(cli_app, args)


def test_the_taken_id_is_told_once(run, monkeypatch):
    """In a pipe, too; not with --quiet. An unknown repository gets its neighbours as a hint."""
    result = run("models", "pull", "qwen3:4b", "--no-draft", "--yes")
    assert result.exit_code == 0, result.output
    assert result.stderr.count(f"'qwen3:4b' is {FOUR}") == 1
    monkeypatch.setattr("dflash_mlx.models.memory.working_set", lambda: 1 << 50)
    options = import_module("dflash_mlx.cli.options").ModelOptions(model="qwen3:4b")
    names = import_module("dflash_mlx.cli.loading")
    output = import_module("dflash_mlx.cli.terminal.output")
    assert names.with_known_target(options, output.Output(quiet=True)).model == FOUR
    result = run("generate", "-m", "mlx-community/Qwen3-4B", "hi")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"did you mean {FOUR} or " in result.stderr


def test_a_name_that_does_not_fit_downloads_nothing(run):
    """The estimate is that of the registry, before the Hub is asked."""
    result = run("generate", "-m", "glm-5.3", "hi")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "'glm-5.3' is zai-org/GLM-5.3" in result.stderr
    assert "'zai-org/GLM-5.3' needs 1" in result.stderr
    assert "GB that models may take here" in result.stderr
