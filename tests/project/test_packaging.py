"""What is installed is what is in the tree."""

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_package_list_equals_tree():
    """A package that the list lacks works when installed for editing and is not in the wheel."""
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    homes = {"dflash_mlx": ROOT / "dflash_mlx"}
    homes |= {name: ROOT / folder for name, folder in setuptools["package-dir"].items()}
    found = set()
    for name, folder in homes.items():
        for init in folder.rglob("__init__.py"):
            found.add(".".join([name, *init.parent.relative_to(folder).parts]))
    assert found == set(setuptools["packages"])


def test_dependencies_have_upper_bounds():
    """A fresh install takes the newest allowed version: transformers 5.13 broke mlx-lm that way."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    for dependency in [
        *settings["project"]["dependencies"],
        *settings["dependency-groups"]["bench"],
    ]:
        assert re.search(r">=[\d.]+,<[\d.]+(;|$)", dependency), dependency


def test_advice_installs_from_the_clone():
    """Nothing says to install this by a name or from an address that somebody else may own.

    The name is nobody's on PyPI yet, and the package's metadata gives no address.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    addresses = set(project.get("urls", {}).values())
    files = [ROOT / "README.md", ROOT / "Makefile"]
    files += [f for name in ("cli", "dflash_mlx", "examples") for f in (ROOT / name).rglob("*.py")]
    for file in files:
        text = file.read_text("utf-8")
        assert not re.search(r"\binstall (-\S+ )*[\"']?dflash-chat", text), file
        for address in re.findall(r"https://[\w./-]*/dflash-chat\b", text):
            assert address in addresses, (file, address)


def test_help_and_version_load_no_model_code():
    """Help must be there at once: mlx_lm alone takes a second to import."""
    program = (
        "import sys\n"
        "from importlib import import_module\n"
        "main = import_module('dflash_mlx.cli.app').main\n"
        "try:\n    main()\nexcept SystemExit as left:\n    assert left.code == 0, left.code\n"
        "heavy = {'mlx', 'mlx_lm', 'transformers', 'numpy', 'huggingface_hub'}\n"
        "heavy |= {'matplotlib', 'datasets', 'rich', 'prompt_toolkit', 'pygments', 'markdown_it'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    for arguments in (
        *(["--help"], ["--version"], ["chat", "--help"], ["bench", "--help"]),
        *(["doctor", "--help"], ["models", "--help"], ["models", "pull", "-h"]),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout


def test_the_guide_has_the_tables_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """`guide_tables.py` writes commands, keys, pairs and types; nobody forgets to run it."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "measure"))
    tables = import_module("guide_tables")
    texts = [page.read_text(encoding="utf-8") for page in tables.PAGES]
    assert [tables.filled(text) for text in texts] == texts
    assert "| `/undo` |" in texts[0]
    assert "| Qwen/Qwen3-4B |" in texts[1]
    assert "| `mistral` | all drafts |" in texts[2]
