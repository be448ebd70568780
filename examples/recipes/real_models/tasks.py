"""Measure a model on the 48 tasks of tasks.jsonl, plainly and in the mode auto, in turn.

    .venv/bin/python examples/recipes/real_models/tasks.py runs/real/smollm2-135m \
        --out runs/smollm2-135m.jsonl

Every answer is added to the file; a run that was stopped goes on from it, and a complete one only
prints its tables. Greedy answers must have the tokens of plain decoding. Speeds hold for this
machine only.

Above temperature 0 two tasks of each kind are also answered plainly, all tasks in the mode auto.
Drafts never change an answer, so the tokens per pass of other modes follow from it without the
model: the tables have copies of earlier text as chains and as trees.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

import dflash_mlx
from dflash_mlx import Pair, Session, bench
from dflash_mlx.bench import Question, Record, Schedule
from dflash_mlx.bench.records import Turn
from dflash_mlx.drafters.ngram import BLOCK, CopiedBlock, NgramCache
from dflash_mlx.errors import DFlashError
from dflash_mlx.options import TREE_BUDGET
from dflash_mlx.speculation.tree import best_first

TASKS = Path(__file__).with_name("tasks.jsonl")
PLAIN, AUTO = "baseline", "auto"
SAMPLED_PLAINLY = 2  # tasks of each kind, above temperature 0
ALL = "all"
NOTHING = -1  # a token after the answer's end
HEADER = f"""
| kind | tasks | τ | drafts | τ, chains of copies | τ, trees of copies | plain step | verify pass \
| plain | auto | ratio | same tokens |
|---|{"--:|" * 11}""".strip()
NOTE = (
    "† More than τ: on average a pass of auto took less time than a plain step. That is this "
    "machine, not the drafts: take τ."
)


# Tokens per pass without the model


def passes_with_copies(
    prompt: Sequence[int], answer: Sequence[int], stops: frozenset[int], *, tree: bool
) -> list[int]:
    """Tokens that each pass after the prompt's commits in the mode dflash, or ddtree (`tree`)."""
    cache = NgramCache()
    cache.extend((), prompt)
    passes = list[int]()
    done = 1
    ahead = True  # the engine starts a step early where nothing could be copied before it
    while done < len(answer):
        rest = answer[done:]
        found = cache.look(answer[done - 1])
        kept = 0
        if found and not ahead:
            kept = kept_drafts(CopiedBlock(cache.automaton, BLOCK - 1), rest, stops, tree=tree)
        ahead = not found
        committed = min(kept + 1, len(rest))
        cache.extend((), answer[done - 1 : done - 1 + committed])
        passes.append(committed)
        done += committed
    return passes


def kept_drafts(
    block: CopiedBlock, rest: Sequence[int], stops: frozenset[int], *, tree: bool
) -> int:
    """How many drafts are accepted where the target says `rest`."""
    if tree:
        drafts = best_first(block.top_tokens(TREE_BUDGET), TREE_BUDGET, stops=stops)
        said = [*rest, *[NOTHING] * BLOCK]
        return len(drafts.walk([said[depth] for depth in (0, *drafts.depths)])[0])
    copies = block.automaton.continuation(block.positions)
    same = (copy == token for copy, token in zip(copies, rest, strict=False))
    return sum(takewhile(bool, same))


