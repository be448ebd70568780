"""A rank other than 0: runs the remote calls of rank 0 on its part of the target.

It makes the same passes over the same tokens as rank 0, and changes its caches in the same way.
"""

import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import Any

import mlx.core as mx

from dflash_mlx.engine.prefix_cache.prefix_cache import default_limit
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.errors import DFlashError, first_line
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.kernels.dispatch import Kernels, on_cpu
from dflash_mlx.models.cache.target_cache import TargetCache
from dflash_mlx.models.memory import estimate_memory, working_set
from dflash_mlx.models.packed import SequenceRows
from dflash_mlx.models.target import Target
from dflash_mlx.selfcheck.check import TIME_BUDGET, PairCheck, build
from dflash_mlx.selfcheck.shapes import Shapes
from dflash_mlx.selfcheck.trials import TRIALS, Trial

from .group import BEAT, END, World, exit_with_message
from .kernels import Enabled, common, enabled_in_layers, with_layers
from .leader import CachedRows, RemoteCall, begin, tree_of
from .model_files import ModelFacts, check_same, facts_of, own_folder
from .progress import PassTimes
from .shards import part_loader

LONG = 256  # rows of a pass after which unused memory is freed, as on rank 0


class Follower:
    """A rank's part of a target, and its caches by number."""

    def __init__(self, world: World):
        self._world = world
        (self._leader,) = world.channels
        self._target: Target | None = None
        self._caches: dict[int, TargetCache] = {}
        self._cached = defaultdict[int, CachedRows](CachedRows)
        self._times = PassTimes()

    def watch(self) -> None:
        """Wait until a pass takes too long; then tell rank 0, which ends the group."""
        while not (fault := self._times.overdue()):
            time.sleep(BEAT)
        self._leader.send(["lost", f"rank {self._world.rank} {fault}"])

    def run(self) -> None:
        """Run remote calls until rank 0 ends."""
        while (packet := self._leader.receive()) != END:
            for call in packet:
                self.do(call)

    def do(self, call: RemoteCall) -> None:
        """Run one remote call: its name, followed by its arguments."""
        match call:
            case ["measure", question, name]:
                self._leader.send(reply_to(question, lambda: self.measure(name)))
            case ["load", question, name, facts, split]:
                self._leader.send(reply_to(question, lambda: self.load(name, facts, split)))
            case ["prove", question, rows, wanted]:
                self._leader.send(reply_to(question, lambda: self.prove(rows, wanted)))
            case ["kernels", references, enabled]:
                own = replace(self.target.kernels, references=references)
                self.target.kernels = with_layers(own, enabled, {})
            case ["tap", layer_ids]:
                self.target.tap(tuple(layer_ids))
            case ["new", number]:
                self._caches[number] = self.target.make_cache()
            case ["fork", number, twin]:
                self._caches[twin] = self._caches[number].fork()
            case ["free", number]:
                self._caches.pop(number, None)
            case ["read", at_once, parts]:
                self.read(parts, at_once=at_once)
            case ["snapshot", number]:
                self._caches[number].snapshot()
            case ["rewind", number, length]:
                self._caches[number].rewind(length)
            case ["keep_path", number, rows]:
                self._caches[number].keep_path(tuple(rows))
            case ["fill", number, depth]:
                self._caches[number].fill(depth)
            case ["hold", cache_number, name, number, start, end]:
                self._cached[cache_number].hold(name, self._caches[number], start, end)
            case ["hold_states", cache_number, name, number, length]:
                self._cached[cache_number].hold_states(name, self._caches[number], length)
            case ["extend", cache_number, number, parts, states, end]:
                self._cached[cache_number].extend(self._caches[number], parts, states, end)
            case ["drop", cache_number, name]:
                self._cached[cache_number].drop(name)
            case ["drop_states", cache_number, name, length]:
                self._cached[cache_number].drop_states(name, length)
            case ["drop_all", cache_number]:
                self._cached.pop(cache_number, None)
            case _:
                raise AssertionError(call)

    @property
    def target(self) -> Target:
        """The target that was loaded last."""
        assert self._target is not None
        return self._target

    def measure(self, name: str) -> list[int]:
        """Bytes of the weights and the caches of this rank's part, and the working set."""
        item = 4 if on_cpu() else 2
        ranks = self._world.size
        needed = estimate_memory(own_folder(name), item_bytes=item, ranks=ranks)
        return [needed.weights, needed.caches, working_set()]

    def load(self, name: str, facts: ModelFacts, split: str) -> list[int]:
        """Load this rank's part of a target. Returns the bytes left for a prefix cache."""
        self._target = None
        self._caches = {}
        self._cached.clear()
        self._times = PassTimes()
        mx.clear_cache()
        path = own_folder(name)
        check_same(facts_of(path), facts)
        read_model = partial(part_loader(split), group=self._world.group)
        no_ends = frozenset[int]()  # rank 0 decides where an answer ends
        self._target = Target.load(Checkpoint.read(path), no_ends, read_model=read_model)
        return [default_limit()]

    def prove(self, rows: int, wanted: Enabled) -> list[Any]:
        """Which of rank 0's kernels this machine has proven, and why it runs no other.

        rows: of a verify pass. They are built, too.
        """
        kernels = self.target.kernels
        if kernels.launcher is None:
            return [{}, dict.fromkeys(wanted, "it runs no kernels")]
        shapes = replace(Shapes.of(self.target, None), rows=rows)
        trials = [trial for trial in TRIALS if trial.name in wanted]
        kernels = checked(kernels, shapes, trials)
        enabled = common(enabled_in_layers(kernels), wanted)
        failed = build(with_layers(kernels, enabled, {}), shapes, trials=trials)
        enabled = {name: sizes for name, sizes in enabled.items() if name not in failed}
        return [enabled, {**kernels.off, **failed}]

    def read(self, parts: list[RemoteCall], *, at_once: bool) -> None:
        """Run the same pass as rank 0."""
        rows = [
            SequenceRows(self._caches[number], mx.array(tokens), tree_of(tokens, parents), *how)
            for number, tokens, parents, *how in parts
        ]
        count = sum(part.tokens.size for part in rows)
        with self._times.measured(count, max(part.cache.offset for part in rows)):
            passes = self.target.read(rows, at_once=at_once)
            begin(rows, passes)
            mx.eval([sequence_pass.logits for sequence_pass in passes])
        if count >= LONG:
            mx.clear_cache()


def checked(kernels: Kernels, shapes: Shapes, trials: list[Trial]) -> Kernels:
    """The kernels of these trials that are right and fast on this machine."""
    check = PairCheck(kernels, shapes, trials=trials)
    check.run(TIME_BUDGET)  # the rest at the next start, as on rank 0
    return check.kernels()


def reply_to(question: int, work: Callable[[], list[Any]]) -> list[Any]:
    """The reply to a question of rank 0: the result of some work, or its error."""
    try:
        return ["done", question, *work()]
    except DFlashError as error:
        return ["failed", question, error.message, error.hint]


def follow(world: World) -> None:
    """Follow rank 0 until it ends, then exit. Only rank 0 handles Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    (leader,) = world.channels
    follower = Follower(world)
    Thread(target=follower.watch, name="dflash-passes", daemon=True).start()
    try:
        mlx_thread().call(follower.run)
    except Exception as error:
        if not leader.ended:
            sentence = (
                f"rank {world.rank} cannot go on ({type(error).__name__}: {first_line(error)})."
            )
            leader.send(["lost", sentence])
            exit_with_message(sentence)
    sys.exit(0)
