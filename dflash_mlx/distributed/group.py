"""The group that this process belongs to: its ranks, and the control connections between them.

Rank 0 has a connection to every other rank, beside the collectives of `mx.distributed`. Whatever is
lost is said in one sentence on each rank, and the other ranks end.
"""

import atexit
import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import count
from queue import SimpleQueue
from statistics import median
from threading import Lock, Thread, Timer
from typing import Any

import mlx.core as mx

from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.errors import DFlashError, RankLost, first_line

from .environment import LOOPBACK, RANK, RING, leader_hosts, watch_launcher

# The connections of MLX's ring


def ring_sockets() -> list[socket.socket]:
    """Twins of this process's connections of the ring; none with another backend."""
    found: list[socket.socket] = []
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        with open(os.environ[RING], encoding="utf-8") as file:
            ports = {int(one.rpartition(":")[2]) for ips in json.load(file) for one in ips}
        for fd in map(int, os.listdir("/dev/fd")):
            with suppress(OSError):
                twin = socket.socket(fileno=os.dup(fd))
                if {twin.getsockname()[1], twin.getpeername()[1]} & ports:
                    found.append(twin)
                else:
                    twin.close()
    return found


def is_cut(connection: socket.socket) -> bool:
    """Whether the other end has closed it."""
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


# The control connection of two ranks

BEAT = 0.5  # seconds
SILENT = 12  # beats without a word until a rank counts as lost
END = ["end"]


class Peer:
    """One end of a connection to the rank `name`; two threads of its own listen and beat.

    `on_lost(sentence)` is called once, in one of them, when the other end dies, falls silent, or
    says itself why it cannot go on.
    """

    def __init__(self, connection: socket.socket, name: str, on_lost: Callable[[str], None]):
        self.name = name
        self._on_lost = on_lost
        self._connection = connection
        self._sending = Lock()
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._silent = 0
        self.ended = False
        self._lost = False
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for work in (self._listen, self._beat):
            Thread(target=work, name=f"dflash-{work.__name__}", daemon=True).start()

    def send(self, message: Any) -> int:
        """Send a message: its bytes. A connection that is gone is found by the listener."""
        data = json.dumps(message, separators=(",", ":")).encode()
        with self._sending, suppress(OSError):
            self._connection.sendall(len(data).to_bytes(4, "big") + data)
        return len(data)

    def receive(self) -> Any:
        """The next message; raises what `fail` was given."""
        found = self._inbox.get()
        if isinstance(found, BaseException):
            self._inbox.put(found)
            raise found
        return found

    def fail(self, error: BaseException) -> None:
        """Whoever waits for a message gets this error, now and later."""
        self._inbox.put(error)

    def end(self) -> None:
        """Say goodbye; what the other end does from now on is its own affair."""
        self.ended = True
        if self._sending.acquire(timeout=1):
            self._sending.release()
            self.send(END)

    def _listen(self) -> None:
        """Read messages until the connection ends."""
        with suppress(OSError, ValueError):
            while True:
                size = int.from_bytes(self._exactly(4), "big")
                self._silent = 0
                if not size:
                    continue
                message = json.loads(self._exactly(size))
                if message == END:
                    self.ended = True
                elif message[0] == "lost":
                    return self._lose(message[1])
                self._inbox.put(message)
        self._lose(f"{self.name} has ended or cut the connection.")

    def _exactly(self, count: int) -> bytes:
        """So many bytes; OSError at the end of the connection."""
        found = b""
        while len(found) < count:
            part = self._connection.recv(count - len(found))
            if not part:
                raise OSError
            self._silent = 0
            found += part
        return found

    def _beat(self) -> None:
        """Beat, and count how long the other end has been silent."""
        while not (self.ended or self._lost):
            time.sleep(BEAT)
            self._silent += 1
            if self._silent > SILENT:
                return self._lose(f"{self.name} has not answered for {SILENT * BEAT:.0f} seconds.")
            if self._sending.acquire(blocking=False):
                try:
                    with suppress(OSError):
                        self._connection.sendall(bytes(4))
                finally:
                    self._sending.release()

    def _lose(self, sentence: str) -> None:
        if not (self.ended or self._lost):
            self._lost = True
            self._on_lost(sentence)


