"""`dflash generate --compare`: the table, the object, and when two answers are the same."""

import re
from importlib import import_module

import pytest
from golden_pair import EXPECTED, GOLDEN, RAW, said
from typer.testing import CliRunner

from dflash_mlx.engine.stats import Stats

report = import_module("dflash_mlx.cli.report")
Answer = import_module("dflash_mlx.cli.answer").Answer


def test_compare_transcript(dflash):
    result = dflash(*RAW, "--max-tokens", "96", "--compare")
    assert result.exit_code == 0
    assert result.stdout == said(0) + "\n"
    lines = re.sub(r"[\d,]+\.\d(?=\s)|[\d.]+×|\d+%$", "N", result.stderr, flags=re.M).splitlines()
    assert [re.sub(r"\s+", " ", line).strip() for line in lines] == [
        "plain dflash",
        "tok/s N N N ± N",
        "tokens 96 96",
        f"τ 1.00 {EXPECTED['tau'][0]:.2f} tokens per pass",
        re.sub(r"\s+", " ", lines[4]).strip(),
        "output identical",
        "run 1 warm-up · 1 run each · greedy · block 8",
        *map(str.strip, lines[7:-1]),
        "the answer was cut by --max-tokens, after 96 tokens",
    ]
    assert re.fullmatch(r"  accept +– +[\d.]+%   of the checked drafts", lines[4])
    conclusion = " ".join(map(str.strip, lines[7:-1]))
    assert re.fullmatch("The same answer, token for token, .* instead of N s.", conclusion)
    assert len({len(line[:30].rstrip()) for line in result.stderr.splitlines()[2:5]}) == 1


def test_compare_with_trees(dflash):
    """The table is of the mode that was asked for, and plain decoding is told nothing of trees."""
    result = dflash(*RAW, "--max-tokens", "30", "--compare", "--mode", "ddtree")
    table = " ".join(result.stderr.split())
    for part in ("plain ddtree", "identical", "block 8 · tree 32"):
        assert part in table
    assert dflash(*RAW, "--compare", "--mode", "baseline").exit_code == 2


def test_compare_as_json(ask):
    found = ask(*RAW, "--max-tokens", "30", "--compare")
    assert found["baseline"]["text"] == found["text"]
    assert found["comparison"]["identical"] is True
    assert found["comparison"]["differs_from_token"] is None
    assert found["comparison"]["speedup"] > 0
    # DFlash's last block may go on after the stop string; the text does not.
    found = ask(*RAW, "--max-tokens", "90", "--compare", "--stop", said(0)[20:23])
    assert found["comparison"]["identical"] is True


def test_random_samples(dflash, ask):
    """Those of one seed, which may be a drawn one, are compared; not if chance accepts drafts."""
    sampled = (*RAW, "--max-tokens", "9", "--compare", "--temp", "1")
    for seed in (["--seed", "3"], []):
        table = dflash(*sampled, *seed).stderr
        assert "output    identical" in table
        assert "temperature 1" in table
    sampled = (*sampled, "--accept", "token")
    assert "output    not compared: both are random samples" in dflash(*sampled).stderr
    assert ask(*sampled)["comparison"]["identical"] is None


def test_difference_is_counted_from_one():
    def both(*tokens):
        return report.Comparison(
            *(Answer(Stats(), tokens=one, text=str(one)) for one in tokens), True
        )

    assert both([1, 2, 3], [1, 2, 4]).differs_from == 3
    assert both([1, 2, 3], [1, 2]).differs_from == 3
    assert both([1, 2], [1, 2]).differs_from is None
    assert report.output_verdict(both([5], [6])) == "differs from token 1"
    assert both([1], [1]).speedup is None


def test_bundled_pair_is_named(cli_app, monkeypatch):
    """With --compare also where nobody watches, so that nobody takes it for a large model."""
    monkeypatch.setattr("dflash_mlx.hub.resolve.bundled", lambda part: GOLDEN / part)
    result = CliRunner().invoke(cli_app, ["generate", *RAW, "--max-tokens", "9", "--compare"])
    assert result.stderr.startswith("no --model given: the bundled pair answers")
    quiet = CliRunner().invoke(cli_app, ["generate", *RAW, "--max-tokens", "9"])
    assert "no --model" not in quiet.stderr


@pytest.mark.parametrize(
    ("seconds", "tokens", "comparable", "sentence"),
    [
        ((2.0, 5.0), (17, 17), True, "The same answer, token for token, 2.5 times as fast: 2.0 s "
         "instead of 5.0 s."),
        ((5.0, 2.0), (17, 17), True, "The same answer, token for token, slower with drafts here: "
         "5.0 s instead of 2.0 s."),
        ((2.0, 2.08), (17, 17), True, "The same answer, token for token, no difference in speed "
         "beyond the spread of ±5%: 2.0 s instead of 2.1 s."),
        ((2.0, 5.0), (21, 11), True, "The answers differ from token 12; 5.0 times as fast: 10.0 "
         "instead of 2.0 tokens per second."),
        ((2.0, 5.0), (21, 11), False, "Two random answers, 5.0 times as fast: 10.0 instead of 2.0 "
         "tokens per second."),
        ((2.0, 5.0), (8, 8), True, "The same answer, token for token, too short to compare the "
         "speeds."),
        ((0.0, 0.0), (1, 1), True, "The same answer, token for token, too short to compare the "
         "speeds."),
    ],
)  # fmt: skip
def test_the_last_sentence(seconds, tokens, comparable, sentence):
    """What a person can repeat: whether the answers are the same, and what drafts did."""
    both = [answer_of([s / max(n - 1, 1)] * (n - 1)) for n, s in zip(tokens, seconds, strict=True)]
    assert report.conclusion(report.Comparison(*both, comparable)) == sentence


def test_a_difference_within_the_spread_is_none():
    """The same ratio is a difference if the parts agree, and none if they contradict each other."""
    even = answer_of([0.1] * 32)
    steady = report.Comparison(answer_of([0.08] * 32), even, True)
    jumping = report.Comparison(answer_of([0.02] * 16 + [0.14] * 16), even, True)
    assert steady.speedup == pytest.approx(jumping.speedup)
    assert (steady.verdict, jumping.verdict) == ("faster", "no difference")
    assert jumping.spread > 0.25 > steady.spread
    both_slow_at_the_end = report.Comparison(
        answer_of([0.02] * 16 + [0.14] * 16), answer_of([0.04] * 16 + [0.28] * 16), True
    )
    assert both_slow_at_the_end.spread == steady.spread


def answer_of(seconds):
    """An answer of a first token at once, and one more after each of these seconds."""
    rounds = [(sum(seconds[:n]), 1, 0, 0) for n in range(len(seconds) + 1)]
    count = len(rounds)
    numbers = Stats(generated=count, decode_seconds=sum(seconds))
    return Answer(numbers, tokens=[*range(count)], text=str(count), rounds=rounds)
