"""The grouped dynamic causal convolution of DFlash 2, around each attention and MLP sublayer.

Source: "Keep Drafting Parallel" (inco.ai/blog/dflash2). The convolution is local to one block:
positions before position 0 are zero, and there is no state between calls.
"""

import mlx.core as mx
from mlx import nn

from .config import DFlash2


class DynamicConv(nn.Module):
    """The kernels before and after a sublayer: base kernels plus a projection of its input."""

    def __init__(self, config: DFlash2, hidden_size: int):
        super().__init__()
        self._taps, self._groups = config.conv_kernel_size, hidden_size // config.conv_group_size
        # Identity at initialisation: tap 0 is 1, all others are 0.
        self.base_kernel = mx.zeros((2, self._taps, hidden_size))
        self.base_kernel[:, 0] = 1
        self.kernel_projection = nn.Linear(hidden_size, 2 * self._taps * self._groups, bias=False)
        self.kernel_projection.weight = mx.zeros_like(self.kernel_projection.weight)

    def __call__(self, normed: mx.array) -> tuple[mx.array, mx.array]:
        """The sublayer's normed input [B, T, H] -> kernels before and after it [B, T, taps, H]."""
        batch, length, hidden = normed.shape
        change = self.kernel_projection(normed)
        change = change.reshape(batch, length, 2, self._taps, self._groups, 1)
        base = self.base_kernel.reshape(2, self._taps, self._groups, -1)
        kernels = (base + change).reshape(batch, length, 2, self._taps, hidden)
        return kernels[:, :, 0], kernels[:, :, 1]


def convolve(x: mx.array, kernel: mx.array) -> mx.array:
    """x [B, T, H], kernel [B, T, taps, H] -> [B, T, H]. Tap r reads r rows earlier, or zeros."""
    length, out = x.shape[1], x * kernel[:, :, 0]
    for back in range(1, kernel.shape[2]):
        earlier = mx.pad(x, [(0, 0), (back, 0), (0, 0)])[:, :length]
        out = out + earlier * kernel[:, :, back]
    return out
