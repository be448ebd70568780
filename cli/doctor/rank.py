"""One rank of `dflash doctor` for a group: a process that prints records as lines of JSON."""

import json
import os
import platform
import sys

from dflash_mlx.distributed.environment import start_watcher
from dflash_mlx.errors import DFlashError, first_line

from ..loading import prepare_libraries

LIFETIME = 90.0  # seconds; the process that reads the records has ended by then


def print_record(**record: object) -> None:
    """Print a record as one line of JSON."""
    print(json.dumps(record), flush=True)


def main(model: str | None) -> None:
    """Print the records of this rank; stops after an error."""
    prepare_libraries(offline=True)
    from dflash_mlx.distributed.model_files import facts_of, samples_of, versions

    # Never said to have joined: ssh may be gone, and other ranks may never come.
    start_watcher(LIFETIME, 0.0, sys.stdin.fileno())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    print_record(python=platform.python_version(), memory=memory, facts=versions())
    values = {}
    try:
        files = {}
        if model is not None:
            from dflash_mlx.distributed.model_files import own_folder

            path = own_folder(model)
            files = facts_of(path) | samples_of(path)
            config = json.loads(files["config.json"])
            values = {"values": (config.get("text_config") or config)["hidden_size"]}
        print_record(facts=files)
    except DFlashError as error:
        return print_record(error=error.message, hint=error.hint)
    except (OSError, ValueError, KeyError) as error:
        sentence = f"the model cannot be read ({first_line(error)})."
        return print_record(error=sentence, hint="copy the same model to all machines")
    import mlx.core as mx

    from dflash_mlx.distributed.group import init_group, one_sum, time_sums

    try:
        group = init_group()
        one_sum(mx.zeros(1), group)
        print_record(joined=group.size())
        times = time_sums(group, **values)
    except DFlashError as error:
        return print_record(error=error.message, hint=error.hint)
    except RuntimeError as error:
        return print_record(error=f"it cannot reach the others ({first_line(error)}).")
    print_record(row=times.row_seconds, rate=times.bytes_per_second)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
