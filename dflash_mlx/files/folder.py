"""Folders as this program sees them: without the files that macOS adds on foreign drives."""

import codecs
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

SIDECAR = "._"  # begins the name of a file with the attributes of another one (AppleDouble)
TEMPLATES = "additional_chat_templates"
# The first two bytes of UTF-32's marks are those of UTF-16, or are zeros.
MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)


def is_sidecar(name: str) -> bool:
    return name.startswith(SIDECAR)


def matching(folder: Path, pattern: str = "*") -> list[Path]:
    """The sorted paths below a folder that match a glob pattern, without sidecars.

    Empty for a folder that does not exist or cannot be read.
    """
    try:
        found = sorted(folder.glob(pattern))
    except OSError:
        return []
    return [path for path in found if not any(map(is_sidecar, path.relative_to(folder).parts))]


@contextmanager
def readable(folder: Path, weights: Sequence[Path] | None = None) -> Iterator[Path]:
    """A model's folder as mlx-lm and transformers can read it: itself, or links in its place.

    They cannot read JSON files with a byte order mark and sidecars of templates. weights: the files
    to read where mlx-lm would take others.
    """
    marked = {file: text for file in matching(folder) if (text := marked_text(file))}
    sidecars = any((folder / TEMPLATES).glob(f"{SIDECAR}*"))
    others = weights is not None and weights != matching(folder, "model*.safetensors")
    if not (marked or others or sidecars):
        yield folder
        return
    with TemporaryDirectory(prefix="dflash-") as name:
        linked = Path(name) / folder.name
        places = {file: linked / file.relative_to(folder) for file in matching(folder, "**/*")}
        if weights is not None:
            places = {file: to for file, to in places.items() if file.suffix != ".safetensors"}
            places |= {file: linked / f"model-{n:05}.safetensors" for n, file in enumerate(weights)}
        for file, place in places.items():
            if file.is_dir():
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            if file in marked:
                place.write_text(marked[file], encoding="utf-8")
            else:
                place.symlink_to(file.absolute())
        yield linked


def marked_text(file: Path) -> str:
    """The text of a JSON file or template that begins with a byte order mark; or empty."""
    if file.suffix not in (".json", ".jinja") or not file.is_file():
        return ""
    with file.open("rb") as stream:
        if not stream.read(4).startswith(MARKS):
            return ""
    data = file.read_bytes()
    return data.decode(json.detect_encoding(data), "replace")
