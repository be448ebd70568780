"""`dflash launch`: runs another command on several machines, which share its target.

Rank 0 is this machine and has this terminal; the others follow it silently.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dflash_mlx.distributed.environment import (
    AS_RING,
    DEVICES,
    LAUNCHER,
    LEADER,
    LOOPBACK,
    MESH,
    OWN_INPUT,
    RANK,
    RING,
    SPLIT,
)
from dflash_mlx.errors import DFlashError, UsageError

from .config_file import file_error_reason
from .options import option

# The machines of a group, from a host file of `mlx.launch`

BACKENDS = ("ring", "jaccl", "jaccl-ring")


@dataclass(frozen=True, slots=True)
class Hosts:
    """The ranks of a group, in order.

    ssh: names for ssh; None is this machine. ips: addresses. rdma: the RDMA devices to every other
    rank. env: variables of all ranks, as NAME=VALUE.
    """

    ssh: tuple[str | None, ...]
    ips: tuple[tuple[str, ...], ...]
    rdma: tuple[Any, ...] = ()
    backend: str = "ring"
    env: tuple[str, ...] = ()

    def variables(self, port: int) -> tuple[dict[str, str], tuple[str, Any]]:
        """The variables of all ranks; then one that names a file, and the content of that file."""
        common = dict(variable.split("=", 1) for variable in self.env)
        if self.backend == "ring":
            ports = iter(range(port, port + sum(map(len, self.ips))))
            return common, (RING, [[f"{ip}:{next(ports)}" for ip in ips] for ips in self.ips])
        common[MESH] = f"{self.ips[0][0]}:{port}"
        if self.backend == "jaccl-ring":
            common[AS_RING] = "1"
        return common, (DEVICES, [*self.rdma])


def local_hosts(count: int) -> Hosts:
    """`count` ranks on this machine, to try things out."""
    return Hosts((None,) * count, ((LOOPBACK,),) * count)


def read_hosts(path: Path) -> Hosts:
    """Read the machines of a host file, the first being this one; UsageError for a wrong file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        data = data if isinstance(data, dict) else {"hosts": data}
        hosts = data["hosts"]
        names = [str(host["ssh"]) for host in hosts]
        addresses = [host.get("ips", []) for host in hosts]
        rdma = tuple(host.get("rdma", []) for host in hosts)
        backend = data.get("backend") or "ring"
        env = data.get("envs", [])
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the host file '{path}' cannot be read ({file_error_reason(error)}).",
            hint="give one that mlx.distributed_config has written",
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(
            f"'{path}' is not a host file.", hint="give one that mlx.distributed_config has written"
        ) from None
    if len(names) < 2 or backend not in BACKENDS:
        raise UsageError(
            f"'{path}' names no group: {len(names)} machines, backend {backend}.",
            hint="name two machines or more with their ips, and the backend ring or jaccl",
        )
    for number, (name, ips) in enumerate(zip(names, addresses, strict=True)):
        needed = backend == "ring" or number == 0
        if not is_list_of_texts(ips) or (needed and not ips):
            raise UsageError(
                f"'{path}' has no list of addresses of {name}.",
                hint=f'write them as "ips": ["10.0.0.{number + 1}"]',
            )
    if backend != "ring":
        check_rdma(path, names, rdma)
    if not is_list_of_texts(env) or not all(variable.find("=") > 0 for variable in env):
        raise UsageError(
            f"'{path}' has envs that set no variables ({json.dumps(env)[:80]}).",
            hint='write them as "envs": ["NAME=VALUE"]',
        )
    ssh = (None if n == 0 or name == LOOPBACK else name for n, name in enumerate(names))
    return Hosts(tuple(ssh), tuple(map(tuple, addresses)), rdma, backend, tuple(env))


def check_rdma(path: Path, names: Sequence[str], rdma: Sequence[Any]) -> None:
    """Raise UsageError if a machine's RDMA devices are not one entry per machine, its own null.

    Without devices to its two neighbours in the file, MLX forms neither a mesh nor a ring.
    """
    count = len(names)
    for number, (name, devices) in enumerate(zip(names, rdma, strict=True)):
        example: list[str | None] = ["rdma_en2"] * count
        example[number] = None
        hint = f'write one for each machine, as "rdma": {json.dumps(example)}'
        if not isinstance(devices, list) or len(devices) != count or devices[number] is not None:
            raise UsageError(f"'{path}' has no list of {count} RDMA devices of {name}.", hint=hint)
        for neighbour in (number - 1, (number + 1) % count):
            if not devices[neighbour]:
                raise UsageError(
                    f"'{path}' has no RDMA device of {name} to {names[neighbour]}.", hint=hint
                )