JOIN = 60.0  # seconds in which all ranks have to come
REACH = 15.0  # seconds for a connection to one address of rank 0
COLLECTIVE = ("[ring]", "[jaccl]", "[mpi]")  # how MLX begins the errors of its backends
SECRET = 16  # bytes by which a connection shows that it is a rank's


class World:
    """A rank of a group. `peers` are all others on rank 0, and rank 0 on the others.

    `group` is MLX's, and `questions` number what rank 0 asks the others. `when_lost` is called on
    rank 0, in any thread, when the group is lost.
    """

    def __init__(self, group: mx.distributed.Group):
        self.group = group
        self.rank = group.rank()
        self.size = group.size()
        self.peers: list[Peer] = []
        self.questions = count()
        self.lost: RankLost | None = None
        self.ended = False
        self.when_lost: Callable[[RankLost], None] = lambda error: None
        self._lock = Lock()

    def lose(self, sentence: str) -> None:
        """The group is lost: on rank 0 all answers end with the sentence; another rank ends."""
        if self.rank:
            say_and_exit(sentence)
        with self._lock:
            if self.lost is not None:
                return
            self.lost = RankLost(sentence, hint="start all ranks again")
        for peer in self.peers:
            peer.fail(self.lost)
        mlx_thread().give_up(self.lost)
        for peer in self.peers:
            peer.send(["lost", sentence])
        self.when_lost(self.lost)

    def explain(self, error: BaseException) -> BaseException:
        """The loss of a rank, if it is behind an error that rank 0 met in a collective."""
        if isinstance(error, RuntimeError) and str(error).startswith(COLLECTIVE):
            self.lose(f"a connection between the ranks was lost ({first_line(error)}).")
        return self.lost or error

    def watch(self) -> None:
        """Until this rank ends, look whether a connection of the ring was cut."""
        cables = ring_sockets()
        while cables and not any(map(is_cut, cables)):
            time.sleep(BEAT)
        time.sleep(BEAT)  # at a peaceful end the others may have gone a little earlier
        if cables and not (self.lost or self.ended or any(peer.ended for peer in self.peers)):
            sentence = f"a connection of rank {self.rank} to another was cut."
            if self.rank:
                self.peers[0].send(["lost", sentence])
            self.lose(sentence)

    def end(self) -> None:
        """Rank 0 ends in peace, and the others with it."""
        self.ended = True
        if self.lost is None:
            for peer in self.peers:
                peer.end()


def say_and_exit(sentence: str) -> None:
    """End a rank at once: its threads may wait in a collective for ever."""
    with suppress(OSError, ValueError):  # the terminal may be gone
        sys.stderr.write(f"{sentence}\n")
        sys.stderr.flush()
    os._exit(1)


@cache
def world() -> World | None:
    """The group that a launcher has put this process into, joined at the first call; else None.

    The process ends if not all ranks come within a minute.
    """
    hosts = leader_hosts()
    if not hosts:
        return None
    watch_launcher(int(os.environ[RANK]), say_and_exit)
    late = Timer(JOIN, say_and_exit, [f"not all ranks have come within {JOIN:.0f} seconds."])
    late.daemon = True
    late.start()
    try:
        found = mlx_thread().call(join, hosts)
    finally:
        late.cancel()
    Thread(target=found.watch, name="dflash-watch", daemon=True).start()
    if found.rank == 0:
        mlx_thread().explain = found.explain
        atexit.register(found.end)
    return found


def join(hosts: list[str]) -> World:
    """Join the group, and connect its ranks; DFlashError if MLX or a rank cannot."""
    try:
        found = World(mx.distributed.init(strict=True))
    except RuntimeError as error:
        raise DFlashError(
            f"the ranks cannot reach each other ({first_line(error)}).",
            hint="check the addresses of the host file",
        ) from error
    connect(found, hosts)
    return found


