"""Takes a model's short name, such as qwen3:4b, for the Hub id that it means, and says so.

The engine knows the names; loading knows only ids and folders.
"""

from dataclasses import replace

from dflash_mlx.remote.client import is_address

from .loading import prepare_libraries
from .option_tables import BUNDLED
from .options import ModelOptions
from .terminal.output import Output


def with_known_target(model_options: ModelOptions, out: Output) -> ModelOptions:
    """The options with the Hub id of a short name; unchanged for ids, folders, unknown names and
    a server's address.

    DFlashError for a pair that does not fit the memory, before anything is downloaded; not with
    --force.
    """
    if model_options.model in (None, BUNDLED):
        return replace(model_options, model=None)
    if is_address(model_options.model):
        return model_options
    prepare_libraries(offline=model_options.offline)
    target = known_target(model_options.model, out)
    if target == model_options.model:
        return model_options
    from dflash_mlx.cpu.blas import use_openblas
    from dflash_mlx.hub.registry import find
    from dflash_mlx.models import memory

    use_openblas()  # must run before MLX is imported
    if entry := find(target):
        needed = memory.estimate_memory(entry, draft_bits=model_options.draft_bits)
        memory.check_fits(needed, memory.working_set(), target, force=model_options.force)
    return replace(model_options, model=target)


def known_target(name: str, out: Output) -> str:
    """The Hub id that a name means, which is told; the name itself where that is open."""
    from dflash_mlx.hub.registry import find_target

    target = find_target(name) or name
    if target != name and not out.quiet:
        out.info(f"'{name}' is {target}", "dim")
    return target
