"""A model folder's tokenizer: loaded by mlx-lm, with every token that ends an answer.

Runs no Python code that comes with a model unless the user allowed it. Does not know weights.
"""

from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load_tokenizer

from dflash_mlx.drafter.config import load_config
from dflash_mlx.errors import DFlashError, first_line
from dflash_mlx.files.checkpoint import json_object
from dflash_mlx.hub.cache import TOKENIZERS, own_code


def load(path: Path, *, trust_remote_code: bool = False) -> TokenizerWrapper:
    """Load a folder's tokenizer.

    With `trust_remote_code` the Python files that the model brings for it are run. DFlashError when
    it cannot be loaded, or not without such files.
    """
    if not any(any(path.glob(name)) for name in TOKENIZERS):  # transformers would make one up
        raise DFlashError(f"there is no tokenizer in '{path}'.", hint="download the model again")
    code = [] if trust_remote_code else own_code(path)
    if code and not (path / "tokenizer.json").exists():
        raise needs_code(path, code)  # transformers might guess, and cut words otherwise
    stops = stop_ids(path) or None
    try:
        # Without a word on trust transformers would ask on the terminal.
        return load_tokenizer(path, {"trust_remote_code": trust_remote_code}, eos_token_ids=stops)
    except Exception as error:  # transformers and tokenizers have many kinds
        if code:
            raise needs_code(path, code) from error
        raise DFlashError(
            f"the tokenizer in '{path}' cannot be loaded ({first_line(error)}).",
            hint="install the packages that it names into the environment of dflash"
            if isinstance(error, ImportError)
            else "check that the folder holds a whole mlx-lm or Hugging Face model",
        ) from error


def needs_code(path: Path, code: list[str]) -> DFlashError:
    """The fault of a tokenizer whose code may not run."""
    return DFlashError(
        f"the tokenizer of '{path.name}' is Python code of its own ({', '.join(code)}).",
        hint="read that code, then let it run with --trust-remote-code "
        "(trust_remote_code=True in Python)",
    )


def stop_ids(path: Path) -> list[int]:
    """The tokens that end an answer, by all of a folder's files together.

    mlx-lm reads config.json's top level, and generation_config.json in its place; a language
    model's part of config.json may have its own. DFlashError for a damaged file.
    """
    config = load_config(path)
    inner = config.get("text_config")
    places: list[tuple[str, Any]] = [("config.json", config), ("config.json", inner)]
    if (path / "generation_config.json").exists():
        places.append(("generation_config.json", json_object(path / "generation_config.json")))
    found: set[int] = set()
    for name, settings in places:
        said = settings.get("eos_token_id") if isinstance(settings, dict) else None
        ids = said if isinstance(said, list) else [] if said is None else [said]
        if any(type(number) is not int for number in ids):
            raise DFlashError(
                f"the {name} of '{path.name}' has a wrong 'eos_token_id: {said}'.",
                hint="give it a token id or a list of them, or download the model again",
            )
        found.update(ids)
    return sorted(found)
