"""Metal kernel bodies, read as data through dflash_mlx.kernels."""
