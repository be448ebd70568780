"""What the installed mlx-lm cannot open, told by a model's config.json, before any weights."""

import re
import sys
from collections.abc import Iterable
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import Checkpoint, optional_json
from dflash_mlx.files.formats import format_of
from dflash_mlx.files.model_types import is_known, module_of

from .kinds import kind_error, refused_kind
from .registry import conversion_of

ENCODER = re.compile(r"bert|electra|mpnet|encoder|clip", re.IGNORECASE)
MODELOPT_FILE = "hf_quant_config.json"
UNREAD = "which mlx-lm does not read"

# The modules of mlx-lm that unpack a published format themselves, in `sanitize`. The others load
# only what `mlx_lm.utils.load_model` unpacks. (ministral3 multiplies the bytes of FP8 numbers
# instead of the numbers, so that it is left out.)
FP8 = frozenset(
    "deepseek_v3 deepseek_v32 deepseek_v41 glm_moe_dsa kimi_k25 mimo_v2_flash minimax mistral4"
    .split()
)  # fmt: skip
COMPRESSED = {
    "pack-quantized": frozenset({"deepseek_v3", "kimi_k25", "mistral4"}),
    "mxfp4-pack-quantized": frozenset({"kimi_k3"}),
}
NVFP4 = frozenset({"muse_spark"})
PACKAGES = {"olmo": "hf_olmo"}  # without which a module of mlx-lm ends the program
METAL = frozenset({"bitnet", "muse_spark"})  # whose layers are Metal kernels
READ = frozenset({"awq", "gptq", "bitnet", "mxfp4", "mxfp8"})  # by `load_model`
FOUR_BITS = frozenset({"awq", "gptq"})  # only in 4 bits
NAMES = {"awq": "AWQ", "fp8": "FP8", "gptq": "GPTQ", "modelopt": "ModelOpt"}


def why_not(checkpoint: Checkpoint) -> DFlashError | None:
    """The error for a model folder that mlx-lm cannot open; None if it can, and for drafters.

    Raises DFlashError for a damaged file.
    """
    return error_of(checkpoint.name, *facts_of(checkpoint))


def facts_of(checkpoint: Checkpoint) -> tuple[dict[str, Any], list[str]]:
    """The arguments of `lacks` for a folder; the names of tensors only where they matter."""
    config = with_modelopt(checkpoint.config, optional_json(checkpoint.path / MODELOPT_FILE))
    if quant_method(config) != "gptq":
        return config, []
    files = checkpoint.headers("*.safetensors").values()
    return config, [name for headers in files for name in headers]


def error_of(name: str, config: dict[str, Any], tensors: Iterable[str] = ()) -> DFlashError | None:
    """As `why_not`, from a config.json. tensors: names of weights, which tell two forms of GPTQ."""
    if kind := refused_kind(config):
        return kind_error(name, kind)
    if format_of(config) != "language model":
        return None
    if not (reason := lacks(config, tensors)):
        return None
    return DFlashError(f"'{name}' {reason}.", hint=hint_for(name))


def hint_for(name: str) -> str:
    """What to take instead of a model that cannot be opened."""
    other = conversion_of(name)
    return f"take {other}" if other else "`dflash models list` shows models that run here"


def lacks(config: dict[str, Any], tensors: Iterable[str] = ()) -> str:
    """Why mlx-lm cannot open a target, as a clause; empty if it can. Arguments as `error_of`."""
    kind = config.get("model_type")
    if config.get("model_file"):
        return "brings its own model code, which is never run"
    if not kind:
        return "names no type of model in its config.json"
    if not is_known(str(kind)):
        if "AutoModelForCausalLM" in (config.get("auto_map") or {}):
            return f"needs model code of its own (type '{kind}'), which is never run"
        if ENCODER.search(str(kind)):
            return f"is of the type '{kind}', an encoder, which writes no text"
        return f"is of the type '{kind}', which mlx-lm {version('mlx-lm')} does not have"
    package = PACKAGES.get(module_of(kind))
    if package and find_spec(package) is None:
        return f"is of the type '{kind}', for which mlx-lm needs the package {package}"
    if module_of(kind) in METAL and sys.platform != "darwin":
        return f"is of the type '{kind}', which mlx-lm runs on a Mac only"
    return format_lacks(config, tensors)


def format_lacks(config: dict[str, Any], tensors: Iterable[str]) -> str:
    """As `lacks`, for the format of the weights alone."""
    method = quant_method(config)
    settings = quantisation(config)
    text = config.get("text_config") or {}
    modules = {module_of(config.get("model_type")), module_of(text.get("model_type"))}
    name = NAMES.get(method, method)
    if not method:
        return "is stored in a format that its config.json does not name" if settings else ""
    if method == "fp8":
        return "" if modules & FP8 else f"is stored as FP8, {UNREAD}"
    if method == "compressed-tensors":
        form = settings.get("format")
        read = modules & COMPRESSED.get(str(form), frozenset())
        return "" if read else f"is stored as {name} ({form}), {UNREAD}"
    if method == "modelopt":
        form = settings.get("quantization", settings).get("quant_algo")
        read = form == "NVFP4" and modules & NVFP4
        return "" if read else f"is stored as {name} ({form}), {UNREAD}"
    if method not in READ:
        return f"is stored as {name}, {UNREAD}"
    if method in FOUR_BITS and (bits := settings.get("bits", 4)) != 4:
        return f"is stored as {name} in {bits} bits, and mlx-lm reads only 4"
    if any(tensor.endswith(".g_idx") for tensor in tensors):
        return f"is stored as {name} with group indices (g_idx), {UNREAD}"
    return ""


def is_packed(config: dict[str, Any]) -> bool:
    """Whether the weights stay in fewer bits in memory, as mlx-lm loads them."""
    return "quantization" in config or quant_method(config) in READ


def quant_method(config: dict[str, Any]) -> str:
    """The published format of the weights; empty for plain ones and for those of mlx-lm."""
    settings = quantisation(config)
    producer = settings.get("producer") or {}
    return str(settings.get("quant_method") or producer.get("name") or "")


def quantisation(config: dict[str, Any]) -> dict[str, Any]:
    """As mlx-lm: its own `quantization` goes before that of the authors."""
    if config.get("quantization"):
        return {}
    text = config.get("text_config") or {}
    settings = config.get("quantization_config") or text.get("quantization_config") or {}
    return settings if isinstance(settings, dict) else {"quant_method": str(settings)}


def with_modelopt(config: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The config with the settings of `MODELOPT_FILE`, which count where it has none."""
    return config if quantisation(config) else {**config, "quantization_config": settings}
