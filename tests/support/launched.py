"""Starts a group of ranks with `dflash launch` in a terminal, and makes one of them fail."""

import ctypes
import http.client
import json
import os
import re
import shlex
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISSOCK
from threading import Thread
from typing import Any

from ranks import free_ports
from terminal import Terminal, environment

LAUNCHER, KILL, STOP, CUT = "launcher", "kill", "stop", "cut"
JOIN = 60.0  # seconds until ranks report that others have not joined
PIDFD_GETFD = 438  # the Linux system call, the same number on all architectures
SENTENCE = r"[Rr]ank \d|a connection|the launcher of this rank|not all ranks"
LONG = "word " * 700


def processes(folder: Path) -> dict[int, dict[str, str]]:
    """The environment of each running process whose HOME is `folder`, by process id."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended just now
            state = (place / "stat").read_text().rpartition(")")[2].split()[0]
            pairs = (one.partition("=") for one in (place / "environ").read_text().split("\0"))
            env = {name: value for name, _, value in pairs}
            if env.get("HOME") == str(folder) and state != "Z":
                found[int(place.name)] = env
    return found


def cut(pid: int) -> bool:
    """Shut down all TCP connections of another process; returns whether it had any."""
    call, found = ctypes.CDLL(None, use_errno=True).syscall, False
    process = os.pidfd_open(pid)  # type: ignore[attr-defined]
    for fd in range(3, 64):
        own = call(PIDFD_GETFD, process, fd, 0)
        if own >= 0 and not S_ISSOCK(os.fstat(own).st_mode):
            os.close(own)
        elif own >= 0:
            with suppress(OSError), socket.socket(fileno=own) as one:
                one.getpeername()
                one.shutdown(socket.SHUT_RDWR)
                found = True
    os.close(process)
    return found


@dataclass
class Client:
    """A client of `dflash serve` that reads one streamed answer in a thread."""

    port: int
    body: bytes = b""
    ended: bool = False
    begun: bool = False
    status: int = 0
    thread: Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        asked = {"messages": [{"role": "user", "content": "Go on."}], "stream": True}
        asked |= {"model": "m", "max_tokens": 3000}
        with suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=200)
            head = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/chat/completions", json.dumps(asked), head)
            reply = connection.getresponse()
            self.status = reply.status
            while data := reply.read1(65536):
                self.body += data
                self.begun = True
        self.ended = True


class Launched:
    """`dflash launch -n COUNT -- COMMAND` under a shell in a terminal; end it with `close`."""

    def __init__(self, folder: Path, count: int, *command: str, pair: list[Any]):
        """`pair`: folders of target and drafter. The command's HOME is `folder`."""
        self.folder, self.count = folder, count
        self.port = free_ports(1)[0] if command[0] == "serve" else 0
        line = [sys.executable, "-m", "dflash_mlx", "launch", "-n", str(count), "--first-port"]
        line += [str(free_ports(1)[0]), "--", *command, "-m", pair[0], "-d", pair[1]]
        line += ["--alias", "m", "--port", str(self.port)] if self.port else []
        env = environment(folder, DFLASH_BLAS="off")
        shell = ["sh", "-c", f"{shlex.join(line)}; echo the shell goes on; exec sleep 999"]
        self.began = time.monotonic()
        self.terminal = Terminal(shell, env, columns=200, rows=50)
        self.clients: list[Client] = []

    def ready(self) -> float:
        """Wait for the server or the prompt; returns the seconds since the start."""
        self.terminal.wait_for("Ctrl-C stops[\\s\\S]*" + ("" if self.port else "›"), JOIN * 3)
        return time.monotonic() - self.began

    def ranks(self) -> dict[int | str, int]:
        """The process ids of the launcher and of the ranks that are running."""
        shell, found = self.terminal.process.pid, {}
        for pid, env in processes(self.folder).items():
            if pid != shell:
                rank = env.get("MLX_RANK")
                found[LAUNCHER if rank is None else int(rank)] = pid
        return found

    def pass_time(self, seconds: float) -> None:
        """Wait some seconds while reading the terminal."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.terminal.pump(0.01)

    def ask(self, clients: int) -> None:
        """Start clients, and wait until each receives an answer."""
        self.clients += [Client(self.port) for _ in range(clients)]
        self.terminal.wait_until(lambda: all(c.begun or c.ended for c in self.clients), "streaming")

    def lose(self, victim: int | str, how: str, limit: float) -> float:
        """Kill, stop or cut off one process; returns the seconds until all have ended.

        AssertionError if a process or a client has not ended after `limit` seconds, or if no
        message names the reason.
        """
        pid, shell = self.ranks()[victim], self.terminal.process.pid
        self.terminal.pump(0)
        before = len(self.terminal.raw)
        if how == CUT:
            self.terminal.wait_until(lambda: cut(pid), "connected")
        else:
            os.kill(pid, signal.SIGKILL if how == KILL else signal.SIGSTOP)
        began = time.monotonic()
        while [*processes(self.folder)] not in ([], [shell]) or not all(
            client.ended for client in self.clients
        ):
            took = time.monotonic() - began
            left = self.ranks(), [client.ended for client in self.clients]
            assert took < limit, (took, left, self.terminal.raw[before:])
            self.terminal.pump(0.05)
        took = time.monotonic() - began
        self.terminal.settle()
        said = self.terminal.raw[before:]
        assert re.search(SENTENCE, said), said
        assert "Traceback" not in said or "SystemExit: 143" in said, said  # in the prompt's redraw
        return took

    def close(self) -> None:
        """Kill the processes that a failed test has left."""
        for pid in processes(self.folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.terminal.close()
