"""What apps are told of a model beside its name: its family, size, template and abilities."""

from collections import Counter
from dataclasses import dataclass
from math import prod
from typing import Any

from dflash_mlx.chat.template import EFFORT_VARIABLES, THINK_VARIABLES
from dflash_mlx.chat.tool_parser import without_tools
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import Checkpoint, TensorHeader
from dflash_mlx.pair import Pair

TEMPLATE_FILE = "chat_template.jinja"
THINKING_WORDS = (*THINK_VARIABLES, *EFFORT_VARIABLES, "<think>")
# Ollama's names of entries of config.json, which stand behind the family's name.
INFO = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "vocab_size": "vocab_size",
}


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One model. A text is empty, and a number 0, where the model's files do not say.

    family: the type in config.json. parameters: their number. quantisation: such as 4bit, or the
    type of most weights. template: the chat template. abilities: completion, tools,
    thinking. info: entries of config.json by Ollama's names. modified: when config.json was
    written, in seconds since 1970.
    """

    family: str = ""
    parameters: int = 0
    quantisation: str = ""
    template: str = ""
    abilities: tuple[str, ...] = ()
    info: tuple[tuple[str, Any], ...] = ()
    modified: float = 0.0

    @property
    def size_text(self) -> str:
        """The number of parameters, such as 4.0B."""
        for unit, name in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
            if self.parameters >= unit:
                return f"{self.parameters / unit:.1f}{name}"
        return ""


def read_card(checkpoint: Checkpoint, pair: Pair | None = None) -> ModelCard:
    """The card of a model.

    What a model can do is found by rendering its template if its `pair` is loaded; else it is read
    from the template's text, because rendering it would take the tokenizer.
    """
    config = checkpoint.text_config
    tensors = headers_of(checkpoint)
    family = str(config.get("model_type") or "")
    template = template_text(checkpoint) if pair is None else template_of(pair)
    if pair is None:
        abilities = abilities_in(template)
    else:
        tools = without_tools(pair.template, pair.tokenizer) is None
        abilities = named_abilities(tools=tools, thinks=pair.template.thinks)
    found = {own: config[name] for own, name in INFO.items() if name in config}
    file = checkpoint.path / "config.json"
    return ModelCard(
        family=family,
        parameters=count_parameters(tensors, config),
        quantisation=quantisation_of(tensors, config),
        template=template,
        abilities=abilities,
        info=tuple((f"{family}.{name}", value) for name, value in found.items()),
        modified=file.stat().st_mtime if file.exists() else 0.0,
    )


def headers_of(checkpoint: Checkpoint) -> dict[str, TensorHeader]:
    """The headers of a model's weights; empty if they cannot be read."""
    try:
        return checkpoint.tensors
    except DFlashError:
        return {}


def template_text(checkpoint: Checkpoint) -> str:
    """The chat template in a model's folder; empty if there is none."""
    file = checkpoint.path / TEMPLATE_FILE
    if file.exists():
        return file.read_text(encoding="utf-8", errors="replace")
    found = checkpoint.tokenizer_config.get("chat_template")
    if isinstance(found, list):  # several by name
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else ""


def template_of(pair: Pair) -> str:
    """The chat template of a loaded pair."""
    found = pair.tokenizer.chat_template
    return found if isinstance(found, str) else ""


def abilities_in(template: str) -> tuple[str, ...]:
    """What a model can do, by the text of its chat template."""
    thinks = any(word in template for word in THINKING_WORDS)
    return named_abilities(tools="tools" in template, thinks=thinks)


def named_abilities(*, tools: bool, thinks: bool) -> tuple[str, ...]:
    """Abilities by Ollama's names."""
    return ("completion", *(["tools"] if tools else []), *(["thinking"] if thinks else []))


def quantisation_config(config: dict[str, Any]) -> dict[str, Any]:
    """The entry of config.json about quantised weights; empty without one."""
    found = config.get("quantization")
    return found if isinstance(found, dict) else {}


def count_parameters(tensors: dict[str, TensorHeader], config: dict[str, Any]) -> int:
    """The number of weights. Quantised ones are packed: each scale stands for a group of them."""
    group = quantisation_config(config).get("group_size") or 64
    count = 0
    for name, tensor in tensors.items():
        module, _, kind = name.rpartition(".")
        scales = tensors.get(f"{module}.scales")
        if scales is None:
            count += prod(tensor.shape)
        elif kind == "scales":
            count += group * prod(scales.shape)
    return count


def quantisation_of(tensors: dict[str, TensorHeader], config: dict[str, Any]) -> str:
    """The bits of quantised weights, such as 4bit, or the type that most bytes have."""
    if bits := quantisation_config(config).get("bits"):
        return f"{bits}bit"
    sizes: Counter[str] = Counter()
    for tensor in tensors.values():
        sizes[tensor.dtype] += tensor.nbytes
    return sizes.most_common(1)[0][0] if sizes else ""