def is_list_of_texts(value: Any) -> bool:
    """Whether a value is a list of non-empty strings."""
    return isinstance(value, list) and all(isinstance(item, str) and item for item in value)


# The processes of the ranks

EXIT_SECONDS = 1.5  # how long ranks may take to end by themselves after one has ended
POLL_SECONDS = 0.2
# A rank that is stopped for more polls counts as lost; ranks that have joined notice it earlier.
MAX_STOPPED_POLLS = 32
Process = subprocess.Popen[bytes]


def wait_for_ranks(leader: Process, followers: Sequence[Process]) -> int:
    """Wait for rank 0 and return its exit code.

    Rank 0 ends by itself when it notices a failed rank. It cannot while it is stopped or waits for
    ranks to join: then it is ended, and DFlashError raised. DFlashError also if rank 0 crashed.
    """
    ranks = [leader, *followers]
    stopped_polls = [0] * len(ranks)
    reason = ""
    while not reason and not ended(leader, POLL_SECONDS):
        stopped_polls = [
            count_stopped_polls(process, polls)
            for process, polls in zip(ranks, stopped_polls, strict=True)
        ]
        reason = failure_reason(ranks, stopped_polls)
    seconds = 0 if max(stopped_polls) > MAX_STOPPED_POLLS else EXIT_SECONDS
    if reason and not ended(leader, seconds, signal.SIGCONT):
        if not ended(leader, EXIT_SECONDS, signal.SIGTERM):
            leader.kill()
            leader.wait()
        raise DFlashError(reason, hint="start all ranks again")
    if leader.returncode in (-signal.SIGKILL, -signal.SIGABRT, -signal.SIGSEGV):
        name = signal.Signals(-leader.returncode).name
        raise DFlashError(f"rank 0 was ended by {name}.", hint="start all ranks again")
    return leader.returncode


def failure_reason(ranks: Sequence[Process], stopped_polls: Sequence[int]) -> str:
    """A sentence about the first rank that has failed or was stopped for too long; else empty."""
    for rank, (process, polls) in enumerate(zip(ranks, stopped_polls, strict=True)):
        if rank and (code := process.poll()):
            return f"rank {rank} has ended with the exit code {code}, and rank 0 did not notice."
        if polls > MAX_STOPPED_POLLS:
            seconds = MAX_STOPPED_POLLS * POLL_SECONDS
            return f"rank {rank} was stopped for {seconds:.0f} seconds."
    return ""


def count_stopped_polls(process: Process, polls: int) -> int:
    """For how many polls in a row a process has been stopped; `polls`: before this poll."""
    if process.poll() is not None:
        return 0
    pid, status = os.waitpid(process.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
    if not pid:  # no change
        return polls + 1 if polls else 0
    if os.WIFSTOPPED(status):
        return 1
    if not os.WIFCONTINUED(status):  # it has ended between the two calls
        process.returncode = os.waitstatus_to_exitcode(status)
    return 0


def ended(process: Process, seconds: float, signal_number: int | None = None) -> bool:
    """Send a signal, if any, and return whether the process ends within `seconds`."""
    if signal_number is not None:
        process.send_signal(signal_number)
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.returncode is not None


@contextmanager
def leaving_signals_to(process: Process) -> Iterator[None]:
    """Leave Ctrl-C to rank 0, which has the same terminal, and pass SIGTERM and SIGHUP on to it."""
    handlers = {
        signal.SIGINT: signal.SIG_IGN,
        signal.SIGTERM: lambda *_: process.terminate(),
        signal.SIGHUP: lambda *_: process.terminate(),
    }
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def end_all(processes: Sequence[Process]) -> None:
    """Kill the processes that do not end by themselves within EXIT_SECONDS."""
    deadline = time.monotonic() + EXIT_SECONDS
    for process in processes:
        if not ended(process, max(0.0, deadline - time.monotonic())):
            process.kill()
            process.wait()


COMMANDS = ("chat", "generate", "serve")


def launch(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="generate, chat or serve, after --.")
    ],
    *,
    ranks: Annotated[
        int | None,
        option(
            "--ranks",
            "-n",
            min=2,
            max=64,
            metavar="N",
            help="Run this many processes on this machine.",
        ),
    ] = None,
    hostfile: Annotated[
        Path | None,
        option(
            "--hostfile",
            metavar="FILE",
            help="File with the machines, in the format of mlx.launch.",
        ),
    ] = None,
    split: Annotated[
        Literal["heads", "layers"],
        option(
            "--split",
            help="Split every layer (heads), or give each machine whole layers, which works for "
            "any model and number of machines.",
        ),
    ] = "heads",
    port: Annotated[
        int,
        option(
            "--first-port",
            min=1024,
            max=65000,
            metavar="N",
            help="First of the ports that are used.",
        ),
    ] = 32323,
) -> None:
    """Run a command with its model split over several machines.

    \b
      dflash launch --hostfile hosts.json -- chat -m MODEL
      dflash launch -n 2 -- generate "Hello"       two processes on this machine

    mlx.distributed_config writes the host file; its first machine must be this one. All machines
    need this program and the model at the same paths. Guide: `dflash help several-macs`.
    """
    if command[0] not in COMMANDS:
        raise UsageError(
            f"'{command[0]}' does not run on several machines.",
            hint=f"they run {', '.join(COMMANDS)}: dflash launch -n 2 -- generate ...",
        )
    if (ranks is None) == (hostfile is None):
        raise UsageError(
            "machines are missing, or named twice.", hint="give either -n N or --hostfile FILE"
        )
    hosts = local_hosts(ranks or 0) if hostfile is None else read_hosts(hostfile)
    with started_followers(hosts, port, command) as (env, followers), open_pipe() as reader:
        env |= {LAUNCHER: str(reader), SPLIT: split}
        line = [sys.executable, "-m", "dflash_mlx", *command]
        leader = subprocess.Popen(line, env=env, pass_fds=[reader])
        with leaving_signals_to(leader):
            code = wait_for_ranks(leader, followers)
    raise typer.Exit(128 - code if code < 0 else code)


