"""`dflash bench --drafts`: sources of drafts, each held against plain decoding."""

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import pytest
import tiny
from bench_records import KEY, record, schedule_of, turn
from golden_pair import GOLDEN
from typer.testing import CliRunner

from dflash_mlx import load
from dflash_mlx.bench import sources, summary
from dflash_mlx.bench.sources import Source, parse_sources
from dflash_mlx.errors import UsageError
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.hub.resolve import bundled, measured_choice

TARGET, DRAFT = str(GOLDEN / "target"), str(GOLDEN / "draft")
ALL = f"dflash:{DRAFT},model:{TARGET},lookup,none"
LABELS = ALL.split(",")


@pytest.fixture
def run(cli_app, tmp_path):
    file = tmp_path / "own.jsonl"
    file.write_text('"hello"\n"winter f!"\n')
    flags = ["--prompts", str(file), "--max-tokens", "10", "--repeats", "1"]
    return lambda *args: CliRunner().invoke(cli_app, ["bench", "-m", TARGET, *flags, *args])


def test_every_source_is_held_against_plain_decoding(run, tmp_path):
    """Each beside its own plain answers; seeded answers count too, and a run goes on."""
    flags = ["--drafts", ALL, "--check", "--json", "--out", str(tmp_path / "r.jsonl")]
    result = run(*flags)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["complete"] is True
    assert [each["source"] for each in found["drafts"]] == LABELS
    assert [e["pair"]["drafter"] for e in found["drafts"]] == [DRAFT, TARGET, "lookup", None]
    for each in found["drafts"]:
        plain = each["source"] == "none"
        assert {a["mode"] for a in each["answers"]} == {"baseline", *[each["source"]] * (not plain)}
        assert each["differences"] == []
        for row in each["rows"]:
            held = row["mode"] != "baseline"
            assert (row["identical"], row["compared"]) == ((2, 2) if held else (0, 0))
            assert (row["speedup"] is not None) == held
    best = found["drafts"][1]["rows"][1]  # the target itself, at temperature 0
    assert best["acceptance_rate"] > 0.9  # all but what a stop token cuts off
    files = {file.name for file in tmp_path.glob("r-*.jsonl")}
    assert {"r-lookup.jsonl", "r-none.jsonl"} < files
    assert len(files) == 4
    again = json.loads(run(*flags).stdout)
    assert again == found


def test_a_difference_is_found_in_every_source(run, monkeypatch):
    """Planted: one draft too many is kept. Seen in seeded samples, and told by the source."""
    outcome = import_module("dflash_mlx.kernels.outcome")
    count = outcome.count_prefix
    monkeypatch.setattr(
        outcome, "count_prefix", lambda flags: mx.minimum(count(flags) + 1, flags.size)
    )
    result = run("--drafts", f"dflash:{DRAFT}", "--check", "--temps", "1")
    assert result.exit_code == 3
    assert "identical to baseline in 0 of 2 answers" in result.stdout
    assert f"own.jsonl 1 · dflash:{DRAFT} · token " in result.stdout
    assert run("--drafts", f"dflash:{DRAFT}", "--check", "--temps", "0").exit_code == 3


def test_report_through_a_pipe_is_markdown(run):
    """Into a pipe the tables are Markdown; by rejection only greedy answers are compared."""
    result = run("--drafts", "lookup, none", "--accept", "token")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    tables = [line.split(" | ") for line in lines if line.startswith("| ")]
    assert [len(cells) for cells in tables] == [9] * 8
    assert [cells[1] for cells in tables] == ["drafts", "---", "lookup", "none"] * 2
    same = [cells[-1].removesuffix(" |") for cells in tables]
    assert same == ["same", "---:", "2/2", "", "same", "---:", "", ""]
    assert [cells[4] for cells in tables if cells[1] == "none"] == ["1.00×"] * 2
    assert sum(line.startswith("pair ") for line in lines) == 2
    assert lines[-2] == "output   identical to baseline in 2 of 2 greedy answers"
    assert {part.split()[0] for part in lines[-1].split(None, 1)[1].split(", ")} == {
        "lookup", "none",
    }  # fmt: skip


def test_acceptance_by_position():
    """Of all passes at one temperature; a shorter block has empty cells."""
    report = import_module("dflash_mlx.cli.bench.report")
    answers = {"mtp": (6, 4), "lookup": (5, 3, 1), "none": ()}
    measured = []
    for label, accepted in answers.items():
        verifies = 8 if accepted else 0
        answer = turn(verifies=verifies, accepted_by_position=accepted)
        rows = summary.summarise([record(KEY, answer, mode=label)])
        measured.append(SimpleNamespace(label=label, rows=rows))
    names, cells = report.position_table(measured, 0.0)
    assert names == ("drafts", "1", "2", "3")
    assert cells == [
        ("mtp", "75", "50", ""),
        ("lookup", "62", "38", "12"),
    ]
    assert report.position_table(measured, 1.0)[1] == []


HEAD = str(GOLDEN.parent / "mtp_qwen35" / "target")


