"""The device on which a test computes."""

import os

import pytest

# "cpu": tests without the mark `metal` compute on the CPU, even if there is a GPU. This does not
# apply to programs that they start.
DEVICE = os.environ.get("DFLASH_TEST_DEVICE", "")


def use_device(test: pytest.Item) -> None:
    """Select the device from the test's mark and DFLASH_TEST_DEVICE."""
    import mlx.core as mx  # after OpenBLAS

    metal = test.get_closest_marker("metal") is not None
    if DEVICE == "cpu":
        mx.set_default_device(mx.gpu if metal else mx.cpu)
