"""A target sharded over processes of this machine says what the whole one says, or says why not."""

import errno
import fcntl
import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hub_server import Hub, tiny_repo
from launched import Launched
from ranks import free_ports, ranks, results, save_family
from serving import serving
from sharded_answers import ALL, SLOW, run
from sharded_jobs import BUNDLED, FEW, check_equal, sharded
from tiny import ALL as EXHAUSTIVE
from tiny import FAMILIES, exhaustive, make_target

import dflash_mlx
from dflash_mlx.distributed import group as world
from dflash_mlx.distributed.environment import wiring
from dflash_mlx.distributed.follower import Follower
from dflash_mlx.distributed.group import END, ControlChannel, World
from dflash_mlx.distributed.leader import LeaderTarget, load_leader, memory_of_others, tree_of
from dflash_mlx.distributed.model_files import check_same, facts_of, own_folder
from dflash_mlx.distributed.shards import load_shard, shard
from dflash_mlx.engine.latency_table import fingerprint
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.files.checkpoint import Checkpoint, text_config
from dflash_mlx.hub.resolve import fetch
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.selfcheck.shapes import attention_shapes

UNSHARDED = ("muse_glimmer", "lfm2", "lfm2_moe")
loading = import_module("dflash_mlx.cli.loading")
ModelOptions = import_module("dflash_mlx.cli.options").ModelOptions
read_hosts = import_module("dflash_mlx.cli.launch").read_hosts
SHARDED = tuple(family for family in FAMILIES if family not in UNSHARDED)
OWN_SHARDS = ("qwen3_next", "gemma4_text")
FEW_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "linear_num_key_heads": 4}
JSON_TYPE = {"Content-Type": "application/json"}
# Seconds in which the loss of a rank has to be said; where tests share the cores, longer.
LIMIT = 10.0 if EXHAUSTIVE else 60.0


def test_two_ranks_say_what_one_machine_says(tmp_path: Path) -> None:
    """In all modes, seeded, packed, over two turns; each layer sums twice; each rank has half."""
    jobs = [save_family(tmp_path, "qwen3_5")]
    refused = save_family(tmp_path, "muse_glimmer")
    *found, last = sharded(tmp_path, 2, [*jobs, refused], FEW)
    for one, job in zip(found, jobs, strict=True):
        check_equal(one, job, FEW)
        assert one["sums"] == 2 * 3 * one["packets"][1]
    assert "'muse_glimmer' cannot be sharded" in last["refused"]


def test_a_missed_rewind_is_noticed(tmp_path: Path) -> None:
    """A rank that forgets to take back one verify's rows gives other answers from there on."""
    job = save_family(tmp_path, "qwen3")
    (found,) = sharded(tmp_path, 2, [job], ["dflash"], FAULT="misses a rewind")
    assert found["dflash"] != run(job, None, ["dflash"])["dflash"]


def test_ranks_with_other_kernels_run_those_of_rank_0(tmp_path: Path) -> None:
    """The other rank has DFLASH_KERNELS=off, which rank 0 has not; any reference fails there."""
    job = save_family(tmp_path, "qwen3_5")
    (found,) = sharded(tmp_path, 2, [job], ["dflash"], FAULT="runs references")
    assert found["dflash"] == run(job, None, ["dflash"])["dflash"]


HUNG = r"rank 1 has not finished a pass after \d+ seconds"
FAILED = r"rank 0 cannot go on \(RuntimeError: \[METAL\] Command buffer execution failed\)"


@pytest.mark.quick_every(2)
@pytest.mark.parametrize(
    ("fault", "victim", "said"),
    [("hangs", "1", HUNG), ("hangs", "0", HUNG), ("fails", "0", FAILED)],
)
def test_a_rank_that_hangs_or_fails_in_a_pass_ends_the_group(
    tmp_path: Path, fault: str, victim: str, said: str
) -> None:
    """Its heartbeats go on, and the other waits in a sum, which no retry may answer."""
    jobs = tmp_path / "jobs.json"
    jobs.write_text(json.dumps([save_family(tmp_path, "qwen3")]))
    command = ["tests/support/sharded_answers.py", str(jobs)]
    with ranks(tmp_path, 2, command, FAULT=fault, VICTIM=victim) as processes:
        out, _ = processes[0].communicate(timeout=LIMIT)
        _, also = processes[1].communicate(timeout=LIMIT)
    assert re.search(f"RankLost: {said}", out)
    assert re.search(f"{said}|rank 0 on 127.0.0.1 has ended", also)
    assert [process.returncode for process in processes] == [1, 1]


