"""Operations with a Metal kernel, each with a reference in MLX operations.

There is one file for each operation: `reference` defines the result, `launch` runs the kernel, and
`OP` holds both. `dispatch.Kernels` decides which of them runs.
"""
