"""One rank of a group. Rank 0 answers prompts with sharded targets and prints the answers as JSON.

    python tests/support/sharded_answers.py JOBS

JOBS is a JSON list of [target folder, drafter folder], or of nulls for the bundled pair. The
variable `ANSWERS` names the kinds of answers, or "costs" to time a decode step. `FAULT` names a
fault to plant in the other ranks, or "goes on": then rank 0 answers until a rank is lost.
"""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence as Many
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map

import dflash_mlx
from dflash_mlx import DFlashError, SamplingParams
from dflash_mlx.distributed import progress
from dflash_mlx.distributed.follower import follow
from dflash_mlx.distributed.group import World, world
from dflash_mlx.distributed.leader import CachedRows, LeaderTarget
from dflash_mlx.engine.engine import Engine
from dflash_mlx.engine.latency_table import fingerprint
from dflash_mlx.engine.profiler import Job, Scratch
from dflash_mlx.engine.request import Request
from dflash_mlx.engine.sequence import Sequence
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.models.cache.target_cache import TargetCache
from dflash_mlx.models.target import Target
from dflash_mlx.pair import Pair

SLOW = 0.05  # seconds
FAULT_AT = 60  # passes
PROMPTS = tuple(
    tuple((7 * i * i + 3 * i + 11 * n) % 90 for i in range(9 + 5 * n)) for n in range(3)
)
TOKENS = 16
KINDS: dict[str, dict[str, Any]] = {
    "dflash": {"mode": "dflash", "block_size": 6},
    "ddtree": {"mode": "ddtree", "block_size": 6, "tree_budget": 9},
    "baseline": {"mode": "baseline"},
    "auto": {"mode": "auto"},
    "seeded": {
        "mode": "dflash",
        "block_size": 4,
        "sampling": SamplingParams(temperature=0.8, seed=7),
    },
}


PACKED = ["dflash", "ddtree", "seeded"]
ALL = (*KINDS, "packed", "shared")
BEGINNING = PROMPTS[2] * 2
ROOMY, TIGHT = 1 << 24, 20_000  # bytes of a prefix cache
SEEDED = SamplingParams(temperature=2.0, seed=7)  # greedy text of tiny targets settles soon


def answer(engine: Engine, kinds: list[str], count: int) -> list[list[int]]:
    """Answer the first `count` prompts as one batch, in two turns."""
    target, found = engine.target, []
    sequences = [Sequence(target, *engine.drafters) for _ in range(count)]
    for turn in range(2):
        for n, sequence in enumerate(sequences):
            prompt = (*PROMPTS[n], *(sequence.tokens[len(PROMPTS[n]) : -2] if turn else ()))
            options = {"sampling": SamplingParams(), **KINDS[kinds[n % len(kinds)]]}
            sampling = options.pop("sampling")
            request = Request((*prompt, 5 + turn), sampling=sampling, max_tokens=TOKENS, **options)
            engine.begin(sequence, request, len(prompt))
        said = [[] for _ in sequences]
        while running := [s for s in sequences if not s.answer.finish_reason]:
            for s, block in zip(running, engine.step(running), strict=True):
                assert not isinstance(block, DFlashError), block
                said[sequences.index(s)] += block.tokens
        for sequence in sequences:
            engine.stop(sequence)
        found += said
    return found


