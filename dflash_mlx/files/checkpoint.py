"""A model's folder: its config.json, the headers of its weights, and its other JSON files."""

import json
import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

from dflash_mlx.errors import DFlashError
from dflash_mlx.text import whole_text

from .folder import TEMPLATES, marked_text, matching
from .formats import MTP_TENSOR, Format, format_of

T = TypeVar("T")
# Weights as torch.save writes them, which are pickles: reading one could run any code.
TORCH_FILES = "pytorch_model*.bin"
WEIGHT_INDEX = "model.safetensors.index.json"
NUMBERED = re.compile(r"(.*-)(\d+)(-of-(\d+)\.safetensors)")  # one of several weight files
POINTER = b"version https://git-lfs.github.com/spec/"  # begins what Git LFS has in a file's place
TEXTS = (".json", ".jinja", ".model", ".tiktoken", ".txt")  # of a tokenizer's files
MASK_FILE = "mask_embedding.pt"  # a DFlash drafter's trained row of the mask token
CONTEXT_NAMES = (
    "max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length",
    "max_context_length",
)  # fmt: skip
TOKENIZER_PATTERNS = (
    "tokenizer.json", "tokenizer.model", "tiktoken.model", "vocab.json", "*.tiktoken"
)  # fmt: skip
TensorChoice = Callable[[str], object]  # whether a tensor of this name is wanted


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """The header of one tensor in a safetensors file. dtype: its name there, such as "BF16"."""

    dtype: str
    shape: list[int]
    nbytes: int

    @classmethod
    def of(cls, entry: dict[str, Any]) -> Self:
        start, end = entry["data_offsets"]
        return cls(entry["dtype"], entry["shape"], end - start)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """One model on disk: its folder and config.json. label: its name in messages, as its Hub id.

    Each other file is read once, on first use. Of the weights only the headers are read.
    """

    path: Path
    config: dict[str, Any]
    label: str = ""

    @classmethod
    def read(cls, path: Path, label: str = "") -> Self:
        """Read config.json. Raises DFlashError if it is missing or is not a JSON object."""
        try:
            return cls(path, json_object(path / "config.json"), label)
        except FileNotFoundError:
            if adapter := optional_json(path / ADAPTER_CONFIG):
                raise adapter_error(path, adapter) from None
            raise DFlashError(
                f"there is no config.json in '{path}'.",
                hint="give a folder or a Hub id of a model in the Hugging Face layout",
            ) from None

    @property
    def name(self) -> str:
        return self.label or self.path.name

    @cached_property
    def format(self) -> Format:
        return format_of(self.config)

    @cached_property
    def text_config(self) -> dict[str, Any]:
        return text_config(self.config)

    @cached_property
    def weight_files(self) -> list[Path]:
        """The sorted safetensors files, as `weight_files`.

        Raises DFlashError for none, for a missing or damaged one, and for a tensor in two of them.
        """
        return list(self._headers)

    @cached_property
    def tensors(self) -> dict[str, TensorHeader]:
        """The header of each tensor by its name. Raises DFlashError as `weight_files`."""
        return {name: header for file in self._headers.values() for name, header in file.items()}

    def headers(self, pattern: str) -> dict[Path, dict[str, TensorHeader]]:
        """The headers by file, of the files whose names match `pattern`; empty if there are none.

        Files that no index names are among them, before those that it names. Raises DFlashError if
        one is damaged.
        """
        named = set(shard_names(self.path / WEIGHT_INDEX))
        files = [file for file in matching(self.path, pattern) if file.exists()]
        return self.headers_of(sorted(files, key=lambda file: file.name in named))

    def headers_of(self, files: list[Path]) -> dict[Path, dict[str, TensorHeader]]:
        for file in files:
            if file not in self._known:
                self._known[file] = tensor_headers(file)
        return {file: self._known[file] for file in files}

    @cached_property
    def _known(self) -> dict[Path, dict[str, TensorHeader]]:
        return {}

    @property
    def weight_pattern(self) -> str:
        return "model*.safetensors" if self.format == "language model" else "*.safetensors"

    @cached_property
    def _headers(self) -> dict[Path, dict[str, TensorHeader]]:
        pattern = self.weight_pattern
        index = self.path / WEIGHT_INDEX
        needed = shard_names(index, lambda tensor: not MTP_TENSOR.match(tensor))
        spare = set(shard_names(index)) - set(needed)  # a conversion may have left the head out
        files = weight_files(self.path, pattern)
        headers = self.headers_of([f for f in files if f.exists() or f.name not in spare])
        owners: dict[str, Path] = {}
        for file, tensors in headers.items():
            for tensor in tensors:
                if (other := owners.setdefault(tensor, file)) != file:
                    raise DFlashError(
                        f"'{other}' and '{file.name}' beside it both have the tensor '{tensor}'.",
                        hint="remove the one of another version, or download the model again",
                    )
        if not headers:
            for file in matching(self.path, TORCH_FILES):
                raise torch_file_error(self.name, file.name)
            raise DFlashError(
                f"there are no weights ({pattern}) in '{self.path}'.",
                hint="download the model again",
            )
        return headers

    @cached_property
    def tokenizer_config(self) -> dict[str, Any]:
        """tokenizer_config.json; empty if there is none. Raises DFlashError if it is damaged."""
        return optional_json(self.path / "tokenizer_config.json")

    @cached_property
    def generation_config(self) -> dict[str, Any]:
        """generation_config.json; empty if there is none. Raises DFlashError if it is damaged."""
        return optional_json(self.path / "generation_config.json")

    @property
    def chat_template(self) -> str:
        """The chat template as transformers finds it, else `processor_template`; or empty."""
        file = self.path / "chat_template.jinja"
        if file.exists():
            return marked_text(file) or file.read_text(encoding="utf-8", errors="replace")
        found = self.tokenizer_config.get("chat_template")
        if isinstance(found, list):  # several by name
            named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
            found = named.get("default")
        return found if isinstance(found, str) else self.processor_template

    @property
    def processor_template(self) -> str:
        """The chat template of chat_template.json, where older models with an encoder have it.

        Tokenizers of transformers do not read that file. Empty if there is another template.
        """
        others = matching(self.path, "*.jinja") + matching(self.path, TEMPLATES)
        if others or self.tokenizer_config.get("chat_template"):
            return ""
        found = optional_json(self.path / "chat_template.json").get("chat_template")
        return found if isinstance(found, str) else ""

    @property
    def has_tokenizer(self) -> bool:
        return any(matching(self.path, pattern) for pattern in TOKENIZER_PATTERNS)

    @property
    def tokenizer_code(self) -> list[str]:
        """The Python files of the tokenizer, from `auto_map` of tokenizer_config.json.

        Empty for a tokenizer without remote code. A file of another repository reads
        owner/model/file.py. Raises DFlashError if the tokenizer's config cannot be read.
        """
        auto_map = self.tokenizer_config.get("auto_map")
        classes = auto_map.get("AutoTokenizer") if isinstance(auto_map, dict) else auto_map
        classes = classes if isinstance(classes, list) else [classes]
        names = [name.rpartition(".")[0] for name in classes if isinstance(name, str)]
        return sorted({name.replace("--", "/") + ".py" for name in names if name})


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The config with the entries of its language model at the top level.

    Multimodal models have it as `text_config`, drafters of `speculators` as
    `transformer_layer_config`. `model_type` stays the outer one.
    """
    inner = config.get("text_config") or config.get("transformer_layer_config")
    if not isinstance(inner, dict):
        return config
    return {**config, **inner, "model_type": config.get("model_type")}


def context_length(config: dict[str, Any]) -> int | None:
    """The tokens of context that a config with its `text_config` on top names; None if none."""
    return next(filter(None, (config.get(name) for name in CONTEXT_NAMES)), None)


def weight_files(folder: Path, pattern: str, of: TensorChoice | None = None) -> list[Path]:
    """The weight files of a folder, sorted; also those that its index names and that are missing.

    With an index they are its files and no others. An index of which no file is here is another
    model's: then, and without one, they are all that match `pattern`. of: as `shard_names`. Raises
    DFlashError for a damaged index.
    """
    named = [folder / name for name in shard_names(folder / WEIGHT_INDEX, of)]
    found = matching(folder, pattern)
    return named if not found or any(file.exists() for file in named) else found


def missing_number(folder: Path) -> str:
    """The first weight file that the numbers of others promise and that is missing; or empty."""
    names = {file.name for file in matching(folder, "*.safetensors")}
    for name in sorted(names):
        if part := NUMBERED.fullmatch(name):
            before, digits, after, total = part.groups()
            numbered = [f"{before}{n:0{len(digits)}}{after}" for n in range(int(total) + 1)]
            expected = numbered[:-1] if numbered[0] in names else numbered[1:]
            return next((name for name in expected if name not in names), "")
    return ""


def shard_names(index: Path, of: TensorChoice | None = None) -> list[str]:
    """The weight files of an index, or those with a tensor that `of` takes; empty without one."""
    if not os.path.lexists(index):
        return []
    files = json_object(index).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise DFlashError(f"'{index}' has no weight_map.", hint="download the model again")
    return sorted({file for tensor, file in files.items() if of is None or of(tensor)})


def fault_of(file: Path) -> str:
    """Why a file cannot be read, as a clause; empty if it can be."""
    if not file.exists():
        return "is a link to a file that is gone" if file.is_symlink() else "is missing"
    try:
        with file.open("rb") as stream:
            start = stream.read(len(POINTER))
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return "is a Git LFS pointer in the file's place" if start == POINTER else ""


def check_file(file: Path) -> None:
    if fault := fault_of(file):
        fetch = "run `git lfs pull` in its folder" if "LFS" in fault else "download it again"
        raise DFlashError(f"'{file}' {fault}.", hint=fetch)


def tensor_headers(file: Path) -> dict[str, TensorHeader]:
    """Headers by tensor name. Raises DFlashError if the file is shorter than its header says.

    So it does for one that is missing or cannot be read.
    """
    check_file(file)
    damaged = DFlashError(f"'{file}' is damaged or incomplete.", hint="download it again")
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > size - 8:
            raise damaged
        try:
            entries = json.loads(stream.read(length))
            entries.pop("__metadata__", None)
            end = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
            headers = {name: TensorHeader.of(entry) for name, entry in entries.items()}
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            raise damaged from None
    if size < 8 + length + end:
        raise damaged
    return headers


def torch_file_error(model: str, file: str) -> DFlashError:
    return DFlashError(
        f"'{model}' has weights in a PyTorch file ('{file}'), which is not read.",
        hint="convert it to safetensors, or use another model",
    )


def optional_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty without the file. Raises DFlashError for other content."""
    try:
        return json_object(path)
    except FileNotFoundError:
        return {}


