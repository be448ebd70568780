"""The group that this process belongs to: its ranks, and the control channels between them.

Rank 0 has a control channel to every other rank, beside the collectives of `mx.distributed`. When a
rank or a connection is lost, each rank prints why, and the other ranks end.
"""

import atexit
import errno
import json
import os
import re
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
from stat import S_ISSOCK
from statistics import median
from threading import Lock, Thread
from typing import Any

import mlx.core as mx

from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.errors import DFlashError, RankLost, first_line

from .environment import (
    DEVICES,
    JOIN,
    LAUNCHER,
    LOOPBACK,
    RANK,
    RING,
    leader_hosts,
    own_ports,
    start_watcher,
)
from .watcher import EXIT_SECONDS

# The connections of MLX's ring


def ring_sockets() -> list[socket.socket]:
    """Duplicates of this process's sockets in the ring; none with another backend."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        with open(os.environ[RING], encoding="utf-8") as file:
            ports = {int(ip.rpartition(":")[2]) for ips in json.load(file) for ip in ips}
        connections = [fd for fd in map(int, os.listdir("/dev/fd")) if connects(fd, ports)]
        return [socket.socket(fileno=os.dup(fd)) for fd in connections]
    return []


def connects(fd: int, ports: set[int]) -> bool:
    """Whether a file descriptor is a TCP connection from or to one of some ports.

    macOS ends a process that duplicates or closes a guarded file, so it is only looked at.
    """
    with suppress(OSError):  # closed meanwhile, or not connected
        if S_ISSOCK(os.fstat(fd).st_mode):
            borrowed = socket.socket(fileno=fd)
            try:
                if borrowed.family in (socket.AF_INET, socket.AF_INET6):
                    ends = borrowed.getsockname(), borrowed.getpeername()
                    return any(end[1] in ports for end in ends)
            finally:
                borrowed.detach()
    return False


def is_cut(connection: socket.socket) -> bool:
    """Whether the other end has closed a connection."""
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


# The control channel between two ranks

BEAT = 0.5  # seconds between heartbeats
MAX_SILENT_BEATS = 12  # until a rank counts as lost
END = ["end"]


class ControlChannel:
    """One end of a channel to the rank `name`, with a thread for receiving and one for heartbeats.

    `on_lost(sentence)` is called once, in one of these threads, when the other rank dies, stops
    answering, or reports that it cannot continue.
    """

    def __init__(self, connection: socket.socket, name: str, on_lost: Callable[[str], None]):
        self.name = name
        self._on_lost = on_lost
        self._connection = connection
        self._sending = Lock()
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._silent_beats = 0
        self.ended = False
        self._lost = False
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for work in (self._listen, self._beat):
            Thread(target=work, name=f"dflash-{work.__name__}", daemon=True).start()

    def send(self, message: Any) -> int:
        """Send a message and return its bytes. The receiving thread notices a lost connection."""
        data = json.dumps(message, separators=(",", ":")).encode()
        with self._sending, suppress(OSError):
            self._connection.sendall(len(data).to_bytes(4, "big") + data)
        return len(data)

    def receive(self) -> Any:
        """The next message. Raises the error given to `fail`."""
        message = self._inbox.get()
        if isinstance(message, BaseException):
            self._inbox.put(message)
            raise message
        return message

    def fail(self, error: BaseException) -> None:
        """Make `receive` raise this error, now and later."""
        self._inbox.put(error)

    @property
    def silence(self) -> str:
        """A sentence if the other rank has missed many heartbeats; else empty."""
        if 2 * self._silent_beats < MAX_SILENT_BEATS:
            return ""
        return f"{self.name} has not answered for {self._silent_beats * BEAT:.0f} seconds."

    def end(self) -> None:
        """Announce a normal end, so that the other rank does not report a loss."""
        self.ended = True
        if self._sending.acquire(timeout=1):
            self._sending.release()
            self.send(END)

    def _listen(self) -> None:
        """Receive messages until the connection ends."""
        with suppress(OSError, ValueError):
            while True:
                size = int.from_bytes(self._exactly(4), "big")
                self._silent_beats = 0
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
        """Receive `count` bytes. Raises OSError at the end of the connection."""
        data = b""
        while len(data) < count:
            part = self._connection.recv(count - len(data))
            if not part:
                raise OSError
            self._silent_beats = 0
            data += part
        return data

    def _beat(self) -> None:
        """Send heartbeats, and count those without an answer."""
        while not (self.ended or self._lost):
            time.sleep(BEAT)
            self._silent_beats += 1
            if self._silent_beats > MAX_SILENT_BEATS:
                return self._lose(self.silence)
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


REACH = 15.0  # seconds to connect to one address of rank 0
COLLECTIVE = ("[ring]", "[jaccl]", "[mpi]")  # prefixes of MLX's errors
SECRET = 16  # bytes that prove that a connection comes from a rank


class World:
    """A rank of a group.

    group: MLX's. channels: on rank 0 to all others, on the others to rank 0. questions: numbers of
    rank 0's questions. when_lost: called on rank 0, in any thread, when the group is lost.
    """

    def __init__(self, group: mx.distributed.Group):
        self.group = group
        self.rank = group.rank()
        self.size = group.size()
        self.channels: list[ControlChannel] = []
        self.questions = count()
        self.lost: RankLost | None = None
        self.ended = False
        self.when_lost: Callable[[RankLost], None] = lambda error: None
        self._lock = Lock()

    def lose(self, sentence: str) -> None:
        """Handle the loss of the group: rank 0 fails all answers with a sentence, others exit.

        If some rank is silent, its silence is the reason, and not what the sentence says.
        """
        if self.rank:
            exit_with_message(sentence)
        sentence = next(filter(None, (channel.silence for channel in self.channels)), sentence)
        with self._lock:
            if self.lost is not None:
                return
            self.lost = RankLost(sentence, hint="start all ranks again")
        for channel in self.channels:
            channel.fail(self.lost)
        mlx_thread().give_up(self.lost)
        for channel in self.channels:
            channel.send(["lost", sentence])
        self.when_lost(self.lost)

    def explain(self, error: BaseException) -> BaseException:
        """The loss of a rank, if it caused this error of a collective on rank 0."""
        if isinstance(error, RuntimeError) and str(error).startswith(COLLECTIVE):
            self.lose(f"a connection between the ranks was lost ({first_line(error)}).")
        return self.lost or error

    def watch(self) -> None:
        """Watch the ring's connections until this rank ends or one of them is cut."""
        sockets = ring_sockets()
        while sockets and not any(map(is_cut, sockets)):
            time.sleep(BEAT)
        time.sleep(BEAT)  # at a normal end, other ranks may end a little earlier
        if sockets and not (
            self.lost or self.ended or any(channel.ended for channel in self.channels)
        ):
            sentence = f"a connection of rank {self.rank} to another was cut."
            if self.rank:
                self.channels[0].send(["lost", sentence])
            self.lose(sentence)

    def end(self) -> None:
        """End rank 0 normally, and the other ranks with it."""
        self.ended = True
        if self.lost is None:
            for channel in self.channels:
                channel.end()