def shared(pair: Pair) -> list[float]:
    """Answers of chats that share prefixes, go back and fork; then with a prefix cache too small.

    Returns token and log-probability of each token. Before each answer comes the number of cached
    prompt tokens; -1 with the small cache.
    """
    engine, found = pair.engine, list[float]()

    def begin(sequence: Sequence, *tokens: int) -> None:
        prompt = (*BEGINNING, *tokens)
        request = Request(prompt, sampling=SEEDED, max_tokens=TOKENS, mode="dflash", logprobs=0)
        places = len(BEGINNING), len(prompt) - 1
        cached = engine.begin(sequence, request, *places).cached
        found.append(cached if engine.prefix_cache.limit == ROOMY else -1)

    def run_all(*sequences: Sequence) -> None:
        said = [list[float]() for _ in sequences]
        while running := [s for s in sequences if not s.answer.finish_reason]:
            for s, block in zip(running, engine.step(running), strict=True):
                assert not isinstance(block, DFlashError), block
                for token in block.logprobs:
                    said[sequences.index(s)] += [token.token, token.logprob]
        for sequence in sequences:
            engine.stop(sequence)
            found.extend(said.pop(0))

    for limit in (ROOMY, TIGHT):
        engine.prefix_cache.clear()
        engine.prefix_cache.limit = limit
        chats = [Sequence(pair.target, pair.drafter) for _ in range(4)]
        for number, chat in enumerate(chats[:3]):
            begin(chat, 7, number)
            if not number:
                run_all(chat)
        run_all(*chats[1:3])
        begin(chats[3], *chats[0].tokens[len(BEGINNING) :], 5)  # continues another chat
        twin = chats[3].fork()
        run_all(chats[3])
        run_all(twin)
        begin(chats[0], 7, 1)  # back to the start, then like another chat
        run_all(chats[0])
    engine.prefix_cache.clear()
    engine.prefix_cache.limit = 0
    return found


def answers(pair: Pair, kinds: list[str]) -> dict[str, list[Any]]:
    """Answers of each kind alone; "packed" batches three kinds in the same passes."""
    engine = Engine(pair.target, *pair.drafters, compiler=pair.compiler)
    found = dict[str, list[Any]]()
    for kind in kinds:
        if kind == "shared":
            found[kind] = shared(pair)
        else:
            several = kind == "packed"
            found[kind] = answer(engine, PACKED if several else [kind], 3 if several else 1)
    return found


def run(job: list[str | None], group: World | None, kinds: Many[str] = ALL) -> dict[str, Any]:
    """All answers of one pair; in a group also the counts of packets and collectives."""
    target, draft = job
    try:
        pair = dflash_mlx.load(target, draft, cache_ram=0, world=group)
    except DFlashError as error:
        return {"refused": f"{error.message} {error.hint}"}
    found: dict[str, Any] = mlx_thread().call(answers, pair, [*kinds])
    if isinstance(pair.target, LeaderTarget):
        calls, passes = pair.target.calls, COUNTS["passes"]
        found["packets"] = [calls.packets, passes, calls.packet_bytes]
        found["sums"], found["gathers"] = COUNTS["all_sum"], COUNTS["all_gather"]
        found["parameters"] = sum(v.size for _, v in flat_parameters(pair))
        COUNTS.update(passes=0, all_sum=0, all_gather=0)
    return found


def flat_parameters(pair: Pair) -> list[tuple[str, Any]]:
    """The parameters of the target in this process."""
    return tree_flatten(pair.target.model.parameters())  # type: ignore


COUNTS = {"passes": 0, "all_sum": 0, "all_gather": 0}


def count_collectives() -> None:
    """Count from now on the passes, and the collectives that they build."""
    for name in ("all_sum", "all_gather"):
        plain = getattr(mx.distributed, name)

        def counted(*args: Any, name: str = name, plain: Any = plain, **options: Any) -> Any:
            COUNTS[name] += 1
            return plain(*args, **options)

        setattr(mx.distributed, name, counted)
    read = LeaderTarget.read

    def counted_read(self: LeaderTarget, *args: Any, **options: Any) -> Any:
        COUNTS["passes"] += 1
        return read(self, *args, **options)

    LeaderTarget.read = counted_read  # type: ignore[method-assign]


