"""Where independent pieces of work are computed side by side. Knows devices, not the work."""

import mlx.core as mx


def compute_streams() -> list[mx.Stream]:
    """Two streams of a CPU, where one stream's elementwise work keeps one core busy; one of a GPU.

    The first is the default stream.
    """
    device = mx.default_device()
    streams = [mx.default_stream(device)]
    return [*streams, mx.new_stream(device)] if device == mx.Device(mx.cpu) else streams