def test_all_that_fits_is_compared_and_the_best_is_kept(cli_app, tmp_path, monkeypatch):
    """The target's own head, copies and plain decoding; -d names another one afterwards."""
    file = tmp_path / "own.jsonl"
    file.write_text('"hello"\n')
    flags = ["--prompts", str(file), "--max-tokens", "12", "--repeats", "1", "--temps", "0"]
    report = import_module("dflash_mlx.cli.bench.report")
    rates = {"mtp": 1.5, "lookup": 1.2}
    monkeypatch.setattr(report, "speedup_of", lambda part: rates.get(part.label, 1.0))
    result = CliRunner().invoke(cli_app, ["bench", "-m", HEAD, *flags, "--drafts", "all"])
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == "best     mtp 1.50×, lookup 1.20×, none 1.00×"
    assert "has the drafter mtp here; -d names another" in result.stderr
    choice = measured_choice(HEAD)
    assert choice
    assert (choice.draft, choice.speedups) == ("mtp", {**rates, "none": 1.0})
    assert load(HEAD).draft_name == "mtp"
    assert load(HEAD, "lookup").draft_name == "lookup"
    monkeypatch.setattr(report, "speedup_of", lambda part: 0.9 if part.label != "none" else 1.0)
    CliRunner().invoke(cli_app, ["bench", "-m", HEAD, *flags, "--drafts", "all"])
    assert load(HEAD).draft_name is None
    result = CliRunner().invoke(cli_app, ["bench", "-m", HEAD, *flags, "--drafts", "lookup,none"])
    assert "from now on" not in result.stderr


def test_what_fits(monkeypatch):
    """Downloaded drafters of the target, listed or not; no drafter of another, no small model."""
    pair = load(TARGET, no_draft=True)
    spark = str(GOLDEN.parent / "dspark_qwen3" / "draft")
    folders = {"a/draft": DRAFT, "b/model": TARGET, "c/other": bundled("draft"), "e/spark": spark}
    monkeypatch.setattr(sources, "cached_repos", lambda: list(folders))
    monkeypatch.setattr(
        sources, "cached_checkpoint", lambda repo: Checkpoint.read(Path(folders[repo]), repo)
    )
    labels = [source.label for source in sources.fitting_sources(pair)]
    assert labels == ["dflash:a/draft", "dspark:e/spark", "lookup", "none"]
    monkeypatch.setattr(sources, "working_set", lambda: 1)
    assert [source.label for source in sources.fitting_sources(pair)] == ["lookup", "none"]
    monkeypatch.setattr(sources, "known_drafters", lambda pair: ["a/draft", "d/absent"])
    monkeypatch.setattr(sources, "cached_state", lambda repo: "yes" if repo in folders else "no")
    assert sources.missing_drafters(pair) == ["d/absent"]


BAD = [
    (["--drafts", "all,lookup"], 2, "all has every source that fits."),
    (["--drafts", "eagle3,lookup"], 2, "'eagle3' names no model."),
    (["--drafts", f"dspark:{DRAFT}"], 1, f"'{DRAFT}' is a DFlash drafter."),
    (["--drafts", "mtp"], 1, "there is no MTP head in"),
    (["--drafts", "fast"], 2, "there is no source of drafts 'fast'."),
    (["--drafts", "none", "--check"], 2, "--check needs"),
    (["--drafts", "lookup,dflash"], 1, f"no DFlash drafter is known for '{TARGET}'."),
    (["--drafts", f"dflash:{TARGET}"], 1, f"'{TARGET}' is a language model."),
    (["--drafts", f"model:{DRAFT}"], 1, f"'{DRAFT}' is a DFlash drafter."),
    (["--drafts", f"lookup,model:{bundled('target')}"], 1, "has a different vocabulary than"),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "code", "message"), BAD)
def test_what_cannot_be_compared_is_said_before_the_first_answer(run, flags, code, message):
    result = run(*flags)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert "answers" not in result.stderr
    error, hint = result.stderr.splitlines()[-2:]
    assert message in error
    assert hint.startswith("Hint:  ")


def test_dspark_is_a_kind_of_its_own():
    """By its heads: the class is that of DFlash."""
    target = tiny.make_target("qwen3")
    for settings, kind in ((tiny.draft_settings, "dflash"), (tiny.dspark_settings, "dspark")):
        drafter = tiny.random_drafter(target, **settings(target))
        assert drafter.kind == kind


def test_names_of_sources():
    found = parse_sources(" dflash, model:a/b ,lookup,none,dflash:./c")
    assert [source.label for source in found] == ["dflash", "model:a/b", "lookup", "none",
                                                  "dflash:./c"]  # fmt: skip
    assert [source.draft for source in found] == [None, "a/b", "lookup", None, "./c"]
    assert [source.no_draft for source in found] == [False, False, False, True, False]
    whole = schedule_of(block_size=4)
    assert [v.label for v in found[0].schedule(whole).modes] == ["baseline", "dflash"]
    assert [v.label for v in found[3].schedule(whole).modes] == ["baseline"]
    assert found[1].results_file(Path("a/r.jsonl")) == Path("a/r-model-a-b.jsonl")
    assert found[1].results_file(None) is None
    for text in ("model", "model:", "dflash:", "lookup:a", "none:a", "lookup,lookup", " , "):
        with pytest.raises(UsageError):
            parse_sources(text)


def test_samples_are_compared_where_that_is_asked_for():
    """With their own seed they are plain decoding's by the rule match."""
    base = [record(replace(KEY, temperature=t), turn(9), mode="baseline") for t in (0.0, 1.0)]
    wrong = record(KEY, turn(tokens=(0, 9)), temperature=1.0)
    records = Source("lookup").named([*base, record(KEY, turn(9)), wrong])
    assert summary.find_differences(records) == []
    (found,) = summary.find_differences(records, samples=True)
    assert (found.key.mode, found.key.temperature, found.token) == ("lookup", 1.0, 2)
    for samples, compared in ((False, [1, 0]), (True, [1, 1])):
        rows = [r for r in summary.summarise(records, samples=samples) if r.mode == "lookup"]
        assert [row.compared for row in rows] == compared
        assert [row.identical for row in rows] == [1, 0]