def exit_with_message(sentence: str) -> None:
    """Exit at once, because threads may wait in a collective for ever."""
    with suppress(OSError, ValueError):  # the terminal may be gone
        sys.stderr.write(f"{sentence}\n")
        sys.stderr.flush()
    os._exit(1)


@cache
def world() -> World | None:
    """The group of this process, joined at the first call; None without a launcher.

    The process exits if not all ranks join within a minute.
    """
    hosts = leader_hosts()
    if not hosts:
        return None
    launcher = os.environ.get(LAUNCHER)
    # Rank 0 saves its state and ends the other ranks, as at the end of any command.
    patience = 0.0 if os.environ[RANK] == "0" else EXIT_SECONDS
    stop_waiting = start_watcher(JOIN, patience, None if launcher is None else int(launcher))
    try:
        joined = mlx_thread().call(join, hosts)
    finally:
        stop_waiting()
    Thread(target=joined.watch, name="dflash-watch", daemon=True).start()
    if joined.rank == 0:
        mlx_thread().explain = joined.explain
        atexit.register(joined.end)
    return joined


def join(hosts: list[str]) -> World:
    """Join the group and connect its ranks. Raises DFlashError if that fails."""
    joined = World(init_group())
    connect(joined, hosts)
    return joined


RDMA_HINT = (
    "`ibv_devices` lists them; turn RDMA on with `rdma_ctl enable` in macOS recovery, or write the "
    "host file with --backend ring"
)
ERROR_NUMBER = re.compile(r" \(error: (\d+)\)")  # in MLX's errors of sockets


def init_group() -> mx.distributed.Group:
    """MLX's group of this process. Raises DFlashError if the ranks cannot reach each other."""
    # Without this check MLX would call functions that it has not found.
    if DEVICES in os.environ and not mx.distributed.is_available("jaccl"):
        raise DFlashError(
            "this machine has no RDMA: MLX does not find its library.",
            hint="RDMA needs macOS 26.2 and Thunderbolt 5; "
            "otherwise write the host file with --backend ring",
        )
    try:
        return mx.distributed.init(strict=True)
    except (RuntimeError, ValueError) as error:
        raise in_words(first_line(error)) from error


