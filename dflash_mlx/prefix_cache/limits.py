"""How much memory a prefix cache may take where nobody says."""

import mlx.core as mx

from dflash_mlx.hub.memory import working_set

SHARE = 1 / 4  # of what the models leave; the rest is for conversations that run, and for passes


def default_limit() -> int:
    """Bytes: a quarter of what is left of the working set once the models are loaded."""
    return max(0, int(SHARE * (working_set() - mx.get_active_memory())))