# The tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The answers of one kind at one temperature; None for values that are not available.

    tasks: answered in the mode auto; compared: also plainly; same: with the same tokens.
    tau, chains, trees: committed tokens divided by verify passes and decode steps together, of
    auto and of copies in the other modes. drafts: share of the tokens that were accepted drafts.
    step, verify: seconds of a plain step, and of auto's rounds with drafts, which have `rows` rows
    on average. plain, auto: tokens per second of the tasks that were answered both ways. artefact:
    whether there auto is faster than its tau, so that its rounds took less time than plain steps.
    """

    kind: str
    tasks: int
    compared: int
    same: int
    tau: float | None
    chains: float | None
    trees: float | None
    drafts: float | None
    step: float | None
    verify: float | None
    rows: float | None
    plain: float | None
    auto: float | None
    artefact: bool

    @property
    def ratio(self) -> float | None:
        return None if self.plain is None or self.auto is None else self.auto / self.plain

    def line(self) -> str:
        cells = [
            self.kind,
            f"{self.tasks}",
            number(self.tau, ".2f"),
            number(self.drafts, ".0%"),
            number(self.chains, ".2f"),
            number(self.trees, ".2f"),
            "–" if self.step is None else f"{1000 * self.step:.0f} ms",
            "–" if self.verify is None else f"{1000 * self.verify:.0f} ms, {self.rows:.1f} rows",
            number(self.plain, ".1f"),
            number(self.auto, ".1f"),
            number(self.ratio, ".2f") + "×" * (self.ratio is not None) + " †" * self.artefact,
            f"{self.same} of {self.compared}",
        ]
        return f"| {' | '.join(cells)} |"


def number(value: float | None, form: str) -> str:
    return "–" if value is None else f"{value:{form}}"


def share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def summarise(
    kind: str,
    records: Sequence[Record],
    chains: Sequence[Sequence[int]] = (),
    trees: Sequence[Sequence[int]] = (),
) -> Summary:
    """Sum up records of one kind and temperature. chains, trees: tokens of each pass by copies."""
    plain = {record.key.number: record.turns[0] for record in records if record.key.mode == PLAIN}
    auto = {record.key.number: record.turns[0] for record in records if record.key.mode == AUTO}
    both = [(plain[task], auto[task]) for task in auto if task in plain]
    steps = [rounds for turn in plain.values() for rounds in turn.rounds if rounds.rows == 1]
    rounds = [rounds for turn in auto.values() for rounds in turn.rounds]
    verifies = [one for one in rounds if one.rows > 1]
    verify_count = sum(one.count for one in verifies)
    plain_rate, auto_rate = rate(slow for slow, _ in both), rate(fast for _, fast in both)
    tau_of_both = tau_of(fast for _, fast in both)
    return Summary(
        kind=kind,
        tasks=len(auto),
        compared=len(both),
        same=sum(slow.tokens == fast.tokens for slow, fast in both),
        tau=tau_of(auto.values()),
        chains=share(sum(map(sum, chains)), sum(map(len, chains))),
        trees=share(sum(map(sum, trees)), sum(map(len, trees))),
        drafts=share(
            sum(turn.accepted for turn in auto.values()),
            sum(len(turn.tokens) for turn in auto.values()),
        ),
        step=share(sum(one.seconds for one in steps), sum(one.count for one in steps)),
        verify=share(sum(one.seconds for one in verifies), verify_count),
        rows=share(sum(one.rows * one.count for one in verifies), verify_count),
        plain=plain_rate,
        auto=auto_rate,
        artefact=bool(
            plain_rate and auto_rate and tau_of_both and auto_rate / plain_rate > tau_of_both
        ),
    )


def tau_of(turns: Iterable[Turn]) -> float | None:
    """Committed tokens divided by verify passes and decode steps together."""
    rounds = [one for turn in turns for one in turn.rounds]
    return share(sum(one.tokens for one in rounds), sum(one.count for one in rounds))


def rate(turns: Iterable[Turn]) -> float | None:
    """Tokens per second; the first token is the prefill's, whose waits do not count."""
    turns = list(turns)
    return share(
        sum(len(turn.tokens) - 1 for turn in turns), sum(turn.decode_seconds for turn in turns)
    )


def table(pair: Pair, questions: Sequence[Question], records: Sequence[Record]) -> str:
    """The Markdown table of one temperature."""
    session = Session(pair, mode=PLAIN, use_prefix_cache=False)
    prompts = {one.number: session.tokens(list(one.turns[0])) for one in questions}
    stops = pair.target.eos_ids
    summaries = []
    for kind in [*dict.fromkeys(record.task for record in records), ALL]:
        part = [record for record in records if kind in (record.task, ALL)]
        answers = [(prompts[r.key.number], r.turns[0].tokens) for r in part if r.key.mode == AUTO]
        chains, trees = (
            [passes_with_copies(*answer, stops, tree=tree) for answer in answers]
            for tree in (False, True)
        )
        summaries.append(summarise(kind, part, chains, trees))
    lines = [HEADER, *(summary.line() for summary in summaries)]
    whole = summaries[-1]
    notes = [NOTE] if any(summary.artefact for summary in summaries) else []
    if whole.compared < whole.tasks:
        notes.append(
            f"Plain, auto (tokens per second) and ratio are those of {whole.compared} tasks that "
            "were answered both ways."
        )
    return "\n".join([*lines, *(f"\n{note}" for note in notes)])


