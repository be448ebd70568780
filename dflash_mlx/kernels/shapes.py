"""The shapes of a pair: what its kernels are launched with."""

from dataclasses import dataclass

CONTEXT = 1024  # tokens in the cache when attention is timed


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The attention layers of one type; `window` 0 is full attention."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int = 0
    sinks: bool = False


@dataclass(frozen=True, slots=True)
class GatedDeltaShape:
    """Gated DeltaNet layers; `window` and `channels` are the convolution's cached inputs.

    `decay` and `bias` name the dtypes of A_log and dt_bias.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    window: int
    channels: int
    decay: str = "float32"
    bias: str = "bfloat16"


@dataclass(frozen=True, slots=True)
class SelectorShape:
    """DFlash 2's candidate selector; `dtype` names the dtype of its codebooks."""

    candidates: int
    rank: int
    dtype: str


@dataclass(frozen=True, slots=True)
class LinearShape:
    """Weights [outputs, inputs] of linear layers.

    `bits` 0: not quantised. `dtype` names the dtype of the weights, or of the scales. `biased`: a
    bias is added.
    """

    outputs: int
    inputs: int
    bits: int
    group: int
    mode: str
    dtype: str
    biased: bool = False


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """A layer of `experts`, each of three matrices, of which a row takes `taken`."""

    experts: int
    taken: int
    up: LinearShape
    gate: LinearShape
    down: LinearShape


@dataclass(frozen=True, slots=True)
class Shapes:
    """The shapes of a pair: a verify pass of `rows` rows, logits of `vocab` tokens, its layers.

    `dtype` names the dtype of the hidden states. `products`: all matrices of linear layers, each
    with its number of layers. `exact`: a row must have the same bits as when it is computed alone.
    `architecture` is the GPU's, as MLX names it.
    """

    vocab: int
    rows: int
    dtype: str
    attention: tuple[AttentionShape, ...] = ()
    delta: GatedDeltaShape | None = None
    selector: SelectorShape | None = None
    products: tuple[tuple[LinearShape, int], ...] = ()
    experts: tuple[ExpertShape, ...] = ()
    context: int = CONTEXT
    exact: bool = False
    architecture: str = ""