def in_words(reason: str) -> DFlashError:
    """The error for the reason that MLX gives for not joining a group."""
    number = ERROR_NUMBER.search(reason)
    code = int(number[1]) if number else 0
    if code == errno.EADDRINUSE:
        ports = " or ".join(own_ports())
        return DFlashError(
            f"another program on this machine has the port {ports}.",
            hint="take others: `dflash launch --first-port 40000 ...`",
        )
    if code == errno.EADDRNOTAVAIL:
        return DFlashError(
            f"this machine does not have the address that the host file gives it ({reason}).",
            hint="correct the host file",
        )
    if code:
        reason = ERROR_NUMBER.sub(f": {os.strerror(code)}", reason)
    hint = "check the addresses of the host file"
    if code == errno.EHOSTUNREACH:
        hint += (
            "; on macOS 15 or later use Terminal, or allow your terminal program to use the local "
            "network (System Settings, Privacy & Security, Local Network)"
        )
    elif reason.startswith("[jaccl]") and not code:
        hint = RDMA_HINT
    return DFlashError(f"the ranks cannot reach each other ({reason}).", hint=hint)


def connect(joined: World, hosts: list[str]) -> None:
    """Open the control channels. Raises DFlashError if a rank cannot reach rank 0.

    The ranks share a secret by MLX. A connection that does not begin with it is closed.
    """
    if joined.rank:
        port, *secret = share(joined.group, [0] * (1 + SECRET))
        joined.channels = [
            ControlChannel(*reach(hosts, port, bytes([*secret, joined.rank])), joined.lose)
        ]
        return
    secret = secrets.token_bytes(SECRET)
    with listener(hosts[-1]) as server:
        share(joined.group, [server.getsockname()[1], *secret])
        while len(joined.channels) < joined.size - 1:
            connection, address = server.accept()
            connection.settimeout(MAX_SILENT_BEATS * BEAT)
            hello = b""
            with suppress(OSError):  # of another program, which sends nothing
                hello = connection.recv(SECRET + 1, socket.MSG_WAITALL)
            if len(hello) > SECRET and secrets.compare_digest(hello[:SECRET], secret):
                connection.settimeout(None)
                name = f"rank {hello[SECRET]} on {address[0].removeprefix('::ffff:')}"
                joined.channels.append(ControlChannel(connection, name, joined.lose))
            else:
                connection.close()


def listener(host: str) -> socket.socket:
    """A listening socket for the other ranks, at all addresses unless all ranks are local."""
    if host == LOOPBACK:
        return socket.create_server((host, 0))
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def reach(hosts: list[str], port: int, hello: bytes) -> tuple[socket.socket, str]:
    """Connect to rank 0 and send `hello`. Returns the connection and a name for rank 0.

    Raises DFlashError if no address can be reached.
    """
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
    """The sums of these numbers over all ranks; rank 0's numbers if the others give zeros."""
    return mx.distributed.all_sum(mx.array(numbers, mx.int32), group=group).tolist()  # type: ignore


# Speed of the group's sums

BUDGET = 1.0  # seconds for the sums of one size, roughly
MAX_SUMS = 300  # of one size
ROW = 4096  # 16-bit values, the size of a hidden state
LARGE = 16 << 20  # bytes


@dataclass(frozen=True, slots=True)
class SumTimes:
    """Median seconds of a sum of one row over all ranks, and bytes per second of a large sum.

    bytes_per_second: of the array, however often its bytes are sent. The slowest rank decides both,
    because each rank's time includes waiting for the others.
    """

    row_seconds: float
    bytes_per_second: float


def time_sums(group: mx.distributed.Group, values: int = ROW) -> SumTimes:
    """Time sums of rows of `values` numbers. All ranks must call it."""
    row = mx.zeros((1, values), mx.float16)
    large = mx.zeros(LARGE // 2, mx.float16)
    mx.eval(row, large)
    return SumTimes(typical_seconds(row, group), LARGE / typical_seconds(large, group))


def typical_seconds(array: mx.array, group: mx.distributed.Group) -> float:
    """The median of as many sums as fit the budget. The ranks agree on their number."""
    one_sum(array, group)
    # Integers, because a sum of floats may differ between ranks in its last bit.
    (together,) = share(group, [1 + int(1e6 * one_sum(array, group))])
    count = max(1, min(MAX_SUMS, int(1e6 * BUDGET * group.size() / together)))
    return median(one_sum(array, group) for _ in range(count))


def one_sum(array: mx.array, group: mx.distributed.Group) -> float:
    began = time.perf_counter()
    mx.eval(mx.distributed.all_sum(array, group=group))
    return time.perf_counter() - began
