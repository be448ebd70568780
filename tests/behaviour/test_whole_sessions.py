"""Whole sessions at a shell: what is typed, all that is shown, and the files that are left.

A transcript is both: lines that begin with a prompt are typed, everything else must be shown (and
what only looks so, behind a =). In a window of 80x24 each line is compared, in others all but the
breaks of lines.
"""

import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from terminal import SLOWED, Terminal, environment

NUMBERS = re.compile(
    r"\d+ tokens?[\s·]+(?:[\d.]+ tok/s[\s·]+)?(?:τ [\d.]+[\s·]+)?(?:accept \d+%[\s·]+)?"
    r"(?:\d+\stokens\swithout\sdrafts[\s·]+)?[\d.]+ s"
    r"(?:[\s·]+prompt\s[\d,]+\snew(?:\s\+\s[\d,]+\scached)?)?"
    r"(?:[\s·]+first\s+token\s+after\s+[\d.]+\ss)?"
)
LOADED = re.compile(r"loaded in [\d.]+ s[\s·]+[\d.]+ MB")
PYTHON = shlex.quote(sys.executable)
CODES = re.compile(r"\x1b\[([0-9;]*)m")
CONFIG = """\
[preset.review]
system = "Be terse."
temp = 0.3
[preset.short]
max-tokens = 12
"""
FILES = {
    "work/notes.md": "Milk.\n",
    "work/src/a.py": "a = 1\n",
    "work/src/b.py": "b = 2\n",
    "work/src/x.png": "\0",
    "config/dflash/config.toml": CONFIG,
    "slowed.json": '{"says": "Fine.\\n"}',
    "rc": "cd ~/work\nPS1='$ '\ndflash() { case $1 in\n"
    f'  chat|generate) {PYTHON} -P {shlex.quote(str(SLOWED))} "$@";;\n'
    f'  *) {PYTHON} -P -m dflash_mlx.cli "$@";;\nesac; }}\n'
    "kept() { (cd ../data/dflash && find . -type f | LC_ALL=C sort); }\n",
}
HEADER = """\
dflash VERSION · bundled pair · block 16 · CPU
(loaded) · context 4,096 · /help lists commands · Ctrl-C stops
Ctrl-D leaves
toy model for trying dflash; run `dflash models list` for real ones

"""
SESSIONS = {
    "files": f"""\
$ dflash chat
{HEADER}\
› See @notes.md and @nobody
  notes.md · 5 bytes · 25 tokens

Fine.
  (numbers)

› /read src
  src/a.py
  src/b.py
  2 files · 10 bytes · 1 not text, left out
  48 tokens: with the next prompt; /read off drops it

› !echo out
  out
  $ echo out · 3 bytes · 23 tokens: with the next prompt; /read off drops it

› And these?
  3 files · 13 bytes · 1 not text, left out · 65 tokens

Fine.
  (numbers)

› And @src/c.py?
  there is no file src/c.py: @src/c.py is sent as text

Fine.
  (numbers)

› /undo
  forgotten: And @src/c.py?

› And @src/x.png?
Error: the file 'src/x.png' cannot be read (it is not text).
Hint:  give a text file

› /history
=› See @notes.md and @nobody
  notes.md · 5 bytes

Fine.

=› And these?
  3 files · 13 bytes

Fine.

› /exit
saved: dflash chat --resume see-notes-md-and-nobody
$ dflash chats show | tail -n 22

=$ echo out:

```text
out
```

src/a.py:

```py
a = 1
```

src/b.py:

```py
b = 2
```

## Answer

Fine.
$ kept
./chats/see-notes-md-and-nobody.json
./history
""",
    "chats": f"""\
$ dflash chat "Why is it blue?"
{HEADER}\
=› Why is it blue?

Fine.
  (numbers)

› /save sky talk
  saved in /tmp/tmpXXXXXXXX/data/dflash/chats/sky talk.json

› /fork
  goes on as sky talk-2; sky talk stays as it is

› And at sunset?

Fine.
  (numbers)

› /undo
  forgotten: And at sunset?

› /exit
saved: dflash chat --resume 'sky talk-2'
$ dflash chat -c
{HEADER}\
  sky talk-2: 1 turn

=› Why is it blue?

Fine.

› /load sky talk
  sky talk: 1 turn

=› Why is it blue?

Fine.

› And tea?

Fine.
  (numbers)

› /exit
saved: dflash chat --resume 'sky talk'
$ dflash generate -c "And milk?" --quiet
Fine.
$ dflash chats list
sky talk        3 turns  just now  Why is it blue?
sky talk-2      1 turn   just now  Why is it blue?
why-is-it-blue  1 turn   just now  Why is it blue?
$ dflash chats search milk
sky talk  3
    And milk? Fine.
$ dflash chats rm "sky talk" -y
sky talk removed
$ kept
./chats/sky talk-2.json
./chats/why-is-it-blue.json
./history
""",
    "presets": f"""\
$ dflash chat -p review
{HEADER.replace("CPU", "CPU · preset review")}\
› /preset
  review  system Be terse. · temp 0.3
  short   max-tokens 12

› /temp
  temp 0.3

› /system
  Be terse.

› /preset short
  preset short: max-tokens

› /max-tokens
  max-tokens 12

› Why?

Fine.
  (numbers)

› /preset revue
Error: there is no preset 'revue' in
       '/tmp/tmpXXXXXXXX/config/dflash/config.toml'.
Hint:  did you mean 'review'?

› /exit
saved: dflash chat --resume why
$ dflash chats show
# Chat with bundled

*System prompt:* Be terse.

## You

Why?

## Answer

Fine.
$ dflash generate -p nope hi
Error: there is no preset 'nope' in
       '/tmp/tmpXXXXXXXX/config/dflash/config.toml'.
Hint:  presets: review, short
$ kept
./chats/why.json
./history
""",
    "long": f"""\
$ dflash chat
{HEADER}\
› Read @src and @notes.md
  3 files · 15 bytes · 1 not text, left out · 67 tokens

Fine.
  (numbers)

› And the milk?

Fine.
  (numbers)

› /tokens
  template             8    0%
  turn 1              88    2%  ▏         Read @src and @notes.md
  turn 2              19    0%            And the milk?
  left             3,981   97%  ███████▊
  context 115 of 4,096 tokens
  with less than 512 left the oldest turns are left out; /compact sends a
  summary of them

› /compact 1
  summarising turn 1 of 2
Fine.
  turn 1 is sent as this summary · the chat has 55 tokens, not 115
  /undo sends the turns again

› And the tea?

Fine.
  (numbers)

› /history
=› Read @src and @notes.md
  3 files · 15 bytes

Fine.

=› And the milk?

Fine.

=› And the tea?

Fine.
  turn 1 is sent as a summary

› /compact undo
  the summary is forgotten: turn 1 is sent again

› /rewind 1
  back by 2 turns
  the whole chat stays saved: /load read-src-and-notes-md

=› Read @src and @notes.md
  3 files · 15 bytes

Fine.

› And the salt?

Fine.
  (numbers)

› /rewind 2
  nothing was changed

› /system Be terse.
  system prompt set

› /watch
  the next answers have a colour for each pass of the target, and struck out
  the drafts that it rejects; /retry shows the last one again

› And the jam?

Fine.
  (numbers)
  each colour is one pass of the target: 1 pass for 1 token

› /watch
  answers are shown as Markdown again

› /exit
saved: dflash chat --resume read-src-and-notes-md-2
$ dflash chats list
read-src-and-notes-md-2  3 turns  just now  Read @src and @notes.md
read-src-and-notes-md    3 turns  just now  Read @src and @notes.md
$ kept
./chats/read-src-and-notes-md-2.json
./chats/read-src-and-notes-md.json
./history
""",
}

