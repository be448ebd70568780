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

from ..config_file import file_error_reason
from ..options import option

# The machines of a group, from a host file of `mlx.launch`, and what MLX's backends want to
# know.

BACKENDS = ("ring", "jaccl", "jaccl-ring")


@dataclass(frozen=True, slots=True)
class Hosts:
    """Ranks in order: names for ssh (None: this machine), addresses, RDMA devices to each other.

    `env` are further variables.
    """

    ssh: tuple[str | None, ...]
    ips: tuple[tuple[str, ...], ...]
    rdma: tuple[Any, ...] = ()
    backend: str = "ring"
    env: tuple[str, ...] = ()

    def variables(self, port: int) -> tuple[dict[str, str], tuple[str, Any]]:
        """What every rank's environment has, and the variable of a file with its content."""
        common = dict(one.split("=", 1) for one in self.env)
        if self.backend == "ring":
            ports = iter(range(port, port + sum(map(len, self.ips))))
            return common, (RING, [[f"{ip}:{next(ports)}" for ip in ips] for ips in self.ips])
        common[MESH] = f"{self.ips[0][0]}:{port}"
        if self.backend == "jaccl-ring":
            common[AS_RING] = "1"
        return common, (DEVICES, [*self.rdma])


def local_hosts(count: int) -> Hosts:
    """So many ranks on this machine, to try things out."""
    return Hosts((None,) * count, ((LOOPBACK,),) * count)


def read_hosts(path: Path) -> Hosts:
    """The machines of a file; its first is this one. UsageError where it cannot be used."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        data = data if isinstance(data, dict) else {"hosts": data}
        hosts, names = data["hosts"], [str(host["ssh"]) for host in data["hosts"]]
        addresses = [host.get("ips", []) for host in hosts]
        rdma = tuple(host.get("rdma", ()) for host in hosts)
        backend, env = data.get("backend") or "ring", data.get("envs", [])
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the host file '{path}' cannot be read ({file_error_reason(error)}).",
            hint="give one that mlx.distributed_config has written",
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(
            f"'{path}' is no host file.", hint="give one that mlx.distributed_config has written"
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
    if not is_list_of_texts(env) or not all(one.find("=") > 0 for one in env):
        raise UsageError(
            f"'{path}' has envs that set no variables ({json.dumps(env)[:80]}).",
            hint='write them as "envs": ["NAME=VALUE"]',
        )
    ssh = (None if n == 0 or name == LOOPBACK else name for n, name in enumerate(names))
    return Hosts(tuple(ssh), tuple(map(tuple, addresses)), rdma, backend, tuple(env))


def is_list_of_texts(value: Any) -> bool:
    """Whether something of a file is a list of texts, none of them empty."""
    return isinstance(value, list) and all(isinstance(one, str) and one for one in value)


# The processes of the ranks that `dflash launch` has started

GOODBYE = 1.5  # seconds that the ranks have to end by themselves when one of them has ended
LOOK = 0.2  # seconds between looks
STOPPED = 32  # looks at a stopped rank until it is lost; ranks that have joined see it before
Process = subprocess.Popen[bytes]


def end_of(process: Process, others: Sequence[Process]) -> int:
    """Wait for rank 0: its exit code. Where a rank has failed, rank 0 is made to end.

    It has heard of that by itself, unless it is stopped or still waits for all to come.
    """
    ranks = [process, *others]
    stopped, reason = [0] * len(ranks), ""
    while not reason and not ended(process, LOOK):
        stopped = [looks_stopped(*pair) for pair in zip(ranks, stopped, strict=True)]
        reason = failure(ranks, stopped)
    if reason and not ended(process, 0 if max(stopped) > STOPPED else GOODBYE, signal.SIGCONT):
        if not ended(process, GOODBYE, signal.SIGTERM):
            process.kill()
            process.wait()
        raise DFlashError(reason, hint="start all ranks again")
    if process.returncode in (-signal.SIGKILL, -signal.SIGABRT, -signal.SIGSEGV):
        name = signal.Signals(-process.returncode).name
        raise DFlashError(f"rank 0 was ended by {name}.", hint="start all ranks again")
    return process.returncode


def failure(ranks: Sequence[Process], stopped: Sequence[int]) -> str:
    """What is wrong with a rank that has failed, or with one stopped for so many looks; or ""."""
    for rank, (one, looks) in enumerate(zip(ranks, stopped, strict=True)):
        if rank and (code := one.poll()):
            return f"rank {rank} has ended with the exit code {code}, and rank 0 did not notice."
        if looks > STOPPED:
            return f"rank {rank} was stopped for {STOPPED * LOOK:.0f} seconds."
    return ""


def looks_stopped(process: Process, before: int) -> int:
    """For how many looks a process of this machine has been stopped, after so many before this."""
    if process.poll() is not None:
        return 0
    pid, status = os.waitpid(process.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
    if not pid:  # no news
        return before + 1 if before else 0
    if os.WIFSTOPPED(status):
        return 1
    if not os.WIFCONTINUED(status):  # it has ended between the two calls
        process.returncode = os.waitstatus_to_exitcode(status)
    return 0


def ended(process: Process, seconds: float, by: int | None = None) -> bool:
    """Whether a process ends in time, after a signal if one is given."""
    if by is not None:
        process.send_signal(by)
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.returncode is not None


@contextmanager
def leaving_signals_to(process: Process) -> Iterator[None]:
    """Rank 0 has this terminal too, and its Ctrl-C; it is told of SIGTERM and of a hangup."""
    handlers = {
        signal.SIGINT: signal.SIG_IGN,
        signal.SIGTERM: lambda *_: process.terminate(),
        signal.SIGHUP: lambda *_: process.terminate(),
    }
    before = {number: signal.signal(number, one) for number, one in handlers.items()}
    try:
        yield
    finally:
        for number, one in before.items():
            signal.signal(number, one)


def end_all(processes: Sequence[Process]) -> None:
    """Give the other ranks a little time, all together, and then end them."""
    until = time.monotonic() + GOODBYE
    for process in processes:
        if not ended(process, max(0.0, until - time.monotonic())):
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
        option("--ranks", "-n", min=2, max=64, metavar="N", help="So many ranks on this machine."),
    ] = None,
    hostfile: Annotated[
        Path | None,
        option("--hostfile", metavar="FILE", help="The machines, as mlx.launch has them."),
    ] = None,
    split: Annotated[
        Literal["heads", "layers"],
        option(
            "--split",
            help="Share every layer, or whole layers: any family and number of ranks, fewer sums.",
        ),
    ] = "heads",
    port: Annotated[
        int,
        option("--first-port", min=1024, max=65000, metavar="N", help="The first of the ports."),
    ] = 32323,
) -> None:
    """Run a command with its target sharded over several machines.

    The host file is that of mlx.launch (mlx.distributed_config writes one); its first machine has
    to be this one. All need this program and the model at the same paths.
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
    with followers(hosts, port, command) as (env, others), pipe() as end:
        env |= {LAUNCHER: str(end), SPLIT: split}
        line = [sys.executable, "-m", "dflash_mlx", *command]
        process = subprocess.Popen(line, env=env, pass_fds=[end])
        with leaving_signals_to(process):
            code = end_of(process, others)
    raise typer.Exit(128 - code if code < 0 else code)


