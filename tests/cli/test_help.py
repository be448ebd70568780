"""`dflash help`: the pages of the guide, from the installed package."""

from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "examples" / "guide"


def test_pages(run):
    """All are listed with their titles, and each is the file itself in a pipe."""
    lines = run("help").stdout.splitlines()
    assert len(lines) == len(list(GUIDE.glob("*.md")))
    for line in lines:
        name, title = line.split(maxsplit=1)
        text = (GUIDE / f"{name.replace('-', '_')}.md").read_text(encoding="utf-8")
        assert text.startswith(f"# {title}\n")
        assert run("help", name).stdout == text


@pytest.mark.parametrize("topic", ["Prefix", "prefix_cache", "prefix-cache"])
def test_the_start_of_a_name_is_enough(run, topic):
    assert run("help", topic).stdout.startswith("# ")


@pytest.mark.parametrize(
    ("topic", "hint"),
    [("chta", "did you mean 'chat'?"), ("", "`dflash help` lists them"), ("nothing", "lists them")],
)
def test_no_such_page(run, topic, hint):
    result = run("help", topic)
    assert (result.exit_code, result.stdout) == (2, "")
    assert hint in result.stderr


def test_without_a_command_it_says_where_to_begin(run):
    result = run()
    assert (result.exit_code, result.stdout) == (2, "")
    assert "dflash chat" in result.stderr
    assert "dflash help" in result.stderr
