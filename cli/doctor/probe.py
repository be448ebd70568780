"""What MLX says of itself and how right its products are: a process that prints lines of JSON.

`dflash doctor` asks in a process of its own, because MLX's import can abort it where no GPU is.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

ROWS = 16  # rows of a verify pass; some builds multiplied more than 8 wrongly (mlx #3585)
INPUTS = 1024
OUTPUTS = 512
BITS = (4, 8)


def main() -> None:
    """Print where MLX is and what its device is, then the differences of products."""
    import mlx.core as mx

    from dflash_mlx.device import TF32, device_info
    from dflash_mlx.kernels.dispatch import use_device

    use_device()
    os.environ.setdefault(TF32, "0")  # as for answers
    facts = {
        "folder": str(Path(mx.__file__).parent),
        "gpu": mx.is_available(mx.gpu),
        "device": mx.default_device().type.name,
        "info": device_info(),
    }
    print(json.dumps(facts), flush=True)
    print(json.dumps(differences()), flush=True)


def differences() -> dict[str, float]:
    """How far the product of 16 rows is from those of each row alone, by the type of the weights.

    In parts of the largest number, NaN if there are NaNs.
    """
    import mlx.core as mx

    rows = mx.random.normal((ROWS, INPUTS), key=mx.random.key(0))
    weight = mx.random.normal((OUTPUTS, INPUTS), key=mx.random.key(1))

    def difference(product: Callable[[mx.array], mx.array], kind: mx.Dtype) -> float:
        x = rows.astype(kind)
        at_once = product(x).astype(mx.float32)
        alone = mx.concatenate([product(row) for row in mx.split(x, ROWS)]).astype(mx.float32)
        return cast(float, (mx.abs(at_once - alone).max() / mx.abs(alone).max()).item())

    found = {}
    for kind in (mx.float32, mx.float16, mx.bfloat16):
        plain = weight.astype(kind)
        found[str(kind).removeprefix("mlx.core.")] = difference(lambda x, w=plain: x @ w.T, kind)
    for bits in BITS:
        packed = mx.quantize(weight.astype(mx.bfloat16), bits=bits)
        found[f"{bits}-bit"] = difference(
            lambda x, w=packed, b=bits: mx.quantized_matmul(x, *w, bits=b), mx.bfloat16
        )
    return found


if __name__ == "__main__":
    main()
