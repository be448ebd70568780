"""Plant faults in the source, one at a time, and see which tests fail.

    python examples/measure/plants.py draw COVERAGE --count 90 > examples/measure/plants.json
    python examples/measure/plants.py run [COVERAGE] [--all] [--only PACKAGE] [--part 1/2]

`draw` picks covered lines by seed, some in every package, and one fault for each line: a comparison
turned, a sum off by one, a condition negated, a call left out. Faults written by hand may be added
to the list. `run` makes a copy of the tree and changes it for one fault at a time. It runs the test
that the list names for the fault, then those that reach the changed line, then the tests of the
package's folder, and stops at the first failure. Without `--all` it runs the tests of `make test`
only. It prints one line of JSON for each fault.

COVERAGE is a file of `coverage.py` with the test of each line:

    pip install pytest-cov
    pytest --cov=dflash_mlx --cov=cli --cov-context=test --cov-report=
"""

import argparse
import ast
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_suffix(".json")
COMPARED = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
COMPUTED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult}
CALLED = {"min": "max", "max": "min", "any": "all", "all": "any", "deepcopy": ""}
TESTS_OF_A_LINE = 30  # at most, those that reach the fewest lines first
PATIENCE = 600  # seconds until a fault that makes tests hang counts as caught


@dataclass(frozen=True, slots=True)
class Plant:
    """One fault: the source lines `before`, which occur once in `file`, become `after`.

    `test` catches it. A fault with a `reason` is equivalent: it changes no answer, file or message.
    """

    file: str
    rule: str
    before: str
    after: str
    test: str = ""
    reason: str = ""


class Coverage:
    """The tests that reach each line of the source files."""

    def __init__(self, path: Path):
        data = sqlite3.connect(path)
        names = dict(data.execute("select id, context from context"))
        self._tests: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        self._reach: dict[str, int] = defaultdict(int)
        query = (
            "select file.path, context_id, numbits from line_bits join file on file.id = file_id"
        )
        for file, context, bits in data.execute(query):
            test = names[context].split("|")[0].split("[")[0]
            numbers = numbers_of(bits)
            self._reach[test] += len(numbers)
            for number in numbers:
                self._tests[local(file)][number].add(test)

    @property
    def files(self) -> list[str]:
        """The source files, relative to the root."""
        return sorted(self._tests)

    def lines(self, file: str) -> set[int]:
        """The lines that a test runs, except those run only by an import."""
        return {number for number, tests in self._tests[file].items() if tests - {""}}

    def tests(self, file: str, line: int) -> list[str]:
        """The tests that run a line; those that reach the fewest lines come first."""
        return sorted(self._tests[file][line] - {""}, key=lambda test: (self._reach[test], test))


def numbers_of(bits: bytes) -> list[int]:
    """The line numbers that coverage.py stores, one bit per line."""
    return [8 * at + bit for at, byte in enumerate(bits) for bit in range(8) if byte >> bit & 1]


def local(path: str) -> str:
    """A path in the measured tree, relative to its root."""
    parts = Path(path).parts
    start = max(at for at, part in enumerate(parts) if part in ("dflash_mlx", "cli"))
    while start and parts[start - 1] in ("dflash_mlx", "cli"):
        start -= 1
    return str(Path(*parts[start:]))


def package(file: str) -> str:
    """The folder of a file's package."""
    return str(Path(file).parent)


def faults(tree: ast.Module) -> Iterator[tuple[ast.stmt, str]]:
    """Each statement of functions with the name of each rule that changes it."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                yield node, "left out"
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.Return, ast.Expr)):
                for rule in ("compare", "compute", "call", "number", "boolean"):
                    yield node, rule
            if isinstance(node, (ast.If, ast.While)):
                yield node, "negated"
                yield node, "compare"


class Change(ast.NodeTransformer):
    """Changes the first place in an expression where a rule applies."""

    def __init__(self, rule: str):
        self.rule = rule
        self.done = False

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Change a comparison: < to <=, == to !=."""
        if self.rule == "compare" and not self.done and type(node.ops[0]) in COMPARED:
            self.done = True
            node.ops[0] = COMPARED[type(node.ops[0])]()
            return node
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Change an operator: + to -, * to +."""
        if self.rule == "compute" and not self.done and type(node.op) in COMPUTED:
            self.done = True
            node.op = COMPUTED[type(node.op)]()
            return node
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Call another function with the same arguments, or use the argument itself."""
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if self.rule == "call" and not self.done and name in CALLED and node.args:
            self.done = True
            if not CALLED[name]:
                return node.args[0]
            node.func = ast.Name(CALLED[name], ast.Load())
            return node
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Add one to a number, or invert a truth value."""
        if self.rule == "boolean" and not self.done and isinstance(node.value, bool):
            self.done = True
            return ast.Constant(not node.value)
        if self.rule == "number" and not self.done and type(node.value) is int:
            self.done = True
            return ast.Constant(node.value + 1)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        """Leave messages unchanged."""
        return node


def changed(source: str, node: ast.stmt, rule: str) -> tuple[str, str] | None:
    """The lines of a statement's head before and after a fault; None if the rule does not apply."""
    lines = source.splitlines()
    head = node.test if isinstance(node, (ast.If, ast.While)) else node
    first = node.lineno
    last = head.end_lineno or first
    before = "\n".join(lines[first - 1 : last])
    if source.count(before) != 1 or lines[first - 1].strip().startswith(("elif", "else")):
        return None
    copy = ast.parse(ast.unparse(node)).body[0]
    indent = " " * node.col_offset
    if rule == "left out":
        return before, f"{indent}pass"
    if isinstance(copy, (ast.If, ast.While)):
        test = copy.test
        if rule == "negated":
            test = ast.UnaryOp(ast.Not(), test)
        else:
            change = Change(rule)
            test = change.visit(test)
            if not change.done:
                return None
        word = "if" if isinstance(copy, ast.If) else "while"
        text = ast.unparse(ast.fix_missing_locations(ast.Expression(test)))
        return before, f"{indent}{word} {text}:"
    change = Change(rule)
    copy = change.visit(copy)
    if not change.done:
        return None
    text = ast.unparse(ast.fix_missing_locations(copy))
    return before, "\n".join(indent + line for line in text.splitlines())