def json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises DFlashError for other content, or FileNotFoundError."""
    if os.path.lexists(path):
        check_file(path)
    try:
        raw = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DFlashError(
            f"'{path}' is not valid JSON ({error}).", hint="download the model again"
        ) from None
    if not isinstance(raw, dict):
        raise DFlashError(f"'{path}' does not hold an object.", hint="download the model again")
    return raw


# Adapters, which belong to a model: LoRA and others

ADAPTER_CONFIG = "adapter_config.json"


def is_peft(config: dict[str, Any]) -> bool:
    return "peft_type" in config


def adapter_base(config: dict[str, Any]) -> str:
    """The model that an adapter was trained for; empty if its config does not name it."""
    base = config.get("base_model_name_or_path" if is_peft(config) else "model")
    return base if isinstance(base, str) else ""


def adapter_error(folder: Path, config: dict[str, Any]) -> DFlashError:
    base = adapter_base(config)
    if is_peft(config):
        return DFlashError(
            f"'{folder}' is a PEFT adapter{f' for {base}' if base else ''}, not a model.",
            hint="mlx-lm reads adapters made by mlx_lm.lora",
        )
    return DFlashError(
        f"'{folder}' is an adapter{f' for {base}' if base else ''}, not a model.",
        hint=f"give --model {base or 'the model that it was made for'} and --adapter {folder}",
    )


# JSONL files that users provide


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
    """The JSON value of a line, its texts as `whole_text`. Raises ValueError for invalid JSON."""
    try:
        return json.loads(whole_text(json.dumps(json.loads(line), ensure_ascii=False)))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_prompt_lines(
    path: Path, hint: str, parse: Callable[[dict[str, Any], int], T | None]
) -> list[T]:
    """What `parse` makes of the JSON object in each line that is not empty, and of its number.

    A JSON string stands for an object with this "prompt". Raises DFlashError with `hint` for the
    first line that holds no object or of which `parse` makes None, and for a file without lines.
    """
    found = list[T]()
    for number, line in enumerate(read_lines(path, hint), 1):
        if not line.strip():
            continue
        try:
            value = value_of(line)
        except ValueError:
            value = None
        value = {"prompt": value} if isinstance(value, str) else value
        prompt = parse(value, number) if isinstance(value, dict) else None
        if prompt is None:
            raise DFlashError(f"line {number} of '{path}' is not a prompt.", hint=hint)
        found.append(prompt)
    if not found:
        raise DFlashError(f"there are no prompts in '{path}'.", hint=hint)
    return found


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
    ) as temporary:
        json.dump(data, temporary)
    try:
        os.replace(temporary.name, file)
    except OSError:
        os.unlink(temporary.name)
        raise
