"""Options that exclude each other: each pair is refused with its sentence and its hint."""

import os
from pathlib import Path

import pytest

ONE = "leave one of them out"
UNUSED = "has no effect with --batch, which takes its prompts from a file and writes the answers to"
BATCH = "generate --batch a --out b"
MODELS = "leave one of them out; --drafts dflash:ID,model:ID names models"
SERVER = "is for a server of many models, and this one has a single one"

REFUSED = [
    ("generate x --out b", "--out needs --batch.", "add --batch FILE"),
    ("generate x --max-sequences 16", "--max-sequences needs --batch.", "add --batch FILE"),
    (f"{BATCH} x", f"PROMPT {UNUSED}", "leave PROMPT out"),
    (f"{BATCH} -c", f"--continue {UNUSED}", "leave --continue out"),
    (f"{BATCH} --no-stats", f"--stats {UNUSED}", "leave --stats out"),
    ("generate --batch a", "--batch needs a file for the answers.", "add --out FILE"),
    ("generate x -c --raw", "--continue and --raw do not go together.", ONE),
    ("generate x -c --compare", "--continue and --compare do not go together.", ONE),
    ("generate x --json --jsonl", "--json and --jsonl exclude each other.", ONE),
    ("generate x --watch --jsonl", "--watch and --jsonl exclude each other.", ONE),
    ("generate x --log-text", "--log-text needs --log.", "say where: --log FILE"),
    ("chat --log-text", "--log-text needs --log.", "say where: --log FILE"),
    ("chat --resume -c", "--resume and --continue name different chats.", ONE),
    ("chat --demo -m a/b", "--demo and --model name different models.", ONE),
    ("chat --demo -d a/b", "--demo and --draft name different models.", ONE),
    ("serve --allow-pull -m a/b", f"--allow-pull {SERVER}.", "leave --allow-pull out, or --model"),
    ("serve --api-key a --api-key-file b", "the API key is given twice.", "leave out --api-key"),
    ("bench --drafts none -d a/b", "--drafts and --draft exclude each other.", MODELS),
    ("bench --drafts none --no-draft", "--drafts and --no-draft exclude each other.", MODELS),
    ("bench --drafts none --lookup", "--drafts and --lookup exclude each other.", MODELS),
    ("bench --drafts none --modes dflash", "--drafts and --modes exclude each other.", MODELS),
    ("bench -d a/b --no-draft", "a drafter and no_draft contradict each other.", ONE),
    ("models pull a/b -d c/d --no-draft -y", "a drafter and no_draft contradict each other.", ONE),
    ("generate x -d a/b --no-draft", "a drafter and no_draft contradict each other.", ONE),
    (
        "generate x --no-draft --mode ddtree",
        "--no-draft decodes plainly, and --mode ddtree does not.",
        ONE,
    ),
    (
        "generate x -d a/b --mode baseline",
        "--mode baseline needs no drafter, and --draft names one.",
        ONE,
    ),
    (
        "generate x --lookup --no-draft",
        "--lookup has no effect without drafting.",
        "remove --no-draft or --lookup",
    ),
    (
        "generate x --lookup --mode ddtree",
        "--lookup has no effect outside the mode auto.",
        "remove --mode or --lookup",
    ),
    (
        "generate x --tree-budget 8 --no-draft",
        "--tree-budget has no effect in the mode baseline.",
        "remove --no-draft and add --mode ddtree",
    ),
    (
        "generate x --tree-budget 8",
        "--tree-budget has no effect in the mode auto.",
        "add --mode ddtree",
    ),
    (
        "generate x --compare --mode baseline",
        "--compare needs a drafter, and --mode baseline leaves it out.",
        ONE,
    ),
    (
        "generate x --compare --no-draft",
        "--compare needs a drafter, and --no-draft leaves it out.",
        ONE,
    ),
    (
        "generate x --watch -m http://a/v1#b",
        "--watch needs a model on this machine, and --model names a server.",
        "leave it out",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("line", "message", "hint"), REFUSED, ids=[line for line, *_ in REFUSED])
def test_each_pair_is_refused(run, line, message, hint, monkeypatch):
    monkeypatch.delenv("DFLASH_MODE", raising=False)
    result = run(*line.split())
    assert (result.exit_code, result.stdout) == (2, "")
    error, way = result.stderr.splitlines()
    assert error.startswith(f"Error: {message}")
    assert way.startswith(f"Hint:  {hint}")


@pytest.mark.parametrize(
    ("line", "variables", "settings"),
    [
        # --draft overrides the variable, so that the mode of the file stays.
        ("generate x -d /no --tree-budget 8", {"DFLASH_NO_DRAFT": "1"}, 'mode = "ddtree"'),
        ("bench --drafts none -m /no", {}, 'no-draft = true\ndraft = "a/b"'),
    ],
)
def test_what_a_flag_overrides_is_not_refused(run, monkeypatch, line, variables, settings):
    """The next error is that of the model, which is missing."""
    monkeypatch.delenv("DFLASH_MODE", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    file = Path(os.environ["XDG_CONFIG_HOME"]) / "dflash" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(settings)
    result = run(*line.split())
    assert (result.exit_code, result.stdout) == (1, "")
    assert "'/no'" in result.stderr
