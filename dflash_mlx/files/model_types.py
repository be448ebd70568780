"""The model types that the installed mlx-lm has, without importing it: that takes a second."""

import ast
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

MODEL = re.compile(r"^(?:class|from \S+ import) Model\b", re.MULTILINE)


@cache
def is_known(model_type: object) -> bool:
    file = package() / "models" / f"{module_of(model_type)}.py"
    return file.is_file() and MODEL.search(file.read_text(encoding="utf-8")) is not None


def module_of(model_type: object) -> str:
    """The name of mlx-lm's module for a type; it need not exist."""
    return aliases().get(str(model_type), str(model_type))


@cache
def aliases() -> dict[str, str]:
    """mlx-lm's MODEL_REMAPPING: modules by the types that have another name."""
    source = (package() / "utils.py").read_text(encoding="utf-8")
    tables = {
        target.id: node.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return ast.literal_eval(tables["MODEL_REMAPPING"])


@cache
def package() -> Path:
    spec = find_spec("mlx_lm")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])
