"""Loading of a model's tokenizer by mlx-lm, with all its end-of-sequence tokens.

Remote code of a model runs only if the user allows it.
"""

from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load_tokenizer as load_mlx_tokenizer

from dflash_mlx.drafter.config import load_config
from dflash_mlx.errors import DFlashError, first_line
from dflash_mlx.files.checkpoint import json_object
from dflash_mlx.hub.cache import TOKENIZER_PATTERNS, tokenizer_code


def load_tokenizer(path: Path, *, trust_remote_code: bool = False) -> TokenizerWrapper:
    """Load the tokenizer of a model folder.

    With `trust_remote_code` the model's Python files for its tokenizer are run. Raises DFlashError
    if the tokenizer cannot be loaded, or not without these files.
    """
    if not any(any(path.glob(name)) for name in TOKENIZER_PATTERNS):  # transformers would guess
        raise DFlashError(f"there is no tokenizer in '{path}'.", hint="download the model again")
    code = [] if trust_remote_code else tokenizer_code(path)
    if code and not (path / "tokenizer.json").exists():
        raise untrusted_code(path, code)  # transformers may fall back to a wrong tokenizer
    stops = eos_token_ids_of(path) or None
    try:
        # Without `trust_remote_code` transformers asks on the terminal.
        return load_mlx_tokenizer(
            path, {"trust_remote_code": trust_remote_code}, eos_token_ids=stops
        )
    except Exception as error:  # transformers and tokenizers raise many types
        if code:
            raise untrusted_code(path, code) from error
        raise DFlashError(
            f"the tokenizer in '{path}' cannot be loaded ({first_line(error)}).",
            hint="install the packages that it names into the environment of dflash"
            if isinstance(error, ImportError)
            else "check that the folder holds a whole mlx-lm or Hugging Face model",
        ) from error


def untrusted_code(path: Path, code: list[str]) -> DFlashError:
    """The error for a tokenizer whose remote code is not allowed to run."""
    return DFlashError(
        f"the tokenizer of '{path.name}' is Python code of its own ({', '.join(code)}).",
        hint="read that code, then let it run with --trust-remote-code "
        "(trust_remote_code=True in Python)",
    )


def eos_token_ids_of(path: Path) -> list[int]:
    """The sorted `eos_token_id`s of config.json, its text_config, and generation_config.json.

    mlx-lm reads only one of these. Raises DFlashError for a damaged file.
    """
    config = load_config(path)
    text_config = config.get("text_config")
    places: list[tuple[str, Any]] = [("config.json", config), ("config.json", text_config)]
    if (path / "generation_config.json").exists():
        places.append(("generation_config.json", json_object(path / "generation_config.json")))
    found: set[int] = set()
    for name, settings in places:
        value = settings.get("eos_token_id") if isinstance(settings, dict) else None
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if any(type(number) is not int for number in ids):
            raise DFlashError(
                f"the {name} of '{path.name}' has a wrong 'eos_token_id: {value}'.",
                hint="give it a token id or a list of them, or download the model again",
            )
        found.update(ids)
    return sorted(found)
