"""The float type that a layer computes in: rows are cast to it, so that weights never are."""

from typing import Any

import mlx.core as mx


def float_type(layer: Any) -> mx.Dtype | None:
    """The dtype of the weights of a linear layer or an embedding; quantised, that of its scales.

    None where neither is a float: such weights take rows of any dtype.
    """
    kind = getattr(layer, "scales", layer.weight).dtype
    return kind if mx.issubdtype(kind, mx.floating) else None


def cast(rows: mx.array, kind: mx.Dtype | None) -> mx.array:
    """Rows as `kind`; as they are where that is None."""
    return rows if kind is None else rows.astype(kind)
