"""Checks of a model's files before loading: safetensors headers and JSON objects."""

import json
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
    """Tensor names and shapes of a safetensors file.

    Raises DFlashError if the file is shorter than its header says.
    """
    damaged = DFlashError(f"'{file}' is damaged or incomplete.", hint="download it again")
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > size - 8:
            raise damaged
        try:
            tensors = json.loads(stream.read(length))
            tensors.pop("__metadata__", None)
            end = max((t["data_offsets"][1] for t in tensors.values()), default=0)
            shapes = {name: t["shape"] for name, t in tensors.items()}
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            raise damaged from None
    if size < 8 + length + end:
        raise damaged
    return shapes


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
