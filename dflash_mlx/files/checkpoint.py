"""Checks of a model's files before loading: safetensors headers and JSON objects."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from dflash_mlx.errors import DFlashError

TORCH_FILE = "pytorch_model.bin"  # weights as torch.save writes them: EAGLE-3 heads only
WRONG_FILES = "the weights do not belong to this config.json: download the drafter again"


def check_weights(folder: Path, pattern: str) -> list[Path]:
    """The sorted files that match `pattern`, all complete.

    Raises DFlashError if there is none, or names the first damaged one.
    """
    files = sorted(folder.glob(pattern))
    if not files:
        raise DFlashError(
            f"there are no weights ({pattern}) in '{folder}'.", hint="download the model again"
        )
    for file in files:
        header(file)
    return files


def header(file: Path) -> dict[str, list[int]]:
    """Tensor names and shapes of a safetensors file; raises as `tensors`."""
    return {name: found["shape"] for name, found in tensors(file).items()}


def byte_counts(file: Path) -> dict[str, int]:
    """Tensor names and sizes in bytes of a safetensors file; raises as `tensors`."""
    offsets = {name: found["data_offsets"] for name, found in tensors(file).items()}
    return {name: end - start for name, (start, end) in offsets.items()}


def tensors(file: Path) -> dict[str, dict[str, Any]]:
    """What the header of a safetensors file says of each tensor: "shape", "data_offsets", "dtype".

    Raises DFlashError if the file is shorter than its header says.
    """
    damaged = DFlashError(f"'{file}' is damaged or incomplete.", hint="download it again")
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > size - 8:
            raise damaged
        try:
            found = json.loads(stream.read(length))
            found.pop("__metadata__", None)
            end = max((one["data_offsets"][1] for one in found.values()), default=0)
            complete = all("shape" in one for one in found.values())
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            raise damaged from None
    if size < 8 + length + end or not complete:
        raise damaged
    return found


def json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises DFlashError for other content, FileNotFoundError without the file.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DFlashError(
            f"'{path}' is not valid JSON ({error}).", hint="download the model again"
        ) from None
    if not isinstance(raw, dict):
        raise DFlashError(f"'{path}' does not hold an object.", hint="download the model again")
    return raw


def compare_shapes(path: Path, wanted: dict[str, list[int]], found: dict[str, list[int]]) -> None:
    """DFlashError unless a drafter's files hold just the tensors that its config wants."""
    for name in sorted(wanted.keys() | found.keys()):
        if name not in found:
            raise DFlashError(f"the drafter in '{path}' has no tensor '{name}'.", hint=WRONG_FILES)
        if name not in wanted:
            raise DFlashError(f"the drafter in '{path}' has an unknown '{name}'.", hint=WRONG_FILES)
        if wanted[name] != found[name]:
            raise DFlashError(
                f"the drafter's '{name}' is {found[name]}, its config says {wanted[name]}.",
                hint=WRONG_FILES,
            )


def load_config(folder: Path) -> dict[str, Any]:
    """Read `config.json`. Raises DFlashError if it is missing or is not a JSON object."""
    try:
        return json_object(folder / "config.json")
    except FileNotFoundError:
        raise DFlashError(
            f"there is no config.json in '{folder}'.",
            hint="give a folder or a Hub id of a model in the Hugging Face layout",
        ) from None


# Reading of JSONL files that users provide.


def read_lines(path: Path, hint: str) -> list[str]:
    """The lines of a UTF-8 file, empty ones included. Raises DFlashError with `hint`.

    Only a newline ends a line: a JSON string may contain other line separators of Unicode.
    """
    try:
        return path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise DFlashError(f"'{path}' cannot be read ({reason}).", hint=hint) from None


def value_of(line: str) -> Any:
    """The JSON value of a line. Raises ValueError for invalid JSON or a lone surrogate."""
    try:
        value = json.loads(line)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


# Small JSON files in the user's cache folder


def cache_file(name: str) -> Path:
    """The path of a file, $XDG_CACHE_HOME/dflash/`name`. The file may not exist."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "dflash" / name


def replace_json(file: Path, data: Any) -> None:
    """Replace a JSON file atomically. Raises OSError if it cannot be written."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=file.parent, prefix=file.name, delete=False, encoding="utf-8"
    ) as part:
        json.dump(data, part)
    try:
        os.replace(part.name, file)
    except OSError:
        os.unlink(part.name)
        raise
