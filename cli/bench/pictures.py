"""The plots of a benchmark, with the models, machine and versions under each."""

from pathlib import Path
from typing import TYPE_CHECKING

from ..terminal.output import Output

if TYPE_CHECKING:
    from dflash_mlx.bench import Results, Row


def draw_pictures(path: Path, rows: list["Row"], results: "Results", out: Output) -> None:
    """Draw what there is data for; raises as `dflash_mlx.bench.draw`."""
    from dflash_mlx import bench as engine

    for file in engine.draw(path, rows, results.curve, caption(results)):
        out.note(f"drawn: {file}")


def caption(results: "Results") -> str:
    """The models, machine and versions of a plot."""
    pair, machine, versions = (results.facts[part] for part in ("pair", "machine", "versions"))
    return " · ".join(
        (
            f"{pair['target']} ({pair['dtype']})",
            f"{machine['chip']}, {machine['cores']} cores",
            f"mlx {versions['mlx']}",
            f"dflash {versions['dflash']}",
        )
    )
