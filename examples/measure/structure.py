"""Count the packages and modules of the source, and the imports between them.

    python examples/measure/structure.py [FOLDER]

FOLDER is a clone; by default the one that this file is in. A module of the top folder counts as a
package of its own. Prints one table, the packages that import most others, and the largest files.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from statistics import median

FOLDERS = ("dflash_mlx", "cli")  # cli installs as dflash_mlx.cli
SHOWN = 8  # number of packages and files listed


def module_name(folder: Path, file: Path) -> str:
    """The dotted name of a file's module; `__init__.py` has the name of its folder."""
    parts = [part for part in file.relative_to(folder).with_suffix("").parts if part != "__init__"]
    return ".".join(["dflash_mlx", *parts] if parts[0] == "cli" else parts)


def imported_modules(name: str, file: Path, known: dict[str, Path]) -> Iterator[str]:
    """The package's modules that a file imports anywhere in its code."""
    inside = name.split(".") if file.stem == "__init__" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            base = inside[: len(inside) - node.level + 1] if node.level else []
            place = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                for candidate in (f"{place}.{alias.name}", place):
                    if candidate in known:
                        yield candidate
                        break


def package_of(name: str) -> str:
    """The package of a module: a folder of `dflash_mlx` or of its `cli`."""
    parts = name.split(".")
    return ".".join(parts[: 3 if parts[:2] == ["dflash_mlx", "cli"] else 2])


def modules_of(folder: Path) -> dict[str, Path]:
    """The file of each module of a clone, by its dotted name."""
    files = [file for top in FOLDERS for file in (folder / top).rglob("*.py")]
    return {module_name(folder, file): file for file in files}


def import_graphs(folder: Path) -> dict[str, dict[str, set[str]]]:
    """The imports between "modules" and between "packages", without lazy public names."""
    known = modules_of(folder)
    modules: dict[str, set[str]] = {}
    packages: dict[str, set[str]] = {}
    for name, file in known.items():
        if name == "dflash_mlx":  # loads the modules of public names lazily
            continue
        targets = set(imported_modules(name, file, known)) - {name, "dflash_mlx"}
        modules[name] = targets
        own = package_of(name)
        packages.setdefault(own, set()).update({package_of(t) for t in targets} - {own})
    return {"modules": modules, "packages": packages}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2]
    known = modules_of(folder)
    lines = {name: len(file.read_text("utf-8").splitlines()) for name, file in known.items()}
    graphs = import_graphs(folder)
    modules = graphs["modules"]
    packages = graphs["packages"]
    try:
        TopologicalSorter(packages).prepare()
        cycles = "none"
    except CycleError as error:
        cycles = " -> ".join(error.args[1])
    for label, value in {
        "packages": len(packages),
        "modules": len(known),
        "lines": sum(lines.values()),
        "median lines of a module": round(median(lines.values())),
        "imports between modules": sum(map(len, modules.values())),
        "imports between packages": sum(map(len, packages.values())),
        "cycles of packages": cycles,
    }.items():
        print(f"{label:26} {value if isinstance(value, str) else format(value, ',')}")
    print("\npackages that import most others")
    for name, targets in sorted(packages.items(), key=lambda item: -len(item[1]))[:SHOWN]:
        print(f"{len(targets):6}  {name}")
    print("\nlargest files")
    for name, count in Counter(lines).most_common(SHOWN):
        print(f"{count:6}  {name}")


if __name__ == "__main__":
    main()