def test_a_silent_rank_is_named_and_not_one_that_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The passes of the others do not end either, which is noticed earlier."""
    monkeypatch.setattr(world, "mlx_thread", lambda: SimpleNamespace(give_up=lambda error: None))
    silence = "rank 2 on 10.0.0.3 has not answered for 5 seconds."
    sent = list[list[str]]()
    waits, stopped = (
        SimpleNamespace(silence=text, fail=lambda error: None, send=sent.append)
        for text in ("", silence)
    )
    group = as_world(0, cast(Any, waits), cast(Any, stopped))
    group.lose("rank 1 has not finished a pass after 5 seconds.")
    assert group.lost is not None
    assert (group.lost.message, group.lost.hint) == (silence, "start all ranks again")
    assert sent == [["lost", silence]] * 2


class Proofs:
    """Stands in for the self-check of two machines; notes which kernels are built on the other."""

    def __init__(self, other: Kernels):
        self.other = other
        self.tried = set[str]()
        self.built: Kernels | None = None

    def checked(self, kernels: Kernels, shapes: Any, trials: Any) -> Kernels:
        """The results of the other machine."""
        assert shapes.rows == 6
        self.tried = {trial.name for trial in trials}
        return replace(self.other, launcher=kernels.launcher)

    def build(self, kernels: Kernels, shapes: Any, *, trials: Any) -> dict[str, str]:
        """Nothing is compiled here, so nothing fails."""
        self.built = kernels
        return {}


IN_LAYERS = frozenset({"small_m_qmm", "verify_attention", "gated_delta_tape"})
LEADER_ON = IN_LAYERS | {"selector_walk"}
LEADER_SIZES = {"small_m_qmm": frozenset({(1, 2), (3, 4)}), "verify_attention": frozenset({(5,)})}


@pytest.mark.parametrize(
    ("other", "on", "sizes", "off"),
    [
        (
            Kernels(on=IN_LAYERS, sizes={"small_m_qmm": frozenset({(3, 4), (9, 9)})}),
            {"small_m_qmm", "verify_attention", "gated_delta_tape"},
            {"small_m_qmm": {(3, 4)}, "verify_attention": {(5,)}},
            {},
        ),
        (
            Kernels(
                on=frozenset({"verify_attention", "gated_delta_tape"}),
                off={"small_m_qmm": "1.3x as slow as MLX's own"},
                sizes={"verify_attention": frozenset({(6,)})},
            ),
            {"gated_delta_tape"},
            {},
            {
                "small_m_qmm": "rank 1: 1.3x as slow as MLX's own",
                "verify_attention": "not faster at the same sizes on all ranks",
            },
        ),
        (
            None,
            set(),
            {},
            dict.fromkeys(LEADER_ON - {"selector_walk"}, "rank 1: it runs no kernels"),
        ),
    ],
)
def test_a_kernel_runs_where_all_ranks_have_proven_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    other: Kernels | None,
    on: set[str],
    sizes: dict[str, set[Any]],
    off: dict[str, str],
) -> None:
    """At the sizes at which all do; those that run on rank 0 only are its own matter."""
    target = Path(str(save_family(tmp_path, "qwen3")[0]))
    follower, channel = follower_of_two()
    leader = as_world(0, channel)
    pair = load_leader(leader, str(target), Checkpoint.read(target), frozenset())
    proofs = Proofs(other or Kernels())
    monkeypatch.setattr("dflash_mlx.distributed.follower.checked", proofs.checked)
    monkeypatch.setattr("dflash_mlx.distributed.follower.build", proofs.build)
    launcher: Any = SimpleNamespace()
    if other is not None:
        follower.target.kernels = Kernels(launcher, on=frozenset())
    kernels = Kernels(launcher, on=LEADER_ON, sizes=LEADER_SIZES)
    pair.ask_for_kernels(kernels, 6)
    pair.kernels = kernels
    pair.calls.send("tap", ())
    assert pair.kernels.on == on | {"selector_walk"}
    assert pair.kernels.sizes == sizes
    assert pair.kernels.off == off
    assert (follower.target.kernels.on, follower.target.kernels.sizes) == (on, sizes)
    if other is not None:
        assert proofs.tried == IN_LAYERS
        assert proofs.built is not None
        assert proofs.built.on == on
    pair.kernels = replace(pair.kernels, on=frozenset(on - {"gated_delta_tape"}))  # it failed here
    pair.calls.send("tap", ())
    assert follower.target.kernels.on == on - {"gated_delta_tape"}
    pair.kernels = kernels  # also what was not allowed
    assert pair.kernels.on == on | {"selector_walk"}


@pytest.mark.slow
def test_wrong_rows_of_a_shared_beginning_are_noticed(tmp_path: Path) -> None:
    """A rank that holds the rows of other tokens gives other answers."""
    job = save_family(tmp_path, "qwen3")
    (found,) = sharded(tmp_path, 2, [job], ["shared"], FAULT="holds other rows")
    assert found["shared"] != pytest.approx(run(job, None, ["shared"])["shared"], abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_every_family_that_can_be_sharded(tmp_path: Path, count: int) -> None:
    """By two ranks all, by four (which take all cores while they wait) one of each kind."""
    some = SHARDED if count == 2 or EXHAUSTIVE else ("qwen3_moe", "qwen3_5")
    jobs = [save_family(tmp_path, family) for family in some]
    jobs += [BUNDLED] * (count == 2)  # it has six heads
    if count == 4 and EXHAUSTIVE:
        jobs += [save_family(tmp_path / "few", one, **FEW_HEADS) for one in OWN_SHARDS]
    kinds = ALL if count == 2 else FEW
    for found, job in zip(sharded(tmp_path, count, jobs, kinds), jobs, strict=True):
        check_equal(found, job, kinds)


@exhaustive
@pytest.mark.slow
def test_three_ranks(tmp_path: Path) -> None:
    """With heads that three divides."""
    heads = {"num_attention_heads": 6, "num_key_value_heads": 3, "linear_num_key_heads": 3}
    heads |= {"linear_num_value_heads": 6}
    jobs = [save_family(tmp_path, one, **heads) for one in ("qwen3", *OWN_SHARDS)]
    for found, job in zip(sharded(tmp_path, 3, jobs, FEW), jobs, strict=True):
        check_equal(found, job, FEW)


@pytest.mark.slow
def test_launch_gives_rank_0_the_streams(tmp_path: Path) -> None:
    """And one answer on them, with the exit code; what does not run on several machines is said."""
    start = [sys.executable, "-m", "dflash_mlx", "launch", "-n", "2", "--first-port"]
    start += [str(free_ports(1)[0]), "--"]
    run_it = partial(subprocess.run, capture_output=True, text=True, check=False)
    done = run_it([*start, "generate", "--mode", "dflash", "-"], input="What is 3 plus 4?")
    assert (done.returncode, done.stderr.count("Error")) == (0, 0), done.stderr
    assert "3 plus 4 is 7" in done.stdout
    offline = run_it([*start, "generate", "hi", "-m", "nowhere/model", "--offline"])
    assert offline.returncode == 1
    assert (
        "offline it cannot be downloaded" in offline.stderr
    )  # joining has not read the setting yet
    refused = run_it([*start, "bench"], stdin=subprocess.DEVNULL)
    assert refused.returncode == 2
    assert "'bench' does not run on several machines" in refused.stderr


@pytest.mark.slow
def test_the_slowest_rank_decides_the_costs(tmp_path: Path) -> None:
    """Rank 0's times of passes include its waiting; they are kept apart from one machine's."""
    env = {"ANSWERS": "costs", "FAULT": "is slow"}
    with ranks(tmp_path, 2, ["tests/support/sharded_answers.py", "-"], **env) as processes:
        found = json.loads(results(processes)[0].splitlines()[-1])
    assert found["plain"] >= 0.95 * SLOW  # a sleep cannot be shorter
    pair = dflash_mlx.load()
    assert found["key"] != fingerprint(pair.target, pair.drafter)


def test_what_costs_of_a_shared_target_depend_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same shapes on other machines, by another backend, or by more ranks, cost otherwise."""
    pair, keys, hosts = dflash_mlx.load(), set[str](), tmp_path / "hosts.json"
    groups = [
        ("MLX_HOSTFILE", [["10.0.0.1:5"], ["10.0.0.2:6"]]),
        ("MLX_HOSTFILE", [["10.0.0.1:5"], ["10.0.0.3:6"]]),
        ("MLX_HOSTFILE", [["10.0.0.1:5"], ["10.0.0.2:6"], ["10.0.0.3:7"]]),
        ("MLX_IBV_DEVICES", [[None, "rdma_en2"], ["rdma_en2", None]]),
    ]
    again = "MLX_HOSTFILE", [["10.0.0.1:15"], ["10.0.0.2:16"]]  # other ports
    for name, content in [*groups, again]:
        hosts.write_text(json.dumps(content))
        with monkeypatch.context() as patch:
            patch.setenv(name, str(hosts))
            patch.setattr(pair.target, "shared_by", wiring())
            keys.add(fingerprint(pair.target, pair.drafter))
    keys.add(fingerprint(pair.target, pair.drafter))
    assert len(keys) == len(groups) + 1


