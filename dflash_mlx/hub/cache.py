"""What the Hub's cache holds: which models are there, whether each is whole, and how big it is.

Never asks the Hub. A model counts as whole only when every file that loading needs is there and as
long as it says; what a stopped download left behind is never handed out.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Literal

from dflash_mlx.drafter.config import is_drafter, load_config
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import header, json_object

# The files that are fetched, all from a repository's top folder. A few tokenizers are Python code;
# fetching it runs nothing.
TEXTS = ["*.json", "*.jinja", "*.txt", "tokenizer.model", "tiktoken.model", "*.tiktoken", "*.py"]
WANTED = ["*.safetensors", "mask_embedding.pt", *TEXTS]
UNWANTED = ["*/*"]
TOKENIZERS = (
    "tokenizer.json", "tokenizer.model", "tiktoken.model", "vocab.json", "*.tiktoken"
)  # fmt: skip
PART = ".dflash.incomplete"  # ends the name of a blob that is being fetched
INDEX = "model.safetensors.index.json"


def cache_folder() -> Path:
    """The Hub's cache; it need not exist."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def repo_folder(repo: str) -> Path:
    """Where the cache keeps one model; it need not exist."""
    return cache_folder() / f"models--{repo.replace('/', '--')}"


def local(repo: str) -> Path | None:
    """The folder of a model that is whole, else None."""
    folder = newest(repo)
    return folder if folder is not None and not missing(folder) else None


def newest(repo: str) -> Path | None:
    """The folder of the version that was fetched last, if the Hub's own list of it is complete."""
    if not repo_folder(repo).is_dir():
        return None
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(
                repo, local_files_only=True, allow_patterns=WANTED, ignore_patterns=UNWANTED
            )
        )
    except (LocalEntryNotFoundError, HFValidationError):
        return None


def missing(folder: Path) -> str:
    """The first file that a model's folder lacks or has only in part; empty when it is whole."""
    for path in folder.rglob("*"):
        if not path.exists():  # a link whose blob is gone
            return path.name
    try:
        drafts = is_drafter(load_config(folder))
    except DFlashError:
        return "config.json"
    try:
        named = shards(folder / INDEX)
    except (ValueError, KeyError, TypeError, AttributeError):
        return INDEX
    files = [folder / name for name in named] or sorted(folder.glob("*.safetensors"))
    for file in files:
        try:
            header(file)
        except (DFlashError, FileNotFoundError):
            return file.name
    if not files:
        return "*.safetensors"
    if drafts:
        return ""
    if not any(any(folder.glob(name)) for name in TOKENIZERS):
        return "tokenizer.json"
    try:
        code = own_code(folder)
    except DFlashError:
        return "tokenizer_config.json"
    return next((name for name in code if "/" not in name and not (folder / name).exists()), "")


def own_code(folder: Path) -> list[str]:
    """The Python files that a folder's tokenizer is made of; none for most.

    One of another repository is named with it: owner/model/file.py. DFlashError when the
    tokenizer's config cannot be read.
    """
    try:
        said = json_object(folder / "tokenizer_config.json").get("auto_map")
    except FileNotFoundError:
        return []
    classes = said.get("AutoTokenizer") if isinstance(said, dict) else said
    classes = classes if isinstance(classes, list) else [classes]
    names = [name.rpartition(".")[0] for name in classes if isinstance(name, str)]
    return sorted({name.replace("--", "/") + ".py" for name in names if name})


def shards(index: Path) -> list[str]:
    """The weight files that an index names; none where there is no index."""
    if not index.exists():
        return []
    return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))


def cached_state(repo: str) -> Literal["yes", "partly", "no"]:
    """Whether the cache has a model whole, in part, or not at all."""
    if local(repo) is not None:
        return "yes"
    return "partly" if cached_bytes(repo) else "no"


def cached_bytes(repo: str) -> int:
    """Bytes of one model in the cache, unfinished files included."""
    return sum(path.stat().st_size for path in repo_folder(repo).glob("blobs/*") if path.exists())


def cached_repos() -> list[str]:
    """The Hub ids of the cached models that hold weights, in the order of their names."""
    found = []
    for folder in sorted(cache_folder().glob("models--*--*")):
        if any(folder.glob("snapshots/*/*.safetensors")) or any(folder.glob(f"blobs/*{PART}")):
            found.append(folder.name.removeprefix("models--").replace("--", "/", 1))
    return found


def remove(repo: str) -> int:
    """Delete a model from the cache; the bytes freed. DFlashError when it is not there."""
    folder, size = repo_folder(repo), cached_bytes(repo)
    if not folder.is_dir():
        raise DFlashError(
            f"'{repo}' is not in the cache.", hint="`dflash models list` shows what is"
        )
    try:
        delete_versions(repo)
        if folder.is_dir():
            shutil.rmtree(folder)
        shutil.rmtree(cache_folder() / ".locks" / folder.name, ignore_errors=True)
    except OSError as error:
        raise DFlashError(
            f"'{repo}' could not be deleted ({error.strerror}).",
            hint=f"check who may write in '{folder}'",
        ) from error
    return size


def delete_versions(repo: str) -> None:
    """Let the Hub's client delete a model's versions: it knows about blobs that models share."""
    from huggingface_hub import scan_cache_dir

    cache = scan_cache_dir(cache_folder())
    # Only this model: a copy of it under another name may have versions of the same ids.
    own = [found for found in cache.repos if (found.repo_type, found.repo_id) == ("model", repo)]
    versions = [version.commit_hash for found in own for version in found.revisions]
    replace(cache, repos=frozenset(own)).delete_revisions(*versions).execute()
