"""kill -9 at any moment of writing: every earlier chat, preset and prompt stays whole."""

import os
import random
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest
from prompt_toolkit.history import FileHistory

transcript = import_module("dflash_mlx.cli.chat.transcript")
chat_file = import_module("dflash_mlx.cli.chat.chat_file")
config_file = import_module("dflash_mlx.cli.config_file")
line_editor = import_module("dflash_mlx.cli.terminal.line_editor")

KILLS = 50
WORDS = "wörd " * 4000  # long enough that a kill comes while it is written
PRESET = '[preset.review]\ntemp = 0.3\nsystem = "Be terse."\n'


def write_for_ever(number: int, done: int) -> None:
    """What a chat writes: chats by their titles, more turns, forks, exports, history, removals.

    Each is told through the file descriptor `done` when it is on disk.
    """

    def tell(text: str) -> None:
        os.write(done, f"{text}\n".encode())

    folder = transcript.data_folder()
    line_editor.create_private_file(folder / "history")
    history = FileHistory(str(folder / "history"))
    while True:
        number += 1
        file, turns = chat_file.ChatFile(), ()
        for turn in range(3):
            prompt = f"{number} {turn}\n{WORDS[: number * 97 % 20000]}"
            history.append_string(prompt)
            tell(f"asked {number} {turn}")
            turns = (*turns, transcript.Turn(prompt, WORDS))
            file.save(transcript.Chat(turns, system=str(number)))
            tell(f"saved {file.name} {turn + 1}")
        chat = transcript.Chat(turns)
        file.save(chat, file.unused_name(chat))
        tell(f"saved {file.name} 3")
        transcript.export(folder / "chat.md", chat)
        if number % 3 == 0:
            tell(f"removing {file.name}")
            transcript.remove(file.name)


class Kept:
    """What must be there, by what the writers have told."""

    def __init__(self) -> None:
        self.chats: dict[str, int] = {}
        self.asked: list[str] = []

    def told(self, text: str) -> None:
        """Lines that a writer told; the last one may be cut."""
        for line in text.split("\n")[:-1]:
            what, *words = line.split(" ")
            if what == "asked":
                self.asked.append(" ".join(words))
            elif what == "saved":
                self.chats[words[0]] = int(words[1])
            else:
                del self.chats[words[0]]

    def check(self) -> None:
        for name in transcript.chat_names():
            chat = transcript.load(name)
            assert len(chat.turns) >= self.chats.get(name, 0)
            assert all(turn.answer == WORDS for turn in chat.turns)
            assert [turn.prompt.split()[1] for turn in chat.turns] == list("012")[: len(chat.turns)]
        assert set(self.chats) <= set(transcript.chat_names())
        history = FileHistory(str(transcript.data_path() / "history"))
        prompts = [" ".join(text.split()[:2]) for text in history.load_history_strings()]
        assert [text for text in reversed(prompts) if text in self.asked] == self.asked
        markdown = transcript.data_path() / "chat.md"
        assert not markdown.exists() or markdown.read_text().rstrip().endswith(WORDS.rstrip())
        assert config_file.read_config(config_file.config_path())["preset"]["review"]


def kill_writers(times: int) -> None:
    """Fork writers and kill them at random moments; after each all that was told is there."""
    path = config_file.config_path()
    path.parent.mkdir(parents=True)
    path.write_text(PRESET)
    dice, kept = random.Random(3), Kept()
    for number in range(times):
        read, write = os.pipe()
        writer = os.fork()
        if not writer:
            write_for_ever(number * 100, write)
        os.close(write)
        told = b""
        while number % 5 and b"saved" not in told:  # on a busy machine that takes its time
            told += os.read(read, 4096)
        time.sleep(dice.random() * 0.04)
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        with os.fdopen(read, "rb") as rest:
            kept.told((told + rest.read()).decode())
        kept.check()
    assert len(kept.chats) >= times // 2
    assert path.read_text() == PRESET


def write_in_place(path: Path, text: str) -> None:
    """A fault: what was there is gone before the new text is written."""
    path.write_text(text[:9])
    path.write_text(text)


def in_own_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this file: the process that forks loads no MLX."""
    command = [sys.executable, __file__, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_killed_while_writing() -> None:
    done = in_own_process(str(KILLS))
    assert (done.returncode, done.stderr) == (0, "")


def test_a_writer_in_place_is_caught() -> None:
    done = in_own_process("20", "in place")
    assert done.returncode == 1
    assert "DFlashError" in done.stderr or "AssertionError" in done.stderr


if __name__ == "__main__":
    if sys.argv[2:]:
        vars(transcript)["write_atomically"] = write_in_place
    assert not any(name.startswith("mlx") for name in sys.modules)
    kill_writers(int(sys.argv[1]))
