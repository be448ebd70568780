"""Run the tasks of a table of the DFlash paper on this machine, and print them as the paper does.

    uv pip install -e '.[bench]'
    python examples/measure/paper_table.py -m Qwen/Qwen3-4B --out qwen3-4b.jsonl
    python examples/measure/paper_table.py --quick        # the bundled pair, no download, a minute

Table 1 of arXiv 2602.06036: seven tasks at temperatures 0 and 1, thinking off, at most 2,048 tokens
an answer, speedup / τ. As there, a speedup is the ratio of the mean seconds a token, and τ the mean
over answers. The paper ran all prompts on a data-centre GPU; here `--limit` (default 16) are taken
of each task, and a Mac has another ratio between compute and memory, so only τ can come out alike.
Stopped with Ctrl-C, the same command goes on. The same in one command, with quartiles and plots:

    dflash bench gsm8k math500 aime25 humaneval mbpp livecodebench mt-bench -m Qwen/Qwen3-4B \
        --max-tokens 2048 --repeats 1 --limit 16 --out qwen3-4b.jsonl --plot qwen3-4b.png

The papers' comparison with other drafts is that command with `--drafts`:

    --drafts dflash,eagle3-16:AngelSlim/Qwen3-4B_eagle3,eagle3-60:AngelSlim/Qwen3-4B_eagle3,none
    --drafts model:Qwen/Qwen3-0.6B,lookup
"""

import argparse
import sys
from pathlib import Path

import dflash_mlx
from dflash_mlx import DFlashError, bench

TASKS = ("gsm8k", "math500", "aime25", "humaneval", "mbpp", "livecodebench", "mt-bench")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", help="target; without it the bundled pair")
    parser.add_argument("-d", "--draft", help="drafter; without it the target's known one")
    parser.add_argument("--modes", default="baseline,dflash", help="ddtree:32 and auto, too")
    parser.add_argument("--limit", type=int, default=16, help="prompts a task; 0: the paper's")
    parser.add_argument("--out", type=Path, help="JSONL file of results, to go on with")
    parser.add_argument("--quick", action="store_true", help="the bundled prompts, short answers")
    args = parser.parse_args()
    modes = bench.parse_modes(args.modes)
    tasks = ("bundled",) if args.quick else TASKS
    questions = [q for task in tasks for q in bench.questions_of(task, args.limit)]
    pair = dflash_mlx.load(args.model, args.draft)
    schedule = bench.Schedule(
        modes=modes,
        temperatures=(0.0, 1.0),
        max_tokens=128 if args.quick else 2048,
        think=False if pair.template.think_switch else None,
    )
    bench.check(pair, schedule, questions)
    with bench.Results(bench.facts_of(pair, schedule), args.out) as results:
        total = len(schedule.keys(questions))
        for record in bench.run(pair, questions, schedule, results.records):
            results.keep(record)
            print(f"\r{len(results.records):,} of {total:,}", end="", file=sys.stderr, flush=True)
        rows = bench.summarise(results.of(schedule, questions))
    print(file=sys.stderr)
    for temperature in schedule.temperatures:
        print_table([row for row in rows if row.temperature == temperature], temperature)


def print_table(rows: list[bench.Row], temperature: float) -> None:
    """Print speedup / τ: one line per mode, one column per task."""
    tasks = list(dict.fromkeys(row.task for row in rows))
    print(f"\nT={temperature:g}".ljust(15) + "".join(f"{task:>15}" for task in tasks))
    for mode in dict.fromkeys(row.mode for row in rows if row.mean_speedup is not None):
        cells = {row.task: row for row in rows if row.mode == mode}
        said = (
            f"{row.mean_speedup:.2f}/{row.mean_tau:.2f}" for row in (cells[task] for task in tasks)
        )
        print(f"{mode:14}" + "".join(f"{cell:>15}" for cell in said))


if __name__ == "__main__":
    try:
        main()
    except DFlashError as error:
        sys.exit(f"{error.message} {error.hint}")
    except KeyboardInterrupt:
        sys.exit("\nstopped; with --out the same command goes on")
