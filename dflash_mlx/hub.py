"""Where models are: names to folders, downloads, and which drafter belongs to which target."""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from .errors import DFlashError, UsageError

Progress = Callable[[int, int], None]
WEIGHTS = ("*.safetensors", "*.json", "*.jinja", "*.txt", "tokenizer.model", "*.tiktoken")
BUNDLED = "bundled"


@dataclass(frozen=True, slots=True)
class Names:
    """Where a pair is, a folder or a Hub id each, and what to call it."""

    target: str | Path
    target_label: str
    draft: str | Path | None
    draft_label: str | None


def bundled(part: str) -> Path:
    """The folder of the bundled target or drafter ("target", "draft")."""
    with as_file(files("dflash_mlx.bundled")) as folder:
        if not (folder / part).is_dir():
            raise DFlashError(
                "the bundled pair is missing from this installation.",
                hint="install dflash-chat again, or name a model with --model",
            )
        return folder / part


def known_pairs() -> dict[str, str]:
    """Target id -> drafter id of every published pair that this engine runs."""
    return tomllib.loads(files("dflash_mlx").joinpath("pairs.toml").read_text(encoding="utf-8"))


def pair_names(
    target: str | Path | None, draft: str | Path | None, *, no_draft: bool = False
) -> Names:
    """Decide what to load; DFlashError when no drafter is known for the target."""
    if no_draft and draft is not None:
        raise UsageError("a drafter and no drafter were asked for.", hint="leave one of them out")
    if target is None:
        where: str | Path = bundled("target")
        label = BUNDLED
    else:
        where, label = target, str(target)
    if no_draft:
        return Names(where, label, None, None)
    if draft is not None:
        return Names(where, label, draft, str(draft))
    if target is None:
        return Names(where, label, bundled("draft"), BUNDLED)
    found = known_pairs().get(str(target))
    if found is None:
        raise DFlashError(
            f"no DFlash drafter is known for '{target}'.",
            hint="give one with --draft, or run without with --no-draft",
        )
    return Names(where, label, found, found)


def fetch(name: str | Path, on_download: Progress | None = None) -> Path:
    """The local folder of a model; Hub ids are downloaded unless the Hub's cache has them.

    `on_download(done, total)` counts bytes. DFlashError says what is missing.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if not is_hub_id(name):
        raise DFlashError(
            f"there is no folder '{name}'.", hint="give a folder, or a Hub id such as Qwen/Qwen3-4B"
        )
    return download(str(name), on_download)


def is_hub_id(name: str | Path) -> bool:
    """Whether a name that is no folder reads owner/model."""
    text = str(name)
    looks_so = not text.startswith((".", "/", "~")) and text.count("/") == 1
    return isinstance(name, str) and looks_so and not Path(name).is_dir()


def download(repo: str, on_download: Progress | None) -> Path:
    """A Hub snapshot's folder."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )
    from tqdm.auto import tqdm

    class Bytes(tqdm):
        """Forwards the count of bytes written and draws nothing itself."""

        def __init__(self, *args, **kwargs):
            # The Hub counts twice: bytes from the network, and bytes of files put together.
            self._bytes = str(kwargs.get("desc", "")).startswith("Reconstructing")
            super().__init__(*args, **{**kwargs, "disable": True})
            if self._bytes and on_download and self.total:
                on_download(0, int(self.total))

        def update(self, n=1):
            """Count, and report."""
            self.n += n or 0
            if self._bytes and on_download and self.total:
                on_download(int(self.n), int(self.total))

    try:
        return Path(snapshot_download(repo, allow_patterns=list(WEIGHTS), tqdm_class=Bytes))
    except GatedRepoError as error:
        raise DFlashError(
            f"'{repo}' asks for a licence that this machine's Hub account has not accepted.",
            hint=f"accept it on https://huggingface.co/{repo} and run `hf auth login`",
        ) from error
    except LocalEntryNotFoundError as error:
        raise DFlashError(
            f"'{repo}' is not on this machine and the Hub cannot be reached.",
            hint="check the network, or give a local folder",
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise DFlashError(
            f"there is no model '{repo}' on the Hub, and no folder of that name.",
            hint="check the spelling; a private model needs `hf auth login`",
        ) from error
    except OSError as error:
        raise DFlashError(
            f"'{repo}' could not be downloaded ({type(error).__name__}).",
            hint="check the network and the free disk space, then run the same command again",
        ) from error