def plant(fault: str) -> None:
    """Plant a fault, so that this rank departs from rank 0."""
    if fault == "misses a rewind":
        rewind, missed = TargetCache.rewind, []

        def faulty(self: TargetCache, length: int) -> None:
            if length < self.offset and len(missed) < 1:
                missed.append(length)
            else:
                rewind(self, length)

        TargetCache.rewind = faulty  # type: ignore[method-assign]
    if fault == "holds other rows":
        hold = CachedRows.hold

        def hold_backwards(self: CachedRows, name: str, *given: Any) -> None:
            hold(self, name, *given)
            self._rows[name] = tree_map(lambda rows: rows[..., ::-1, :], self._rows[name])

        CachedRows.hold = hold_backwards  # type: ignore[method-assign]

    elif fault == "runs references":
        os.environ["DFLASH_KERNELS"] = "off"
        attempt = Kernels.attempt

        def only_stock(self: Kernels, *args: Any) -> Any:
            assert not self.references, "rank 0 runs stock MLX"
            return attempt(self, *args)

        Kernels.attempt = only_stock  # type: ignore[method-assign]

    elif fault in ("hangs", "fails"):
        progress.UNKNOWN_SECONDS = progress.SLACK_SECONDS = 0.5
        read, passes = Target.read, count()
        victim = os.environ["MLX_RANK"] == os.environ["VICTIM"]

        def faulty_read(self: Target, *args: Any, **options: Any) -> Any:
            if next(passes) == FAULT_AT and victim:
                if fault == "fails":
                    raise RuntimeError("[METAL] Command buffer execution failed")
                time.sleep(3600)
            return read(self, *args, **options)

        Target.read = faulty_read  # type: ignore[method-assign]

    elif fault == "is slow":
        read = Target.read

        def slow(self: Target, *args: Any, **options: Any) -> Any:
            time.sleep(SLOW)
            return read(self, *args, **options)

        Target.read = slow  # type: ignore[method-assign]


def costs(group: World | None) -> dict[str, Any]:
    """Rank 0's seconds of a decode step of the bundled pair, and the key of its latency table."""
    pair = dflash_mlx.load(world=group)
    scratch = mlx_thread().call(Scratch, pair.target, None, 8, 2)
    plain = mlx_thread().call(scratch.run, Job("plain", 1))
    return {"plain": plain, "key": fingerprint(pair.target, pair.drafter)}


def cut_collectives(*_: Any) -> None:
    """Close this rank's connections of the ring, but not the control connection."""
    hosts = json.loads(Path(os.environ["MLX_HOSTFILE"]).read_text())
    ports = {int(address.rpartition(":")[2]) for (address,) in hosts}
    for fd in range(3, 256):
        with suppress(OSError), socket.socket(fileno=os.dup(fd)) as one:
            if {one.getsockname()[1], one.getpeername()[1]} & ports:
                one.shutdown(socket.SHUT_RDWR)


def go_on(pair: Pair) -> None:
    """Answer until a rank is lost; prints "begun" and, at the end, the error."""
    session = dflash_mlx.Session(pair, mode="dflash")
    for number in range(100_000):
        try:
            for _ in session.stream([*PROMPTS[0], number % 90], max_tokens=60):
                pass
        except DFlashError as error:
            print(f"{type(error).__name__}: {error.message}", flush=True)
            sys.exit(1)
        if number == 1:
            print("begun", flush=True)


def main() -> None:
    """Follow rank 0, or answer and print."""
    signal.signal(signal.SIGUSR1, cut_collectives)
    group = world()
    fault = os.environ.get("FAULT", "")
    if group is not None and (group.rank or fault in ("hangs", "fails")):
        plant(fault)
    if group is not None and group.rank:
        follow(group)
    if group is not None:
        count_collectives()
    if fault in ("goes on", "hangs", "fails"):
        go_on(dflash_mlx.load(*json.loads(Path(sys.argv[1]).read_text())[0], world=group))
    if os.environ.get("ANSWERS") == "costs":
        return print(json.dumps(costs(group)))
    jobs = json.loads(Path(sys.argv[1]).read_text())
    kinds = os.environ.get("ANSWERS", " ".join(ALL)).split()
    print(json.dumps([run(job, group, kinds) for job in jobs]))


if __name__ == "__main__":
    main()