@pytest.mark.slow
def test_serve_says_what_one_machine_says(tmp_path: Path) -> None:
    """Six clients at once, greedy and seeded, whose prompts begin alike."""
    job = save_family(tmp_path, "qwen3_untied")
    with serving(dflash_mlx.load(*job)) as served:
        whole = ask_all(served.port)
    (tmp_path / "home").mkdir(exist_ok=True)
    group = Launched(tmp_path / "home", 2, "serve", pair=job)
    try:
        group.ready()
        assert ask_all(group.port) == whole
        assert len(set(whole)) > 3
    finally:
        group.close()


def ask_all(port: int) -> list[str]:
    """What a server says to all clients, which ask at the same time."""

    def ask(number: int) -> str:
        system = {"role": "system", "content": "Numbers and words of all kinds, please. " * 3}
        asked = {"messages": [system, {"role": "user", "content": f"Go on from {number // 2}."}]}
        how = {"temperature": 0.9, "seed": number} if number % 2 else {"temperature": 0}
        body = json.dumps({"model": "m", "max_tokens": 24, **asked, **how})
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        connection.request("POST", "/v1/chat/completions", body, JSON_TYPE)
        return json.load(connection.getresponse())["choices"][0]["message"]["content"]

    with ThreadPoolExecutor(6) as clients:
        return [*clients.map(ask, range(6))]


