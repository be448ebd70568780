"""What one rank of a group says of itself to `dflash doctor --hosts`: `python -m` runs this there.

Lines of JSON on stdout, each as soon as it is known: versions, a model's files, that it has joined
the others, times of sums. Joins MLX's group alone, without the connections of an answering group.
"""

import json
import os
import platform
import sys
from threading import Timer

from dflash_mlx.errors import DFlashError, first_line

from ..loading import prepare_libraries

LIFE = 90.0  # seconds; whoever asked has gone by then


def say(**found: object) -> None:
    """One line."""
    print(json.dumps(found), flush=True)


def main(model: str | None) -> None:
    """Say everything; the first error is the last line."""
    from dflash_mlx.distributed.sameness import facts_of, samples_of, versions

    ending = Timer(LIFE, os._exit, [1])  # ssh may be gone, and the others never come
    ending.daemon = True
    ending.start()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    say(python=platform.python_version(), memory=memory, facts=versions())
    prepare_libraries(offline=True)
    values = {}
    try:
        files = {}
        if model is not None:
            from dflash_mlx.hub.resolve import fetch

            path = fetch(model)
            files = facts_of(path) | samples_of(path)
            config = json.loads(files["config.json"])
            values = {"values": (config.get("text_config") or config)["hidden_size"]}
        say(facts=files)
    except DFlashError as error:
        return say(error=f"{error.message} {error.hint}".strip())
    except (OSError, ValueError, KeyError) as error:
        return say(error=f"the model cannot be read ({first_line(error)}).")
    import mlx.core as mx

    from dflash_mlx.distributed.collectives import one_sum, time_sums

    try:
        group = mx.distributed.init(strict=True)
        one_sum(mx.zeros(1), group)
        say(joined=group.size())
        times = time_sums(group, **values)
    except RuntimeError as error:
        return say(error=f"it cannot reach the others ({first_line(error)}).")
    say(row=times.row_seconds, rate=times.bytes_per_second)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