# What a narrow window leaves out: first prompts in lists, and bars.
NARROW = (
    ("just now  Why is it blue?", "just now"),
    ("just now  Read @src and @notes.md", "just now"),
    ("▏         Read @src and @notes.md", "Read @s"),
    ("And the milk?\n  left", "And the\n  left"),
    ("97%  ███████▊", "97%"),
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A home whose path is always as long, so that lines break at the same places."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="tmp") as name:
        for file, text in FILES.items():
            path = Path(name, file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        yield Path(name)


def masked(text: str, folder: Path) -> str:
    """A screen without what differs from run to run."""
    text = text.replace(folder.name, "tmpXXXXXXXX")
    text = LOADED.sub("(loaded)", NUMBERS.sub("(numbers)", text))
    return re.sub(r"dflash \d[\d.]+", "dflash VERSION", text)


def squeezed(text: str) -> str:
    """A text without breaks of lines, and the dots that stand between parts of one line."""
    return re.sub(r"[\s·]", "", text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size", "look"),
    [
        ("files", (80, 24), {}),
        ("chats", (80, 24), {}),
        ("presets", (80, 24), {}),
        ("files", (40, 12), {}),
        ("chats", (40, 12), {"NO_COLOR": "1"}),
        ("presets", (120, 40), {"NO_COLOR": "1"}),
        ("files", (120, 40), {}),
        ("chats", (120, 40), {}),
        ("presets", (40, 12), {"NO_COLOR": "1"}),
        ("files", (80, 24), {"TERM": "dumb"}),
        ("long", (80, 24), {}),
        ("long", (120, 40), {}),
        ("long", (40, 12), {}),
    ],
)
def test_a_session(folder: Path, name: str, size: tuple[int, int], look: dict[str, str]) -> None:
    """Typed line by line; nothing else is shown, at any moment that waits for a line."""
    shell = ["bash", "--noprofile", "--rcfile", str(folder / "rc"), "-i"]
    terminal = Terminal(shell, environment(folder, **look), *size)
    transcript, shown = SESSIONS[name], ""
    if size[0] < 80:
        for wide, narrow in NARROW:
            transcript = transcript.replace(wide, narrow)

    def seen() -> str:
        text = squeezed(masked(terminal.screen_text(), folder))
        return text.replace(folder.name, "tmpXXXXXXXX")

    try:
        for block in re.split(r"(?m)^(?=[$›] \S)", transcript)[1:]:
            line = block.partition("\n")[0]
            if squeezed(shown).endswith("/history"):  # shows prompts that nobody types
                shown += re.sub(r"(?m)^=", "", block)
                continue
            wanted = squeezed(shown) + line[0]
            terminal.wait_until(lambda wanted=wanted: seen() == wanted, f"at {line}")
            terminal.settle(0.05)
            terminal._write(line[2:].encode() + b"\r")
            shown += re.sub(r"(?m)^=", "", block)
        wanted = squeezed(shown) + "$"
        terminal.wait_until(lambda: seen() == wanted, "the end")
    except AssertionError:
        assert masked(terminal.screen_text(), folder) == shown
        raise
    finally:
        terminal.close()
    if size == (80, 24):
        assert masked(terminal.screen_text(), folder) == f"{shown}$"
    assert max(map(len, terminal.screen_text().splitlines())) <= size[0]
    if "TERM" in look:
        assert "\x1b" not in terminal.raw
    if "NO_COLOR" in look:
        codes = {code for found in CODES.findall(terminal.raw) for code in found.split(";")}
        assert codes <= {"", "0", "1", "2", "3", "4", "7", "9"}