@pytest.mark.parametrize(
    ("family", "ranks", "heads", "refused"),
    [
        ("llama", 2, (2, 1), "1 key and value heads cannot be shared by 2 ranks"),
        ("llama", 3, (4, 4), "4 attention heads and 4 key and value heads cannot be shared by 3"),
        ("qwen3_5", 3, (6, 2), "recurrent value heads and 2 key and value heads cannot be shared"),
        ("gemma4_text", 3, (6, 2), "2 key and value heads cannot be shared by 3 ranks"),
    ],
)
def test_heads_that_ranks_cannot_share(
    family: str, ranks: int, heads: tuple[int, int], refused: str
) -> None:
    """A shard() would leave a head out, or cut one, without a word."""
    target = make_target(family, num_attention_heads=heads[0], num_key_value_heads=heads[1])
    group: Any = SimpleNamespace(size=lambda: ranks, rank=lambda: 0)
    with pytest.raises(DFlashError, match=refused):
        shard(target.model, target.config, group)


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5", "gemma4_text"])
def test_a_shard_has_the_config_of_its_heads(tmp_path: Path, family: str) -> None:
    """Kernels are proven and timed at the shapes that a rank runs, not at those of the whole."""
    folder = Path(str(save_family(tmp_path, family)[0]))
    model, config = load_shard(folder, cast(Any, SimpleNamespace(size=lambda: 2, rank=lambda: 1)))
    shapes = attention_shapes(text_config(config))
    found = {(shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim) for shape in shapes}
    layers = [layer.self_attn for layer in cast(Any, model).layers if "self_attn" in layer]
    assert found == {
        (attention.o_proj.weight.shape[1], attention.k_proj.weight.shape[0]) for attention in layers
    }


