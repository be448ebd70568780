import os

import pytest

# "cpu": tests without the mark `metal` compute on the CPU, even if there is a GPU.
DEVICE = os.environ.get("DFLASH_TEST_DEVICE", "")
# The variables of programs that tests start. Each has an empty cache folder, so with kernels it
# would compile and check all of them.
PROGRAM_VARIABLES = {"DFLASH_KERNELS": "stock"} | (
    {"DFLASH_DEVICE": "cpu"} if DEVICE == "cpu" else {}
)


def use_device(test: pytest.Item) -> None:
    import mlx.core as mx  # after OpenBLAS

    metal = test.get_closest_marker("metal") is not None
    if DEVICE == "cpu":
        mx.set_default_device(mx.gpu if metal else mx.cpu)