# The run


def answer_all(
    pair: Pair, questions: Sequence[Question], schedule: Schedule, results: bench.Results
) -> None:
    """Answer what the results do not have yet, one temperature after the other."""
    kinds = dict.fromkeys(question.task for question in questions)
    few = [q for kind in kinds for q in of_kind(questions, kind)[:SAMPLED_PLAINLY]]
    both, auto = bench.parse_modes(f"{PLAIN},{AUTO}"), bench.parse_modes(AUTO)
    for temperature in schedule.temperatures:
        parts = [(both, questions)] if temperature == 0 else [(both, few), (auto, questions)]
        for modes, some in parts:
            part = replace(schedule, modes=modes, temperatures=(temperature,))
            for record in bench.run(pair, some, part, results.records):
                results.keep(record)
                turn = record.turns[0]
                print(
                    f"{record.task} {record.key.number}, {record.key.mode}, T = {temperature:g}: "
                    f"{len(turn.tokens)} tokens in {turn.decode_seconds:.1f} s",
                    file=sys.stderr,
                )


def of_kind(questions: Sequence[Question], kind: str) -> list[Question]:
    return [question for question in questions if question.task == kind]


def show(pair: Pair, tasks: Sequence[Question], schedule: Schedule, results: bench.Results) -> None:
    """Print a table for each temperature that has answers."""
    names = (pair.target_name, pair.draft_label or "none")
    target, drafts = (Path(name).name for name in names)
    machine = results.facts["machine"]
    for temperature in schedule.temperatures:
        records = results.of(replace(schedule, temperatures=(temperature,)), tasks)
        if records:
            print(
                f"\n{target}, drafts: {drafts}, T = {temperature:g}, at most "
                f"{schedule.max_tokens} tokens, {machine['chip']}, {machine['cores']} cores\n\n"
                f"{table(pair, tasks, records)}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", help="a folder, or a model as for dflash -m")
    parser.add_argument("--out", type=Path, required=True, help="the file of the answers, JSONL")
    parser.add_argument("--draft", default="lookup", help="as for dflash -d")
    parser.add_argument("--lookup", action="store_true", help="copies beside the drafter, too")
    parser.add_argument("--temps", default="0,0.7")
    parser.add_argument("--per-kind", type=int, default=6, help="the first tasks of each kind")
    parser.add_argument("--max-tokens", type=int, default=96, help="of each answer")
    asked = parser.parse_args()
    tasks = bench.read_questions(TASKS)
    kinds = dict.fromkeys(task.task for task in tasks)
    questions = [task for kind in kinds for task in of_kind(tasks, kind)[: asked.per_kind]]
    schedule = Schedule(
        modes=bench.parse_modes(f"{PLAIN},{AUTO}"),
        temperatures=bench.parse_temperatures(asked.temps),
        max_tokens=asked.max_tokens,
    )
    pair = dflash_mlx.load(asked.target, asked.draft, lookup=asked.lookup, cache_ram=0)
    with bench.Results(bench.facts_of(pair, schedule), asked.out) as results:
        try:
            answer_all(pair, questions, schedule, results)
        except KeyboardInterrupt:
            print("stopped; the same command goes on from here", file=sys.stderr)
        show(pair, tasks, schedule, results)
        differences = bench.find_differences(results.of(schedule, tasks))
        for found in differences:
            known = bench.with_gap(found, pair, tasks, results.records, schedule)
            print(
                f"task {found.key.number} differs from token {found.token} on, where the target's "
                f"best logits are {known.gap:.2g} apart"
            )
    if differences:
        raise SystemExit("greedy answers differ from plain decoding")


if __name__ == "__main__":
    try:
        main()
    except DFlashError as error:
        raise SystemExit(f"{error.message} {error.hint or ''}") from None