def test_each_rank_has_to_have_room_for_its_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 says which one has not, before anything is loaded; --force only warns."""
    target, _ = save_family(tmp_path, "qwen3")
    said: list[Any] = []
    _, channel = follower_of_two("rank 1 on 10.0.0.2")
    group = as_world(0, channel)
    monkeypatch.setattr("dflash_mlx.distributed.group.world", lambda: group)
    monkeypatch.setattr("dflash_mlx.distributed.follower.working_set", lambda: 10_000)
    options, out = ModelOptions(model=target), SimpleNamespace(warn=said.append)
    sentence = f"'{target}' needs .* may take on rank 1 on 10.0.0.2"
    with pytest.raises(DFlashError, match=sentence):
        loading.check_memory(Path(str(target)), None, str(target), options, out)
    loading.check_memory(Path(str(target)), None, str(target), replace(options, force=True), out)
    (warning,) = said
    assert re.match(sentence, warning)
    with pytest.raises(DFlashError, match=r"rank 1 on 10.0.0.2: there is no folder '/nowhere'"):
        memory_of_others(group, "/nowhere")


def test_only_rank_0_downloads(hub: Hub) -> None:
    """Another rank without the model says so, and asks the Hub for nothing."""
    hub.repos = {"some/model": tiny_repo()}
    with pytest.raises(DFlashError, match="'some/model' is not on this machine") as caught:
        own_folder("some/model")
    assert "models pull some/model" in caught.value.hint
    assert not hub.requests
    assert own_folder(str(fetch("some/model"))) == own_folder("some/model")


@pytest.mark.parametrize(("rank", "offline"), [("0", None), ("1", "1")])
def test_libraries_of_other_ranks_are_offline(
    monkeypatch: pytest.MonkeyPatch, rank: str, offline: str | None
) -> None:
    """From their start, before anything asks the Hub."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "")  # so that it is put back
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("MLX_RANK", rank)
    monkeypatch.setattr(world, "world", lambda: None)
    import_module("dflash_mlx.cli.app").follow_or_lead()
    assert os.environ.get("HF_HUB_OFFLINE") == offline


def as_world(rank: int, *channels: ControlChannel) -> World:
    """A rank of a group of two that MLX knows nothing of."""
    found = World(cast(Any, SimpleNamespace(rank=lambda: rank, size=lambda: 2)))
    found.channels = [*channels]
    return found


def follower_of_two(name: str = "rank 1") -> tuple[Follower, Any]:
    """A follower, and a channel of rank 0 by which it does each remote call at once."""
    said: list[Any] = []
    group = SimpleNamespace(rank=lambda: 1, size=lambda: 2)
    leader = SimpleNamespace(name=name, send=said.append)
    follower = Follower(cast(Any, SimpleNamespace(size=2, channels=[leader], group=group)))

    def send(packet: list[Any]) -> int:
        for call in json.loads(json.dumps(packet)):
            follower.do(call)
        return 0

    def receive() -> Any:
        return json.loads(json.dumps(said.pop()))

    return follower, SimpleNamespace(name=name, send=send, receive=receive)


@contextmanager
def connected() -> Iterator[tuple[ControlChannel, ControlChannel]]:
    """The ends of a connection on rank 0 and on rank 1."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        ends, lost = (server.accept()[0], one), list[str]()
    near, far = (ControlChannel(end, "the other", lost.append) for end in ends)
    try:
        yield near, far
    finally:
        near.end()
        ends[0].shutdown(socket.SHUT_WR)
    assert not lost


def test_an_answer_that_nobody_waits_for_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while other ranks load or measure: later questions get their own answers."""
    small, large = (Path(str(save_family(tmp_path, one)[0])) for one in ("qwen3", "qwen3_moe"))
    with ThreadPoolExecutor(1) as thread, connected() as (near, far):
        leader, follower = as_world(0, near), Follower(as_world(1, far))
        running = thread.submit(follower.run)
        with monkeypatch.context() as patch:
            patch.setattr(LeaderTarget, "load", interrupted)
            with pytest.raises(KeyboardInterrupt):
                load_leader(leader, "/nowhere", Checkpoint.read(small), frozenset())
            patch.setattr(near, "receive", interrupted)
            with pytest.raises(KeyboardInterrupt):
                memory_of_others(leader, str(large))
        ((_, found, _),) = memory_of_others(leader, str(small))
        assert found.weights == follower.measure(str(small))[0] != follower.measure(str(large))[0]
    running.result()


