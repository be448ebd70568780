"""Print every error message of the package with its hint.

python examples/measure/error_messages.py
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
ERRORS = {"DFlashError", "UsageError", "PromptTooLong", "ServerLost"}


def main() -> None:
    """Print three lines per error: place, message and hint."""
    for folder in ("cli", "dflash_mlx"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in ERRORS and node.args:
                    hints = [word.value for word in node.keywords if word.arg == "hint"]
                    print(f"{file.relative_to(ROOT)}:{node.lineno}")
                    print(f"  {plain(node.args[0])}")
                    print(f"  -> {plain((hints or node.args[1:] or [ast.Constant('')])[0])}")


def plain(node: ast.expr) -> str:
    """The text of an expression, with {} around the values that are filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(plain(part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return f"{{{ast.unparse(node.value)}}}"
    return ast.unparse(node)


if __name__ == "__main__":
    main()
