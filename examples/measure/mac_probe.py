"""The steps of mac_report.py that need a program of their own. Each prints a JSON object a line.

    .venv/bin/python examples/measure/mac_probe.py machine
    .venv/bin/python examples/measure/mac_probe.py start|memory|sustained [--model ID]

machine     the GPU, macOS, MLX's wheel, the power mode and the heat
start       the seconds of a program's phases until its first answer
memory      bytes and speed after prompts of 4k, 16k and 32k tokens
sustained   tokens per second in each minute of `--seconds`, by drafts

A later line adds to the earlier ones or replaces their values, so that a program that is stopped
has told what it knew. Without --model the pair is the bundled one.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from itertools import cycle
from pathlib import Path
from typing import Any

CONTEXTS = (4096, 16384, 32768)  # tokens of a prompt
ANSWER = 32  # tokens of the answers after it
WINDOW = 60.0  # seconds
MODE = "dflash"  # the same work in each window; auto might change its mind
PROMPTS = (
    "Explain how a bicycle stays upright.",
    "Write a function that merges two sorted lists.",
    "Tom has 12 apples and buys 7 more. How many apples does Tom have now?",
)
# Functions of this package that are timed on their own, with the name of their phase. The other
# phases, import, load and first answer, are without them.
TIMED = (
    ("check: compile, compare", "dflash_mlx.selfcheck.check", "compare"),
    ("check: time", "dflash_mlx.selfcheck.check", "compare_times"),
    ("build", "dflash_mlx.pair", "build"),
)

Found = dict[str, Any]


def tell(**found: Any) -> None:
    """Print an object as one line, at once."""
    print(json.dumps(found), flush=True)


# The machine


def said_by(*command: str) -> str | None:
    """What a program of macOS prints; None where there is no such program, or it fails."""
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def thermal_pressure() -> str | None:
    """From 0, nominal, to 4, behind the name. `pmset -g therm` tells nothing on Apple silicon."""
    return said_by("notifyutil", "-g", "com.apple.system.thermalpressurelevel")


def power_modes(settings: str | None) -> dict[str, str]:
    """The power modes among the lines of `pmset -g`; 1 is low power, 2 high power."""
    return dict(re.findall(r"^\s*(lowpowermode|powermode)\s+(\d+)", settings or "", re.M))


def generation(architecture: str) -> int | None:
    """The generation of a GPU, such as 16 of "applegpu_g16s"; None for a virtual one."""
    found = re.search(r"_g(\d+)[a-z]$", architecture)
    return int(found.group(1)) if found else None


def wheel_tag(package: str) -> str | None:
    """The tag of an installed wheel; None if the package is not installed from one."""
    try:
        text = distribution(package).read_text("WHEEL")
    except PackageNotFoundError:
        return None
    found = re.search(r"^Tag: (.+)$", text or "", re.M)
    return found.group(1) if found else None


def has_matrix_kernels(library: Path) -> bool | None:
    """Whether MLX's Metal library has the kernels for the matrix units of M5; None without one.

    The wheels for macOS 14 and 15 have none.
    """
    return b"_nax_" in library.read_bytes() if library.is_file() else None


def machine() -> str | None:
    """The facts on which speed depends, without any measurement; returns the GPU's name."""
    version = platform.mac_ver()[0]
    tell(
        machine=said_by("sysctl", "-n", "hw.model") or platform.machine(),
        system=f"macOS {version}" if version else f"{platform.system()} {platform.release()}",
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        power=power_modes(said_by("pmset", "-g")),
        supply=said_by("pmset", "-g", "batt"),
        thermal=thermal_pressure(),
        MLX_ENABLE_TF32=os.environ.get("MLX_ENABLE_TF32"),
        wheels={name: wheel_tag(name) for name in ("mlx", "mlx-metal")},
    )
    import dflash_mlx.installation  # isort: skip  before MLX, for its BLAS
    import mlx.core as mx

    info: Found = dict(mx.device_info(mx.gpu)) if mx.metal.is_available() else {}
    tell(
        device=info.get("device_name"),
        gpu=info,
        generation=generation(str(info.get("architecture", ""))),
        matrix_kernels=has_matrix_kernels(Path(mx.__file__).parent / "lib" / "mlx.metallib"),
        versions=dflash_mlx.installation.versions(),
    )
    return info.get("device_name")


# The first answer