@contextmanager
def open_pipe() -> Iterator[int]:
    """Yield the read end of a pipe, which reaches its end of file when this process ends."""
    read, write = os.pipe()
    try:
        yield read
    finally:
        os.close(read)
        os.close(write)


@contextmanager
def started_followers(
    hosts: Hosts, port: int, command: list[str]
) -> Iterator[tuple[dict[str, str], list[Process]]]:
    """Start all ranks but 0; yield rank 0's environment and the processes, ended by the context.

    Their standard input is a pipe that ends with this process, also through ssh.
    """
    variables, content = hosts.variables(port)
    with tempfile.TemporaryDirectory() as folder:
        processes: list[Process] = []
        try:
            for rank, host in enumerate(hosts.ssh[1:], 1):
                if host is None:
                    env = environment(folder, variables, content, rank) | {LAUNCHER: "0"}
                    line = [sys.executable, "-m", "dflash_mlx", *command]
                else:
                    env = None
                    arguments = ["-m", "dflash_mlx", *command]
                    line = ssh_line(host, variables, content, rank, arguments)
                processes.append(
                    subprocess.Popen(line, env=env, stdin=subprocess.PIPE, start_new_session=True)
                )
            yield environment(folder, variables, content, 0), processes
        finally:
            end_all(processes)


def environment(
    folder: str, variables: dict[str, str], content: tuple[str, Any], rank: int
) -> dict[str, str]:
    """Write the hosts file and return the environment of a rank on this machine."""
    name, value = content
    file = Path(folder) / "hosts.json"
    file.write_text(json.dumps(value))
    return {**os.environ, **variables, OWN_INPUT: "1", RANK: str(rank), name: str(file)}


def ssh_line(
    host: str, variables: dict[str, str], content: tuple[str, Any], rank: int, arguments: list[str]
) -> list[str]:
    """The command that runs a rank on another machine: Python with these arguments."""
    remote = remote_line(variables, content, rank, arguments)
    return ["ssh", "-o", "BatchMode=yes", host, remote]


def remote_line(
    variables: dict[str, str], content: tuple[str, Any], rank: int, arguments: list[str]
) -> str:
    """The shell command that runs a rank on another machine, in the same folder by the same Python.

    Rank 0's address is the one that its ssh connection came from, unless the envs of the host file
    set another.
    """
    name, value = content
    settings = {**variables, OWN_INPUT: "1", LAUNCHER: "0", RANK: str(rank)}
    exports = f'{LEADER}="${{{LEADER}:-${{SSH_CONNECTION%% *}}}}" '
    exports += " ".join(f"{key}={shlex.quote(text)}" for key, text in settings.items())
    program = shlex.join([sys.executable, *arguments])
    return (
        f"cd {shlex.quote(os.getcwd())} && hosts=$(mktemp) && "
        f'printf %s {shlex.quote(json.dumps(value))} > "$hosts" && '
        f'{name}="$hosts" {exports} {program}; code=$?; rm -f "$hosts"; exit $code'
    )
