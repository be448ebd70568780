"""The models: figures of their config.json."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The linear attention of a hybrid: heads of keys and values, of `size` elements each."""

    key_heads: int
    value_heads: int
    size: int
    window: int  # taps of the convolution
    interval: int  # every so many layers is one of full attention

    @property
    def channels(self) -> int:
        """Columns of queries, keys and values together."""
        return (2 * self.key_heads + self.value_heads) * self.size

    @property
    def values(self) -> int:
        """Columns of the values."""
        return self.value_heads * self.size


@dataclass(frozen=True, slots=True)
class Mixture:
    """Experts of which a row takes `taken`, each `width` wide."""

    experts: int
    taken: int
    width: int

    def distinct(self, rows: int) -> float:
        """How many different experts so many rows take, if every choice is equally likely."""
        return self.experts * (1 - (1 - self.taken / self.experts) ** rows)


@dataclass(frozen=True, slots=True)
class Model:
    """A target. bits: of its weights, in groups of 64, or None for bfloat16."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    size: int  # elements of a head
    width: int  # of the feed-forward part
    vocabulary: int
    recurrence: Recurrence | None = None
    mixture: Mixture | None = None
    bits: int | None = 4

    @property
    def attention_layers(self) -> int:
        """Layers with a cache of keys and values."""
        return self.layers // self.recurrence.interval if self.recurrence else self.layers


MODELS = (
    Model("Qwen3-8B", 4096, 36, 32, 8, 128, 12288, 151936),
    Model("Qwen3.5-9B", 4096, 32, 16, 4, 256, 12288, 248320, Recurrence(16, 32, 128, 4, 4)),
    Model("Qwen3.6-27B", 5120, 64, 24, 4, 256, 17408, 248320, Recurrence(16, 48, 128, 4, 4)),
    Model("Qwen3-Coder-30B-A3B", 2048, 48, 32, 4, 128, 0, 151936, mixture=Mixture(128, 8, 768)),
)


def model_named(name: str) -> Model:
    """The model of that name. Raises ValueError for another."""
    found = [model for model in MODELS if model.name.lower() == name.lower()]
    if not found:
        raise ValueError(f"no model is called {name!r}: {', '.join(one.name for one in MODELS)}")
    return found[0]
