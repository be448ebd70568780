"""Operations that have a Metal kernel of this package, each beside its reference in MLX operations.

One file an operation: `reference` says what is computed, `launch` gives the same to a kernel, and
`OP` names the two together. Which of them runs is `dispatch.Kernels`' business alone.
"""