def interrupted(*args: Any, **how: Any) -> None:
    """What Ctrl-C does."""
    raise KeyboardInterrupt


def test_strangers_do_not_keep_ranks_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is silent, gone or wrong is left; a rank may come to another address than is listed."""
    cards, lost = SimpleQueue[list[int]](), list[object]()

    def share(group: Any, numbers: list[int]) -> list[int]:
        """MLX's sum: rank 0's numbers on all ranks."""
        if group.rank() == 0:
            cards.put(numbers)
        return numbers if group.rank() == 0 else cards.get()

    monkeypatch.setattr(world, "share", share)
    monkeypatch.setattr(world, "BEAT", 0.01)
    leader, other = as_world(0), as_world(1)
    for one in (leader, other):
        monkeypatch.setattr(one, "lose", lost.append)
    with ThreadPoolExecutor(1) as thread:
        connecting = thread.submit(world.connect, leader, ["192.0.2.1"])
        card = cards.get()
        strangers = [socket.create_connection(("127.0.0.1", card[0])) for _ in range(3)]
        strangers[1].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        strangers[1].close()
        strangers[2].sendall(bytes(17))
        cards.put(card)
        world.connect(other, ["127.0.0.1", "192.0.2.1"])
        connecting.result()
    assert [channel.name for channel in leader.channels] == ["rank 1 on 127.0.0.1"]
    assert strangers[0].recv(1) == strangers[2].recv(1) == b""
    leader.end()
    assert other.channels[0].receive() == END
    assert not lost


def test_only_connections_of_the_ring_are_duplicated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """macOS ends a process that duplicates a guarded file; nothing else is left open either."""
    duplicated = list[int]()

    def dup(fd: int) -> int:
        duplicated.append(fd)
        return fcntl.fcntl(fd, fcntl.F_DUPFD)

    with (
        (tmp_path / "file").open("wb"),
        socket.create_server(("127.0.0.1", 0)) as ring,
        socket.create_server(("127.0.0.1", 0)) as other,
        socket.create_connection(ring.getsockname()) as near,
        socket.create_connection(other.getsockname()),
        ring.accept()[0] as far,
        socket.socketpair()[0],
    ):
        hosts = tmp_path / "hosts.json"
        hosts.write_text(json.dumps([[f"127.0.0.1:{ring.getsockname()[1]}"]]))
        monkeypatch.setenv("MLX_HOSTFILE", str(hosts))
        monkeypatch.setattr(os, "dup", dup)
        before = os.listdir("/dev/fd")
        found = world.ring_sockets()
        assert sorted(duplicated) == sorted([near.fileno(), far.fileno()])
        assert {one.getsockname() for one in found} == {near.getsockname(), far.getsockname()}
        for one in found:
            one.close()
        assert os.listdir("/dev/fd") == before


@pytest.mark.parametrize(
    ("raised", "said", "hint"),
    [
        (
            f"[ring] Couldn't bind socket (error: {errno.EADDRINUSE})",
            "another program on this machine has the port 32324.",
            "--first-port",
        ),
        (
            f"[jaccl] Couldn't bind socket (error: {errno.EADDRNOTAVAIL})",
            "this machine does not have the address that the host file gives it",
            "the host file",
        ),
        (
            f"[ring] Couldn't connect (error: {errno.EHOSTUNREACH})",
            "cannot reach each other ([ring] Couldn't connect: No route to host).",
            "Local Network",
        ),
        ("[jaccl] Could not find device rdma_en2 (0 available)", "rdma_en2", "rdma_ctl enable"),
        ("[distributed] Couldn't initialize any backend", "any backend", "the host file"),
    ],
)
def test_why_ranks_do_not_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: str, said: str, hint: str
) -> None:
    """MLX's error number in words, and what helps."""
    hosts = tmp_path / "hosts.json"
    hosts.write_text(json.dumps([["10.0.0.1:32323"], ["10.0.0.2:32324"]]))
    monkeypatch.setenv("MLX_RANK", "1")
    monkeypatch.setenv("MLX_HOSTFILE", str(hosts))

    def init(**_: Any) -> None:
        raise RuntimeError(raised)

    monkeypatch.setattr(world.mx.distributed, "init", init)
    with pytest.raises(DFlashError, match=re.escape(said)) as caught:
        world.init_group()
    assert hint in caught.value.hint


