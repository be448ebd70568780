"""The device that a test computes on."""

import os

import pytest

# "cpu": tests that are not marked `metal` compute there also where there is a GPU. Programs that
# they start do not.
DEVICE = os.environ.get("DFLASH_TEST_DEVICE", "")


def use_device(test: pytest.Item) -> None:
    """Compute a test on the device that its mark and DFLASH_TEST_DEVICE say."""
    import mlx.core as mx  # after OpenBLAS

    metal = test.get_closest_marker("metal") is not None
    if DEVICE == "cpu":
        mx.set_default_device(mx.gpu if metal else mx.cpu)
