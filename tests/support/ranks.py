"""Starts the ranks of a group as processes on this machine, connected over loopback."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

from mlx_lm.utils import _get_classes
from tiny import (
    GOLDEN,
    SEEDS,
    config_of,
    draft_settings,
    make_target,
    random_drafter,
    randomise,
    save_model,
)

ROOT = Path(__file__).parents[2]
Job = list[str | None]
FOUR_HEADS: dict[str, Any] = {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "linear_num_key_heads": 4,
}


def save_family(folder: Path, family: str, **heads: int) -> Job:
    """Save a tiny target whose heads divide among four ranks, and a random drafter."""
    heads = heads or FOUR_HEADS
    config = config_of(family, **heads)
    model_class, args_class = _get_classes(config)
    model: Any = model_class(args_class.from_dict(deepcopy(config)))
    randomise(model, SEEDS.get(family, 1), 1.6, sober=True)
    target, draft = folder / family, folder / f"{family}-draft"
    save_model(target, model, config)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (target / name).write_bytes((GOLDEN / "qwen3_full" / "target" / name).read_bytes())
    tapped = make_target(family, None, 1.6, False, **heads)
    save_model(draft, random_drafter(tapped).model, draft_settings(tapped))
    return [str(target), str(draft)]


def free_ports(count: int) -> list[int]:
    """Free ports of the loopback address."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@contextmanager
def ranks(
    folder: Path, count: int, command: Sequence[str], **env: str
) -> Iterator[list[subprocess.Popen[str]]]:
    """Start the ranks of a Python command in a ring; kills them at the end.

    Their stdout and stderr are pipes, their stdin is empty.
    """
    hosts = folder / "hosts.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in free_ports(count)]))
    base = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "DFLASH_LAUNCHED": "1"}
    base |= {"DFLASH_BLAS": "off", "TRANSFORMERS_VERBOSITY": "error", **env}
    found = [
        subprocess.Popen(
            [sys.executable, *command],
            env={**base, "MLX_RANK": str(rank), "MLX_HOSTFILE": str(hosts)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for rank in range(count)
    ]
    try:
        yield found
    finally:
        for process in found:
            process.kill()
            process.wait()


def results(processes: Sequence[subprocess.Popen[str]], timeout: float = 900) -> list[str]:
    """The stdout of each rank; all must exit with 0, and only rank 0 may write anything."""
    found = []
    for rank, process in enumerate(processes):
        out, err = process.communicate(timeout=timeout)
        assert process.returncode == 0, f"rank {rank}: {err[-3000:]}"
        assert not (rank and (out or err)), err
        found.append(out)
    return found