def test_a_machine_without_rdma(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLX calls a null pointer there."""
    monkeypatch.setenv("MLX_RANK", "0")
    monkeypatch.setenv("MLX_IBV_DEVICES", "devices.json")
    monkeypatch.setattr(world.mx.distributed, "init", lambda **_: pytest.fail("it crashes"))
    with pytest.raises(DFlashError, match="no RDMA") as caught:
        world.init_group()
    assert "--backend ring" in caught.value.hint


def test_a_rank_that_cannot_reach_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one sentence, with all addresses that were tried."""
    monkeypatch.setattr(world, "share", lambda *_: [*free_ports(1), *bytes(16)])
    sentence = r"cannot reach rank 0 on localhost or 127.0.0.1 \(Connection refused\)"
    with pytest.raises(DFlashError, match=sentence):
        world.connect(as_world(1), ["localhost", "127.0.0.1"])


@pytest.mark.parametrize(
    ("come", "own", "likeliest"),
    [
        ("10.0.0.1 5 10.0.0.2 22", {}, "10.0.0.1"),
        ("fe80::1%en5 5 fe80::2%en5 22", {}, "fe80::1%en5"),
        ("10.0.0.1 5 10.0.0.2 22", {"DFLASH_LEADER": "10.9.9.9"}, "10.9.9.9"),
        ("", {}, "10.0.0.7"),
    ],
)
def test_where_a_rank_looks_for_rank_0(come: str, own: dict[str, str], likeliest: str) -> None:
    """First where its sshd says that it was called from, unless it is told; then the host file."""
    command = import_module("dflash_mlx.cli.launch")
    program = "from dflash_mlx.distributed.environment import leader_hosts; print(*leader_hosts())"
    content = "MLX_HOSTFILE", [["10.0.0.7:5"], ["10.0.0.8:6"]]
    line = command.remote_line(own, content, 1, ["-c", program])
    env = {**os.environ, "SSH_CONNECTION": come}
    said = subprocess.run(["sh", "-c", line], env=env, capture_output=True, text=True, check=True)
    assert said.stdout.split() == [*dict.fromkeys([likeliest, "10.0.0.7"])]


GOOD_HOSTS = [{"ssh": "mac1", "ips": ["10.0.0.1"]}, {"ssh": "mac2", "ips": ["10.0.0.2"]}]


def by_rdma(*devices: list[Any]) -> dict[str, Any]:
    """A host file with these RDMA devices."""
    hosts = [{**host, "rdma": own} for host, own in zip(GOOD_HOSTS, devices, strict=True)]
    return {"hosts": hosts, "backend": "jaccl"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([GOOD_HOSTS[0], {"ssh": "mac2", "ips": "10.0.0.2"}], "no list of addresses of mac2"),
        ([GOOD_HOSTS[0], {"ssh": "mac2", "ips": [""]}], "no list of addresses of mac2"),
        ([{"ssh": "mac1"}, GOOD_HOSTS[1]], "no list of addresses of mac1"),
        ([GOOD_HOSTS[0], {"ssh": "mac2"}], "no list of addresses of mac2"),
        ({"hosts": GOOD_HOSTS, "envs": ["FOO"]}, "envs that set no variables .*FOO"),
        ({"hosts": GOOD_HOSTS, "envs": "A=1"}, "envs that set no variables"),
        ({"hosts": GOOD_HOSTS, "backend": "mpi"}, "names no group: 2 machines, backend mpi"),
        (GOOD_HOSTS[:1], "names no group: 1 machines"),
        (by_rdma([None], ["en2", None]), "no list of 2 RDMA devices of mac1"),
        (by_rdma([None, "en2"], [None, "en2"]), "no list of 2 RDMA devices of mac2"),
        (by_rdma([None, "en2"], [[], None]), "no RDMA device of mac2 to mac1"),
        (by_rdma([None, None], ["en2", None]), "no RDMA device of mac1 to mac2"),
        ({"hosts": GOOD_HOSTS, "backend": "jaccl-ring"}, "no list of 2 RDMA devices of mac1"),
        ({"hosts": 3}, "is not a host file"),
        ([], "names no group"),
    ],
)
def test_host_files_that_cannot_be_used(tmp_path: Path, content: Any, said: str) -> None:
    """In one sentence, with the machine."""
    file = tmp_path / "hosts.json"
    file.write_text(json.dumps(content))
    with pytest.raises(UsageError, match=said):
        read_hosts(file)