def draw(coverage: Coverage, count: int, seed: int) -> list[Plant]:
    """Faults in covered lines, in every package in turn."""
    dice = random.Random(seed)
    places: dict[str, list[tuple[str, ast.stmt, str, str]]] = defaultdict(list)
    for file in coverage.files:
        if not (ROOT / file).exists():
            continue
        source = (ROOT / file).read_text(encoding="utf-8")
        covered = coverage.lines(file)
        for node, rule in faults(ast.parse(source)):
            if node.lineno in covered:
                places[package(file)].append((file, node, rule, source))
    for candidates in places.values():
        dice.shuffle(candidates)
    plants: list[Plant] = []
    taken: set[tuple[str, int]] = set()
    while len(plants) < count and any(places.values()):
        for name in sorted(places):
            while places[name] and len(plants) < count:
                file, node, rule, source = places[name].pop()
                pair = changed(source, node, rule)
                if pair is None or pair[0] == pair[1] or (file, node.lineno) in taken:
                    continue
                taken.add((file, node.lineno))
                plants.append(Plant(file, rule, *pair))
                break
    return plants


def copy_of_tree(folder: Path) -> Path:
    """Copy the tracked files in their current state."""
    files = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    tree = folder / "tree"
    for name in files:
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    (tree / "dflash_mlx" / "cli").symlink_to("../cli")
    (tree / "dflash_mlx" / "metal_kernels").symlink_to("../metal_kernels")
    return tree


def run(
    plant: Plant, coverage: Coverage | None, tree: Path, *, everything: bool
) -> dict[str, object]:
    """Run the tests that may fail with a fault; returns whether one fails, and which."""
    path = tree / plant.file
    source = path.read_text(encoding="utf-8")
    if source.count(plant.before) != 1:
        return {**asdict(plant), "caught": None, "by": "the file does not have these lines once"}
    began = time.monotonic()
    path.write_text(source.replace(plant.before, plant.after), encoding="utf-8")
    by = ""
    try:
        line = source[: source.index(plant.before)].count("\n") + 1
        narrow = coverage.tests(plant.file, line)[:TESTS_OF_A_LINE] if coverage else []
        for tests in ([plant.test], narrow, [tests_of(tree, plant.file)]):
            by = first_failure(tree, tests, everything=everything) if any(tests) else ""
            if by:
                break
    finally:
        path.write_text(source, encoding="utf-8")
    seconds = round(time.monotonic() - began)
    return {**asdict(plant), "caught": bool(by), "by": by, "seconds": seconds}


def tests_of(tree: Path, file: str) -> str:
    """The folder of tests that mirrors a file's package, or the nearest package around it."""
    name = package(file).removeprefix("dflash_mlx/")
    folder = Path("tests", "api" if name == "dflash_mlx" else name)
    while not (tree / folder).is_dir():
        folder = folder.parent
    return "" if folder == Path("tests") else str(folder)


def first_failure(tree: Path, tests: list[str], *, everything: bool) -> str:
    """The first test that fails, or another error; empty if all pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header"]
    command += ["-m", "not real" if everything else "not real and not slow"]
    try:
        done = subprocess.run(
            [*command, *tests],
            cwd=tree,
            env={**environment(), "PYTHONPATH": str(tree)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        return "it hangs"
    failures = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if failures:
        return failures[0][:160]
    if done.returncode in (0, 5):  # 5: no test was selected
        return ""
    here = [test for test in tests if f"/{test}\n" not in done.stderr + "\n"]
    if len(here) < len(tests):  # some tests were moved or removed after the coverage was measured
        return first_failure(tree, here, everything=everything) if here else ""
    return f"exit code {done.returncode}: {done.stdout[-200:]}"


def environment() -> dict[str, str]:
    """The environment, without this project's settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("DFLASH_")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=["draw", "run"])
    parser.add_argument("coverage", type=Path, nargs="?")
    parser.add_argument("--count", type=int, default=90)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--all", action="store_true", help="run the slow tests, too")
    parser.add_argument("--only", default="", help="faults whose file has this in its path")
    parser.add_argument("--part", default="1/1", help="which part of the list: 1/2, 2/2")
    args = parser.parse_args()
    coverage = Coverage(args.coverage) if args.coverage else None
    if args.verb == "draw":
        if coverage is None:
            parser.error("draw needs a coverage file")
        plants = draw(coverage, args.count, args.seed)
        print(json.dumps([asdict(plant) for plant in plants], indent=1))
        return
    part, parts = map(int, args.part.split("/"))
    chosen = [Plant(**item) for item in json.loads(LIST.read_text(encoding="utf-8"))]
    chosen = [plant for plant in chosen if args.only in plant.file and not plant.reason]
    chosen = chosen[part - 1 :: parts]
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_of_tree(Path(folder))
        for plant in chosen:
            print(json.dumps(run(plant, coverage, tree, everything=args.all)), flush=True)


if __name__ == "__main__":
    main()