class Phases:
    """Seconds by phase. A phase within another one is not counted in the outer one."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._open: list[str] = []
        self._since = clock()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of this context."""
        self._count()
        self._open.append(name)
        try:
            yield
        finally:
            self._count()
            self._open.pop()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, counted as this phase."""

        def counted(*args: Any, **options: Any) -> Any:
            with self.phase(name):
                return function(*args, **options)

        return counted

    def _count(self) -> None:
        now = self._clock()
        if self._open:
            name = self._open[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now


def start(model: str | None) -> None:
    """The phases from the import to the end of the first answer, which is short."""
    phases = Phases()
    with phases.phase("import"):
        import dflash_mlx

        for name, home, function in TIMED:
            module = import_module(home)
            setattr(module, function, phases.timed(name, getattr(module, function)))
    with phases.phase("load"):
        pair = dflash_mlx.load(model)
    tell(phases=rounded(phases.seconds), MLX_ENABLE_TF32=os.environ.get("MLX_ENABLE_TF32"))
    with phases.phase("first answer"):
        dflash_mlx.generate(pair, PROMPTS[-1], mode="auto", max_tokens=ANSWER)
    kernels = pair.target.kernels
    tell(
        phases=rounded(phases.seconds),
        total=round(sum(phases.seconds.values()), 2),
        on=sorted(kernels.on or ()),
        off=dict(kernels.off),
    )


def rounded(seconds: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in seconds.items()}


# Long contexts


def memory(model: str | None, contexts: tuple[int, ...] = CONTEXTS) -> None:
    """Bytes of MLX after the models are loaded, and with each length of context."""
    import dflash_mlx  # isort: skip  before MLX, for its BLAS
    import mlx.core as mx

    pair = dflash_mlx.load(model, cache_ram=0)
    tell(loaded=mx.get_active_memory(), contexts=[])
    text = pair.encode(" ".join(PROMPTS))
    lines: list[Found] = []
    for count in contexts:
        if count + ANSWER > pair.target.context_length:
            lines.append({"tokens": count, "note": f"the model has {pair.target.context_length}"})
        else:
            prompt = [text[place % len(text)] for place in range(count)]
            lines.append({"tokens": count, **with_prompt(pair, prompt)})
        tell(contexts=lines)


def with_prompt(pair: Any, prompt: list[int]) -> Found:
    """Bytes in use and at most, and the speeds of a prompt and of the answer after it."""
    import mlx.core as mx

    import dflash_mlx

    mx.clear_cache()
    mx.reset_peak_memory()
    session = dflash_mlx.Session(pair, mode=MODE)
    active = 0
    for _ in session.stream(prompt, max_tokens=ANSWER):
        active = max(active, mx.get_active_memory())
    stats = session.stats
    return {
        "active": active,
        "peak": mx.get_peak_memory(),
        "prompt_tok_s": round(len(prompt) / stats.prefill_seconds, 1),
        "tok_s": round((stats.generated - 1) / stats.decode_seconds, 1),
    }


# Heat


def sustained(model: str | None, seconds: float) -> None:
    """Answers one after another; tokens per second in each window, prompts included."""
    import dflash_mlx

    pair = dflash_mlx.load(model)
    tokens = (
        len(block.tokens)
        for prompt in cycle(PROMPTS)
        for block in dflash_mlx.stream(pair, prompt, mode=MODE, max_tokens=256)
    )
    next(tokens)  # the first answer has work of its own
    window = min(WINDOW, seconds / 2)
    for rates in windows(tokens, seconds, window, time.monotonic):
        tell(window=window, tok_s=rates)
    tell(thermal_after=thermal_pressure())


def windows(
    tokens: Iterator[int], seconds: float, window: float, clock: Callable[[], float]
) -> Iterator[list[float]]:
    """The tokens per second of all windows so far, after each of them."""
    rates: list[float] = []
    for _ in range(int(seconds / window)):
        count, since = 0, clock()
        while clock() - since < window:
            count += next(tokens)
        rates.append(round(count / (clock() - since), 1))
        yield [*rates]


def main() -> int:
    """Run one step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=["machine", "start", "memory", "sustained"])
    parser.add_argument("--model")
    parser.add_argument("--need-gpu", action="store_true", help="machine: 1 without an Apple GPU")
    parser.add_argument("--seconds", type=float, default=600.0)
    asked = parser.parse_args()
    if asked.step == "machine":
        return 1 if machine() is None and asked.need_gpu else 0
    if asked.step == "start":
        start(asked.model)
    elif asked.step == "memory":
        memory(asked.model)
    else:
        sustained(asked.model, asked.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
