"""The machines of a group, from a host file of `mlx.launch`, and what MLX's backends want to know.

Knows the file; starts nothing.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_mlx.distributed.places import AS_RING, DEVICES, LOOPBACK, MESH, RING
from dflash_mlx.errors import UsageError

from ..config_file import file_error_reason

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
