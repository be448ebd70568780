"""`dflash launch`: runs another command on several machines, which share its target.

Rank 0 is this machine and has this terminal; the others follow it silently. Knows processes and
host files, no models.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dflash_mlx.distributed.places import LAUNCHER, LEADER, OWN_INPUT, RANK, SPLIT
from dflash_mlx.errors import UsageError

from ..options import option
from .hosts import Hosts, local_hosts, read_hosts
from .processes import Process, end_all, end_of, leaving_signals_to

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
