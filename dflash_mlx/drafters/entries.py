"""The entries of a drafter's config.json, which may be in several places of it."""

from dataclasses import dataclass
from typing import Any

from dflash_mlx.errors import DFlashError


class Entries:
    """Looks up keys in several dictionaries, in their order. hint: of errors."""

    def __init__(self, *places: dict[str, Any], hint: str):
        self.places = places
        self.hint = hint

    def get(self, key: str, default: Any = None) -> Any:
        found = (place[key] for place in self.places if place.get(key) is not None)
        return next(found, default)

    def whole(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number of at least `least`. Raises DFlashError for another value or for none."""
        value = self.get(key, default)
        if value is None:
            raise DFlashError(f"the drafter's config has no '{key}'.", hint=self.hint)
        if type(value) is not int or value < least:
            raise invalid_value(key, value)
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise invalid_value(key, value)
        return value

    def refuse(self, supported: dict[str, tuple[object, ...]]) -> None:
        """Raise DFlashError for a key with a value that selects an unsupported computation."""
        for key, values in supported.items():
            if (value := self.get(key)) is not None and value not in values:
                raise unsupported(key, value, self.hint)


def unsupported(key: str, value: object, hint: str) -> DFlashError:
    return DFlashError(f"the drafter's '{key}: {value}' is not supported.", hint=hint)


def invalid_value(key: str, value: object) -> DFlashError:
    return DFlashError(
        f"the drafter's config has a wrong '{key}: {value}'.", hint="download the drafter again"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig:
    """The sizes of a decoder layer, by their names in config.json or nearly so."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    max_position_embeddings: int
    attention_bias: bool = False
    draft_vocab_size: int | None = None  # None: the target's vocabulary

    @property
    def drafted(self) -> int:
        return self.draft_vocab_size or self.vocab_size


def layer_settings(entries: Entries, layer: dict[str, Any], positions: int) -> dict[str, Any]:
    """The arguments of a `LayerConfig`. layer: has the rotary settings. positions: the default.

    Raises DFlashError for a wrong entry, and for rotary settings per layer type.
    """
    whole = entries.whole
    hidden, heads, vocab = map(whole, ("hidden_size", "num_attention_heads", "vocab_size"))
    drafted = whole("draft_vocab_size", vocab)
    if drafted > vocab:
        raise invalid_value("draft_vocab_size", drafted)
    rope = layer.get("rope_parameters") or {}
    if any(isinstance(value, dict) for value in rope.values()):  # one for each layer type
        raise invalid_value("rope_parameters", rope)
    scaling = layer.get("rope_scaling") or ({**rope} if rope.get("rope_type") else None)
    if scaling and scaling.get("rope_type", scaling.get("type")) == "default":
        scaling = None
    return {
        "hidden_size": hidden,
        "intermediate_size": whole("intermediate_size"),
        "num_heads": heads,
        "num_kv_heads": whole("num_key_value_heads", heads),
        "head_dim": whole("head_dim", hidden // heads),
        "vocab_size": vocab,
        "draft_vocab_size": drafted if drafted < vocab else None,
        "rms_norm_eps": entries.get("rms_norm_eps", 1e-6),
        "rope_theta": layer.get("rope_theta") or rope.get("rope_theta") or 10000.0,
        "rope_scaling": scaling,
        "max_position_embeddings": whole("max_position_embeddings", positions),
        "attention_bias": bool(entries.get("attention_bias", False)),
    }