@contextmanager
def pipe() -> Iterator[int]:
    """The end of a pipe to read, whose other end goes with this process."""
    read, write = os.pipe()
    try:
        yield read
    finally:
        os.close(read)
        os.close(write)


@contextmanager
def followers(
    hosts: Hosts, port: int, command: list[str]
) -> Iterator[tuple[dict[str, str], list[Process]]]:
    """Start all ranks but 0, and give its environment and them; at the end they are gone.

    Their standard input is a pipe that ends with this process, also through ssh.
    """
    variables, content = hosts.variables(port)
    with tempfile.TemporaryDirectory() as folder:
        found: list[Process] = []
        try:
            for rank, host in enumerate(hosts.ssh[1:], 1):
                if host is None:
                    env = environment(folder, variables, content, rank) | {LAUNCHER: "0"}
                    line = [sys.executable, "-m", "dflash_mlx", *command]
                else:
                    env = None
                    arguments = ["-m", "dflash_mlx", *command]
                    line = ssh_line(host, variables, content, rank, arguments)
                found.append(
                    subprocess.Popen(line, env=env, stdin=subprocess.PIPE, start_new_session=True)
                )
            yield environment(folder, variables, content, 0), found
        finally:
            end_all(found)


def environment(
    folder: str, variables: dict[str, str], content: tuple[str, Any], rank: int
) -> dict[str, str]:
    """The environment of a rank on this machine."""
    name, value = content
    file = Path(folder) / "hosts.json"
    file.write_text(json.dumps(value))
    return {**os.environ, **variables, OWN_INPUT: "1", RANK: str(rank), name: str(file)}


def ssh_line(
    host: str, variables: dict[str, str], content: tuple[str, Any], rank: int, arguments: list[str]
) -> list[str]:
    """The command that has another machine run a rank: Python with these arguments."""
    remote = remote_line(variables, content, rank, arguments)
    return ["ssh", "-o", "BatchMode=yes", host, remote]


def remote_line(
    variables: dict[str, str], content: tuple[str, Any], rank: int, arguments: list[str]
) -> str:
    """What a shell of another machine runs for a rank, in the same folder by the same Python.

    Its sshd says from where rank 0's machine has come; the host file's envs may say another place.
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