def connect(found: World, hosts: list[str]) -> None:
    """Give rank 0 a connection to every other rank; DFlashError if one cannot reach it.

    A connection whose first bytes are not the group's secret, which travels by MLX, is closed.
    """
    if found.rank:
        port, *secret = share(found.group, [0] * (1 + SECRET))
        found.peers = [Peer(*reach(hosts, port, bytes([*secret, found.rank])), found.lose)]
        return
    secret = secrets.token_bytes(SECRET)
    with listener(hosts[-1]) as server:
        share(found.group, [server.getsockname()[1], *secret])
        while len(found.peers) < found.size - 1:
            connection, address = server.accept()
            connection.settimeout(SILENT * BEAT)
            hello = b""
            with suppress(OSError):  # a stranger's silence
                hello = connection.recv(SECRET + 1, socket.MSG_WAITALL)
            if len(hello) > SECRET and secrets.compare_digest(hello[:SECRET], secret):
                connection.settimeout(None)
                name = f"rank {hello[SECRET]} on {address[0].removeprefix('::ffff:')}"
                found.peers.append(Peer(connection, name, found.lose))
            else:
                connection.close()


def listener(host: str) -> socket.socket:
    """A socket for the other ranks, on any port, and on any address unless all are here."""
    if host == LOOPBACK:
        return socket.create_server((host, 0))
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def reach(hosts: list[str], port: int, hello: bytes) -> tuple[socket.socket, str]:
    """A connection to rank 0 that begins with this, and rank 0's name; DFlashError without one."""
    reason = ""
    for host in hosts:
        try:
            connection = socket.create_connection((host, port), timeout=REACH)
            connection.sendall(hello)
        except OSError as error:
            reason = error.strerror or first_line(error)
        else:
            connection.settimeout(None)
            return connection, f"rank 0 on {host}"
    raise DFlashError(
        f"the ranks cannot reach rank 0 on {' or '.join(hosts)} ({reason}).",
        hint="check the addresses of the host file, and the firewall",
    )


def share(group: mx.distributed.Group, numbers: list[int]) -> list[int]:
    """The sums over all ranks of these numbers; rank 0's, where the others give zeros."""
    return mx.distributed.all_sum(mx.array(numbers, mx.int32), group=group).tolist()  # type: ignore


# How fast the sums of a group are

BUDGET = 1.0  # seconds for the sums of one size, roughly
MOST = 300  # sums of one size
ROW = 4096  # 16-bit values, the size of a hidden state
LARGE = 16 << 20  # bytes


@dataclass(frozen=True, slots=True)
class SumTimes:
    """Seconds of a sum of one row over all ranks (the median), and bytes a second of a large one.

    A large sum's rate is the array's bytes over its seconds, however often they travel. The slowest
    rank decides both: each rank's clock includes its waiting for the others.
    """

    row_seconds: float
    bytes_per_second: float


def time_sums(group: mx.distributed.Group, values: int = ROW) -> SumTimes:
    """Time the sums of rows of so many values; all ranks of the group have to call it."""
    row = mx.zeros((1, values), mx.float16)
    large = mx.zeros(LARGE // 2, mx.float16)
    mx.eval(row, large)
    return SumTimes(typical_seconds(row, group), LARGE / typical_seconds(large, group))


def typical_seconds(array: mx.array, group: mx.distributed.Group) -> float:
    """The median of as many sums as fit the budget; the ranks agree on their number."""
    one_sum(array, group)
    # Whole numbers: a sum of others may differ from rank to rank in its last bit.
    (together,) = share(group, [1 + int(1e6 * one_sum(array, group))])
    count = max(1, min(MOST, int(1e6 * BUDGET * group.size() / together)))
    return median(one_sum(array, group) for _ in range(count))


def one_sum(array: mx.array, group: mx.distributed.Group) -> float:
    """Seconds of one sum."""
    began = time.perf_counter()
    mx.eval(mx.distributed.all_sum(array, group=group))
    return time.perf_counter() - began
