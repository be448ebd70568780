"""Faults of the GPU: how MLX reports them, and what a user is told.

A command buffer that fails gives no exception at once. MLX keeps the error, and raises and clears
it at the next use of the stream or of an array (mlx/backend/metal/device.cpp, mlx/error.h). By then
other arrays may hold what was never computed, so the caches are built again.
"""

import mlx.core as mx

from dflash_mlx.errors import GPUFault, first_line
from dflash_mlx.kernels.dispatch import LaunchFailed

# How the messages of MLX begin: a failed command buffer, no memory for a buffer, for an event.
BEGINNINGS = ("[METAL]", "[metal::malloc]", "[malloc", "[Event::Event]")
MEMORY = ("malloc", "memory")  # words of the messages about too little memory
HELD_ERRORS = 8  # that MLX can hold at once, at most: one for each stream


def gpu_fault(error: BaseException) -> GPUFault | None:
    """The fault of the GPU that an exception of MLX reports; None for any other exception."""
    if isinstance(error, GPUFault):
        return error
    if isinstance(error, LaunchFailed) and error.__cause__ is not None:
        error = error.__cause__
    text = str(error)
    no_memory = isinstance(error, MemoryError)
    if not no_memory and not (isinstance(error, RuntimeError) and text.startswith(BEGINNINGS)):
        return None
    if no_memory or any(word in text.lower() for word in MEMORY):
        return GPUFault(
            f"the GPU has too little memory for this ({first_line(error)}).",
            hint="shorten the prompt or the chat, take a smaller model, or close other programs",
        )
    return GPUFault(
        f"the GPU gave up this work ({first_line(error)}).",
        hint="try again; if it comes back, shorten the prompt or take a smaller model",
    )


def clear_faults() -> None:
    """Take the errors that MLX still holds, so that the next evaluation does not raise them."""
    for _ in range(HELD_ERRORS):
        try:
            mx.synchronize()
        except RuntimeError:
            continue
        return
