"""--mode and --tree-budget: they reach the engine, and what contradicts them is refused."""

import json
import os
from pathlib import Path

import pytest
from golden_pair import EXPECTED, PAIR, RAW, said
from typer.testing import CliRunner


@pytest.fixture
def target(cli_app):
    def run(*args):
        result = CliRunner().invoke(cli_app, ["generate", "--json", *PAIR[:2], *args])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    return run


def test_a_tree_gives_the_same_answer(ask):
    """Guards that the flags arrive: fewer verifies, the same words, and the JSON says why."""
    chain = ask("--max-tokens", "60", *RAW)
    tree = ask("--max-tokens", "60", *RAW, "--mode", "ddtree", "--tree-budget", "40")
    assert chain["text"] == tree["text"] == said(0)[:60]
    assert (chain["mode"], tree["mode"]) == ("dflash", "ddtree")
    assert "tree_budget" not in chain["speculation"]
    assert tree["speculation"]["tree_budget"] == 40
    assert tree["speculation"]["drafted"] == 40 * tree["speculation"]["verifies"]
    assert tree["speculation"]["mean_acceptance_length"] > EXPECTED["tau"][0]
    assert len(tree["speculation"]["accepted_by_position"]) == 7
    default = ask("--max-tokens", "20", *RAW, "--mode", "ddtree")["speculation"]
    assert default["tree_budget"] == 32


def test_baseline_is_without_a_drafter(target):
    """`--mode baseline` is `--no-draft`; the two together are no contradiction."""
    for flags in (["--mode", "baseline"], ["--no-draft"], ["--no-draft", "--mode", "baseline"]):
        found = target("--max-tokens", "20", *RAW, *flags)
        assert found["text"] == said(0)[:20]
        assert (found["mode"], found["draft"], found["speculation"]) == ("baseline", None, None)


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (
            ["--lookup"],
            "--lookup has no effect outside the mode auto. Hint: remove DFLASH_MODE or --lookup",
        ),
        (["--mode", "ddtree", "--accept", "block"], "'block' judges chains"),
        (["--mode", "tree"], "'tree' is not one of"),
        (["--mode", "ddtree", "--tree-budget", "1025"], "a whole number, 1 to 1,024"),
    ],
)
def test_contradictions(dflash, flags, part):
    result = dflash(*RAW, *flags)
    assert result.exit_code == 2
    assert part in " ".join(result.stderr.split()).replace("│ ", "")


def test_nearer_to_the_command_line_wins(target, tmp_path, monkeypatch):
    """A file's mode or budget is a default: flags of another kind do not clash with it."""
    monkeypatch.delenv("DFLASH_MODE")
    folder = tmp_path / "home" / ".config" / "dflash"
    folder.mkdir(parents=True)
    file = f'mode = "ddtree"\ntree-budget = 9\ndraft = "{PAIR[3]}"\n'
    (folder / "config.toml").write_text(file)
    short = ["--max-tokens", "20", *RAW]
    assert target(*short)["speculation"]["tree_budget"] == 9
    assert target(*short, "--mode", "dflash")["mode"] == "dflash"
    assert target(*short, "--no-draft")["mode"] == "baseline"
    (folder / "config.toml").write_text("lookup = true\n")
    assert target(*short, "--no-draft")["mode"] == "baseline"
    (folder / "config.toml").write_text(file)
    monkeypatch.setenv("DFLASH_NO_DRAFT", "1")
    assert target(*short)["mode"] == "baseline"
    assert target(*short, "--mode", "ddtree")["mode"] == "ddtree"


@pytest.mark.parametrize(
    ("file", "variables", "flags", "hint"),
    [
        ("", {"DFLASH_NO_DRAFT": "1"}, ["--lookup"], "remove DFLASH_NO_DRAFT or --lookup"),
        ("", {}, ["--lookup", "--mode", "baseline"], "remove --mode or --lookup"),
        ("no-draft = true\n", {}, ["--lookup"], "remove 'no-draft' in {file} or --lookup"),
        (
            "[preset.p]\nmode = 'baseline'\n",
            {},
            ["--lookup", "-p", "p"],
            "remove 'mode' of the preset 'p' in {file} or --lookup",
        ),
    ],
)
def test_what_stops_lookup_is_named(run, config, monkeypatch, file, variables, flags, hint):
    """By what was really given; nobody is told to remove a `--mode` that they never gave."""
    monkeypatch.delenv("DFLASH_MODE")
    config(file)
    result = run("generate", "x", *flags, env=variables)
    assert result.exit_code == 2
    path = Path(os.environ["XDG_CONFIG_HOME"]) / "dflash" / "config.toml"
    assert result.stderr == (
        f"Error: --lookup has no effect without drafting.\nHint:  {hint.format(file=path)}\n"
    )


def test_unless_told_otherwise_it_is_auto(ask, monkeypatch):
    """The same tokens, in rounds chosen by what earlier ones took."""
    fixed = ask("--max-tokens", "20", *RAW)
    monkeypatch.delenv("DFLASH_MODE")
    found = ask("--max-tokens", "20", *RAW)
    assert (found["mode"], fixed["mode"]) == ("auto", "dflash")
    assert found["tokens"] == fixed["tokens"]
    assert found["speculation"]["why"]
    assert sum(entry["rounds"] for entry in found["speculation"]["chosen"]) > 0
