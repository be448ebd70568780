"""A count of what one target pass costs on a Mac: dispatches, bytes and command buffers.

Arithmetic alone, written op by op from the files of MLX that dispatch (mlx/backend/metal, version
0.32.4) and from mlx-lm's models. It runs no model and knows nothing of the ledger, so that one can
be held against the other. Nobody measured it on a Mac.

Each rule names the file and the function of MLX that it is from; a file without a folder lies in
mlx/backend/metal. What was compared with the machine code of the macOS wheel says so.
"""
