"""Borders inside the kernels: parity on both sides of each, and no fault at one goes unseen."""

import pytest
from tiny import ALL

from dflash_mlx.kernels.source import Source, read_source

from .borders import CASES, bordered
from .emulator import compare
from .mutants import Mutant, mutants
from .ours import MODULES, RUNS, Edit, caught, run, through

FAULTS = ("once", "late", "early", "only", "edge") if ALL else ("once", "only")


def operations() -> dict[str, list[str]]:
    """The entries of `CASES` that each file of `metal_kernels` is part of."""
    found: dict[str, list[str]] = {}
    for module in MODULES:
        sources = [value for value in vars(module).values() if isinstance(value, Source)]
        for source in sources:
            for file in (f"{source.name}.metal", *source.headers):
                names = found.setdefault(file, [])
                names += [
                    case
                    for case in CASES
                    if case.split(",")[0] == module.OP.name and case not in names
                ]
    return found


OPERATIONS = operations()


def seen(file: str, edit: Edit) -> str | None:
    """What shows a fault in a file: the first run of any operation that it is part of."""
    for one_run in RUNS:
        for name in OPERATIONS[file]:
            of = bordered(name)
            options = {"runs": [one_run], "wanted": of.wanted, **of.options}
            if found := caught(of.op, edit, of.cases, of.tolerance, **options):
                return found
    return None


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_both_sides_of_every_border(name: str) -> None:
    """Each case of an operation has the reference's numbers, in another order of threads too."""
    case = bordered(name)
    for number, arguments in enumerate(case.cases):
        outcome = run(through(case.op, **case.options), *arguments, schedule=f"random:{number}")
        assert not outcome.findings
        wanted = case.wanted[number]
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        for got, want in zip(outcome.outputs, wanted, strict=True):
            compare(got, want, case.tolerance, case.tolerance, f"case {number}")


# Faults that change no result, by file, rule and the beginning of the line, and why.
HARMLESS = {
    ("accept.h", "edge", "return larger ||"): "nothing else has the same value at the same place",
    ("accept.h", "edge", "return units > 0"): "no units are none either way",
    ("gated_delta_inputs.metal", "edge", "constexpr int N ="): "of equal sizes either will do",
    ("gated_delta_inputs.metal", "edge", "for (int part ="): "a head has no elements past its end",
    ("gated_delta_tree.metal", "late", "for (int a = t - 1"): "the row before is not on this path",
    (
        "gated_delta_tree.metal",
        "early",
        "for (int a = 0; a < t",
    ): "the row before is not on this path",
    ("gated_delta_tree.metal", "edge", "for (int a = 0; a < t"): "a row is not on the path to it",
    (
        "grouped_experts.metal",
        "early",
        "DFLASH_UNROLL for (int i = 0; i < Rows;",
    ): "three pairs of an expert at a time are right, too; the count of loads sees it",
    (
        "grouped_experts.metal",
        "once",
        "DFLASH_UNROLL for (int i = 0; i < Rows;",
    ): "one pair of an expert at a time is right, too; the count of loads sees it",
    ("small_m_qmm.h", "edge", "bool parted ="): "at the end of a word nothing comes from the next",
    ("small_m_qmm.h", "edge", "} else if (shift > 15"): "no weight begins at bit 15",
    ("small_m_qmm.h", "edge", "return 8 * (BITS > 0"): "lanes share K otherwise, all in one way",
    ("small_m_qmm_matrix.metal", "edge", "constexpr int BITS ="): "of weights that are not packed",
    ("small_m_qmm_matrix.metal", "edge", "for (int begin ="): "past the end rows are zeros",
    ("small_m_qmm_matrix.metal", "edge", "if (Bits > 0"): "what is loaded is not used",
    ("vectors.h", "edge", "constexpr int BITS ="): "of weights that are not packed",
    ("vectors.h", "edge", "for (int begin ="): "past the end rows are zeros",
    ("vectors.h", "edge", "if (Bits > 0"): "what is loaded is not used",
    ("vectors.h", "edge", "int k = begin + 4"): "lanes share K otherwise, all in one way",
    ("verify_accept_argmax.metal", "edge", "for (uint four ="): "a quad past the end has no token",
    ("verify_accept_sample_draw.metal", "edge", "while (chunk < chunks"): "a draw is in a chunk",
    ("verify_attention.metal", "edge", "for (int begin ="): "past the end there are no entries",
    ("verify_attention.metal", "edge", "ours = ours"): "what is loaded beyond a split is not seen",
    ("verify_attention.metal", "edge", "if (score > highest"): "the old sums are multiplied by 1",
    ("verify_attention.h", "edge", "return i < old ? low - s"): "the block follows the context",
    ("verify_attention.h", "edge", "split.total = split.old"): "a split that ends there has no row",
    ("verify_attention_matrix.metal", "edge", "for (int begin ="): "past the end nothing is seen",
    ("verify_attention_matrix.metal", "edge", "if (b < blocks"): "what is computed is not used",
    ("verify_attention_matrix.metal", "edge", "bool open ="): "the other way is right too",
    (
        "verify_attention_matrix.metal",
        "edge",
        "open =",
    ): "no tile of a window is full in these cases",
}


def harmless(file: str, mutant: Mutant, line: str) -> bool:
    return any(
        (file, mutant.fault) == (name, fault) and line.strip().startswith(start)
        for name, fault, start in HARMLESS
    )


def planted(file: str) -> list[Mutant]:
    lines = read_source(file).splitlines()
    return [
        mutant
        for mutant in mutants(read_source(file))
        if mutant.fault in FAULTS and not harmless(file, mutant, lines[mutant.line - 1])
    ]


PLANTED = [(file, mutant) for file in sorted(OPERATIONS) for mutant in planted(file)]


@pytest.mark.parametrize(
    ("file", "mutant"),
    [
        pytest.param(
            file,
            mutant,
            id=f"{file}:{mutant.line}:{mutant.fault}",
            marks=[] if number % 30 == 0 else [pytest.mark.slow],
        )
        for number, (file, mutant) in enumerate(PLANTED)
    ],
)
def test_faults_by_rule_are_seen(file: str, mutant: Mutant) -> None:
    """Every loop, sum and comparison of every kernel, slightly wrong."""
    assert seen(file, (read_source(file), mutant.text))


KNOWN = {
    "a NaN of an earlier chunk is forgotten": (
        "verify_accept_prefix.metal",
        ("broken |= dflash_is_nan(other.value);", "broken = dflash_is_nan(other.value);"),
    ),
    "the first token of a chunk belongs to the chunk before it too": (
        "verify_accept_sample_sums.metal",
        ("first <= token && token < last", "first <= token && token <= last"),
    ),
    "rows 32 to 63 are not looked at": (
        "verify_accept_sample_draw.metal",
        ("uint group = 1; group < DFLASH_SIMDGROUPS", "uint group = 2; group < DFLASH_SIMDGROUPS"),
    ),
    "splits beyond the short ones begin one row late": (
        "verify_attention.h",
        ("low - start + i", "low - start + i + (low > 127)"),
    ),
    "parts of splits beyond the short ones are left out": (
        "verify_attention_combine.metal",
        ("int S = norms_shape[0];", "int S = min(norms_shape[0], 8);"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN)
def test_faults_beyond_a_border_are_seen(name: str) -> None:
    """Faults that small shapes do not show: vocabularies over 131,072, positions from 1024 on."""
    file, edit = KNOWN[name]
    assert read_source(file).count(edit[0]) == 1
    assert seen(file, edit)