def test_host_files_as_mlx_writes_them(tmp_path: Path) -> None:
    """By RDMA only the first needs an address."""
    file = tmp_path / "hosts.json"
    hosts = [{**GOOD_HOSTS[0], "rdma": [None, "en2"]}, {"ssh": "mac2", "rdma": [["en2"], None]}]
    file.write_text(json.dumps({"hosts": hosts, "backend": "jaccl", "envs": ["A=b=c"]}))
    common, (_, devices) = read_hosts(file).variables(5)
    assert common == {"A": "b=c", "MLX_JACCL_COORDINATOR": "10.0.0.1:5"}
    assert devices == [[None, "en2"], [["en2"], None]]
    file.write_text(json.dumps(GOOD_HOSTS))
    _, (_, addresses) = read_hosts(file).variables(5)
    assert (read_hosts(file).ssh, addresses) == ((None, "mac2"), [["10.0.0.1:5"], ["10.0.0.2:6"]])


def test_other_files_or_versions_are_refused(tmp_path: Path) -> None:
    """By name, with both sides."""
    target, _ = save_family(tmp_path, "qwen3")
    facts = facts_of(Path(str(target)))
    check_same(facts, dict(facts))
    with pytest.raises(DFlashError, match=r"mlx: 0\.1, and rank 0 has"):
        check_same({**facts, "mlx": "0.1"}, facts)
    with pytest.raises(DFlashError, match=r"model.safetensors: none"):
        check_same({k: v for k, v in facts.items() if "tensors" not in k}, facts)
    with pytest.raises(DFlashError, match=r"config.json differs"):
        check_same({**facts, "config.json": "{}"}, facts)


def test_a_tree_travels_by_its_parents() -> None:
    tree = tree_of([9, 1, 2, 3], [0, 0, 2])
    assert tree is not None
    assert (tree.tokens, tree.parents, tree.depths) == ((1, 2, 3), (0, 0, 2), (1, 1, 2))


def lose(folder: Path, count: int, victim: int, how: int) -> None:
    """Every other rank says so in one sentence, and ends, in time.

    By SIGUSR1 the victim cuts its connections of the ring, and then it is one of those that say so.
    """
    jobs = folder / "jobs.json"
    jobs.write_text(json.dumps([save_family(folder, "qwen3_5")]))
    command = ["tests/support/sharded_answers.py", str(jobs)]
    with ranks(folder, count, command, FAULT="goes on") as processes:
        out = processes[0].stdout
        assert out is not None
        assert out.readline() == "begun\n"
        os.kill(processes[victim].pid, how)
        began = time.monotonic()
        for rank, process in enumerate(processes):
            if rank != victim or how == signal.SIGUSR1:
                said, err = process.communicate(timeout=LIMIT)
                # MLX's own messages may come between the words of ours: it writes them in pieces.
                own = re.sub(r"\[ring\]| Socket \d+ was [^\n]*", "", err).strip()
                sentence = said.removeprefix("RankLost: ") if rank == 0 else own
                assert sentence.count(".\n") + sentence.endswith(".") >= 1, (rank, said, err)
                assert f"rank {victim}" in sentence or "connection" in sentence, (said, err)
                assert process.returncode == 1
        assert time.monotonic() - began < LIMIT


@pytest.mark.slow
def test_the_loss_of_a_rank_is_said(tmp_path: Path) -> None:
    """Rank 0 has waited in a collective for ever."""
    lose(tmp_path, 2, 1, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP, signal.SIGUSR1])
@pytest.mark.parametrize(("count", "victim"), [(2, 0), (2, 1), (4, 2)])
def test_any_rank_may_be_lost(tmp_path: Path, count: int, victim: int, how: int) -> None:
    """Dead, stopped, or cut off from the ring."""
    lose(tmp_path, count, victim, how)
