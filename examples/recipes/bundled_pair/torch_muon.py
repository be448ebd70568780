"""Muon for PyTorch; matrices of one shape are orthogonalised together.

Source: Keller Jordan, "Muon: an optimizer for hidden layers in neural networks" (2024).
"""

from collections.abc import Iterable

import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor  # pyright: ignore[reportMissingImports]

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the Newton-Schulz iteration, from the source
ITERATIONS = 5
MOMENTUM = 0.95
DECAY = 0.01


def orthogonal(x: Tensor) -> Tensor:
    """The nearest matrices with orthogonal rows or columns, about; x [N, rows, columns]."""
    a, b, c = COEFFICIENTS
    tall = x.shape[1] > x.shape[2]
    x = x.transpose(1, 2) if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(ITERATIONS):
            square = x @ x.transpose(1, 2)
            x = a * x + (b * square + c * square @ square) @ x
    return x.transpose(1, 2) if tall else x


class Muon(torch.optim.Optimizer):
    """Updates matrices.

    The update has the size of AdamW's: 0.2 per entry (arXiv 2502.16982, section 2.2).
    """

    def __init__(self, matrices: Iterable[Tensor], lr: float):
        super().__init__(matrices, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for matrix in group["params"]:
                by_shape.setdefault(matrix.shape, []).append(matrix)
            for shape, matrices in by_shape.items():
                directions = torch.stack([self._direction(matrix) for matrix in matrices])
                updates = orthogonal(directions) * (0.2 * max(shape) ** 0.5)
                for matrix, update in zip(matrices, updates, strict=True):
                    matrix.mul_(1 - group["lr"] * DECAY)
                    matrix.sub_(update, alpha=group["lr"])

    def _direction(self, matrix: Tensor) -> Tensor:
        """The gradient with Nesterov's momentum."""
        state = self.state[matrix]
        if not state:
            state["momentum"] = torch.zeros_like(matrix)
        momentum = state["momentum"]
        momentum.lerp_(matrix.grad, 1 - MOMENTUM)
        return matrix.grad.lerp(momentum, MOMENTUM)
