"""Slash commands: which word is which command, what is wrong is said, and what each one does."""

import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import templates
import tiny
from paths import ROOT
from recorded_chat import RecordedState, chat_options, start_dialogue

import dflash_mlx
from dflash_mlx.chat.template import Template
from dflash_mlx.engine.stats import Stats
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.options import GenerationOptions
from dflash_mlx.pair import Pair
from dflash_mlx.remote.session import RemoteStats

backends = import_module("dflash_mlx.cli.backend.local")
commands = import_module("dflash_mlx.cli.chat.commands")
messages = import_module("dflash_mlx.cli.chat.messages")
signals = import_module("dflash_mlx.cli.terminal.signals")
shell = import_module("dflash_mlx.cli.chat.attachments")
output = import_module("dflash_mlx.cli.terminal.output")
line_editor = import_module("dflash_mlx.cli.terminal.line_editor")
thinking = import_module("dflash_mlx.cli.resolve")
transcript = import_module("dflash_mlx.cli.chat.transcript")
chat_settings = import_module("dflash_mlx.cli.chat.settings")


@pytest.fixture(scope="module")
def golden() -> Pair:
    return tiny.golden_pair("qwen3_full")


@pytest.fixture
def state(golden: Pair) -> RecordedState:
    settings = GenerationOptions(max_tokens=12, mode="dflash")
    talk = start_dialogue(backends.LocalBackend(golden), settings)
    return RecordedState(talk, talk.out, chat_options(model="x", draft="y"))


@pytest.fixture
def use(state: RecordedState) -> Callable[[str], str]:
    return state.enter


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        ("/help", True),
        ("/?", True),
        ("/top-p 0.9", True),
        ("/system a\nb", True),
        ("/etc/hosts is a file", False),
        ("/Help", False),
        ("//help", False),
        ("/", False),
        ("/ help", False),
        (" /help", False),
        ("help", False),
        ("/2", False),
    ],
)
def test_what_is_a_command(text: str, ours: bool) -> None:
    """Guards prompts that begin with a slash."""
    assert commands.is_command(text) is ours


def test_escaped_slashes() -> None:
    assert commands.unescape("//help me") == "/help me"
    assert commands.unescape("a //b") == "a //b"


def test_names_and_prefixes() -> None:
    """A beginning that several names share is refused."""
    names = {name: command for command in commands.COMMANDS for name in command_names(command)}
    words = [*names, *(which.setting for which in chat_settings.SETTINGS)]
    for name, command in names.items():
        assert commands.find_command(name) == (command, "")
        for prefix in {name[:end] for end in range(1, len(name))} - {*words}:
            if {names.get(word) for word in words if word.startswith(prefix)} == {command}:
                assert commands.find_command(prefix) == (command, "")
            else:
                with pytest.raises(UsageError, match="could be"):
                    commands.find_command(prefix)


def command_names(command: Any) -> tuple[str, ...]:
    return (command.name, *command.aliases)


@pytest.mark.parametrize("which", chat_settings.SETTINGS, ids=lambda which: which.setting)
def test_settings_are_short_for_set(which: Any, use: Callable[[str], str]) -> None:
    name = which.setting
    assert use(f"/{name}").startswith(f"  {name} ")
    value = {
        "top-p": "0.5",
        "min-p": "0.5",
        "xtc-probability": "0.5",
        "xtc-threshold": "0.1",
        "mode": "ddtree",
        "accept": "token",
        "stop": '"2"',
    }.get(name, "2")
    assert use(f"/{name} {value}") == f"  {name} {value}"
    assert use(f"/set {name} {value}") == f"  {name} {value}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("/tmep 0.7", "unknown command /tmep. Did you mean /temp?"),
        ("/xyzzy", "unknown command /xyzzy. /help lists the commands."),
        ("/e", "/e could be /edit, /exit, /export."),
        ("/undo all", "/undo takes no argument."),
        ("/export", "/export needs file.md."),
        ("/temp hot", "temp cannot be 'hot'."),
        ("/temp -1", "temperature cannot be -1.0."),
        ("/seed 1.5", "seed cannot be '1.5'."),
        ("/block 9", "a block cannot have 9 tokens: this drafter's have 8."),
        ("/accept all", "accept cannot be 'all'."),
        ("/stop 'a", "stop cannot be ''a'."),
        ("/history 0", "the chat is empty."),
        ("/fork", "the chat is empty."),
        ("/max-tokens 0", "max-tokens cannot be 0."),
        ("/mode baseline", "mode cannot be 'baseline'."),
        ("/mode fast", "mode cannot be 'fast'."),
        ("/set speed 9", "there is no setting 'speed'."),
        ("/think maybe", "/think cannot be 'maybe'."),
        ("/undo", "the chat is empty."),
        ("/retry", "the chat is empty."),
        ("/edit", "the chat is empty."),
        ("/compare", "the chat is empty."),
        ("/compact", "the chat is empty."),
        ("/rewind", "the chat is empty."),
        ("/retry 3", "the chat is empty."),
        ("/retry 1", "/retry cannot be '1'."),
        ("/retry 9", "/retry cannot be '9'."),
        ("/retry all", "/retry cannot be 'all'."),
        ("/tokens 3", "/tokens cannot be '3'."),
        ("/copy", "the chat is empty."),
        ("/export x.md", "the chat is empty."),
        ("/load nothing", "there is no saved chat 'nothing'."),
        ("/save a/b", "a chat cannot be named 'a/b'."),
        ("/help tmep", "unknown command /tmep. Did you mean /temp?"),
        ("/model no/such/folder", "there is no folder 'no/such/folder'."),
        ("/draft no/such/folder", "there is no folder 'no/such/folder'."),
    ],
)
def test_wrong_use(text: str, message: str, state: Any, use: Callable[[str], str]) -> None:
    before = state.dialogue.settings, state.dialogue.chat, state.dialogue.backend.session
    with pytest.raises(DFlashError) as found:
        use(text)
    assert found.value.message == message
    assert found.value.hint
    assert (state.dialogue.settings, state.dialogue.chat, state.dialogue.backend.session) == before


def test_help(use: Callable[[str], str]) -> None:
    lines = use("/help").split("\n")
    assert len(lines) <= 22  # with the prompt below it they fit a small screen
    assert all(len(line) < 80 for line in lines)
    shown = {
        topic: [command for command in commands.COMMANDS if command.syntax in use(f"/help {topic}")]
        for topic in ("", "all")
    }
    assert shown[""] == [command for command in commands.COMMANDS if command.everyday]
    assert shown["all"] == list(commands.COMMANDS)
    assert 12 <= len(shown[""]) <= 15
    for command in commands.COMMANDS:
        assert command.help in use(f"/help {command.name}")
    assert all(
        chat_settings.setting_help(which) in use("/help set") for which in chat_settings.SETTINGS
    )
    assert use("/help /undo") == use("/? undo")
    assert "Ctrl-R" in use("/help keys")
    for topic in ("tmep", "e", "xyzzy"):
        with pytest.raises(DFlashError) as found:
            use(f"/help {topic}")
        assert found.value.hint == "/help all lists all of them"


def test_the_guide_has_what_help_has() -> None:
    """Guards a command that nobody finds on the page."""
    page = (ROOT / "examples" / "guide" / "chat.md").read_text()
    rows = page.partition("<!-- commands -->")[2].partition("<!-- end -->")[0].split("\n")[3:-1]
    listed = [(f"`{command.syntax}`", command.help) for command in commands.COMMANDS]
    listed += line_editor.KEYS
    assert rows == [f"| {name.replace('|', chr(92) + '|')} | {text} |" for name, text in listed]


def test_completion(state: Any) -> None:
    def offered(text: str) -> list[str]:
        last = text.split(" ")[-1]
        return [w for w, _ in commands.complete(state, text) if line_editor.begins(w, last)]

    assert offered("/te") == ["/temp"]
    settings = {"/temp", "/top-p", "/top-k", "/tree-budget"}
    assert {"/think", "/tokens", *settings} == set(offered("/t"))
    assert offered("/think s") == ["show"]
    assert "min-p" in offered("/set m")
    assert offered("/set min-p 0") == []
    assert offered("/help un") == ["undo"]
    assert offered("hello /t") == []
    assert "Qwen/Qwen3-4B" in offered("/model Qwen/")
    assert {"Qwen/Qwen3-4B", "mlx-community/Qwen3-4B-4bit"} <= set(offered("/model qwen3-4"))
    state.dialogue.save("my chat")
    assert offered("/load m") == ["my chat"]


def test_system(state: Any, use: Callable[[str], str]) -> None:
    assert use("/system") == "  no system prompt"
    state.dialogue.ask("hi")
    use("/system Be\nbrief.")
    assert use("/system") == "  Be\nbrief."
    assert messages.chat_messages(state.dialogue.chat, "x")[0]["content"] == "Be\nbrief."
    assert len(state.dialogue.chat.turns) == 1
    use("/clear")
    assert state.dialogue.chat == transcript.Chat(system="Be\nbrief.")
    use("/system off")
    assert state.dialogue.chat.system is None


def test_draft_off_and_on(state: Any, use: Callable[[str], str]) -> None:
    """The target alone says the same and reads nothing twice; said in so many words."""
    first = state.dialogue.ask("hello there").tokens
    assert use("/draft off").endswith("draft off")
    said = state.dialogue.ask("and now")
    assert said.stats.verifies == 0
    assert said.stats.cached_tokens >= len(first)
    assert use("/draft off") == "  drafting is off already"
    with pytest.raises(UsageError, match="draft is off"):
        use("/compare")
    assert "block" in use("/draft on")
    again = state.dialogue.answer_again()[1]
    assert again.tokens == said.tokens
    assert again.stats.verifies


def test_back_to_the_known_drafter(state: Any, use: Callable[[str], str]) -> None:
    """After /draft lookup there was no way back to the bundled drafter: it was said to be on."""
    state.dialogue.set_pair(dflash_mlx.load())
    state.options = chat_options()
    assert use("/draft on") == "  drafting is on already"
    assert "drafter lookup" in use("/draft lookup")
    assert "drafter bundled" in use("/draft on")
    assert use("/draft on") == "  drafting is on already"


def test_undo_retry_edit(state: Any, use: Callable[[str], str]) -> None:
    state.dialogue.ask("one")
    state.dialogue.ask("two")
    assert "the same again" in use("/retry")
    assert [turn.prompt for turn in state.dialogue.chat.turns] == ["one", "two"]
    state.edit = lambda text: text + " and a half\n"
    use("/edit")
    assert [turn.prompt for turn in state.dialogue.chat.turns] == ["one", "two and a half"]
    for same in ("", " \n", "two and a half"):
        state.edit = lambda text, same=same: same
        assert use("/edit") == "  nothing was changed"
    assert use("/undo") == "  forgotten: two and a half"
    assert [turn.prompt for turn in transcript.load(state.dialogue.file.name).turns] == ["one"]


def test_save_load_clear(state: Any, use: Callable[[str], str], tmp_path: Path) -> None:
    """Chats go on where they were; a name is never taken from another chat."""
    state.dialogue.ask("one")
    first = state.dialogue.file.name
    assert first
    use("/save kept")
    state.dialogue.ask("two")
    assert len(transcript.load("kept").turns) == 2
    assert len(transcript.load(first).turns) == 1
    assert use("/clear") == "  new conversation; the old one is saved as kept"
    state.dialogue.ask("three")
    with pytest.raises(UsageError, match="a saved chat 'kept' already"):
        use("/save kept")
    assert "kept" in use("/load")
    assert "› two" in use("/load kept")
    assert "/history" not in use("/load kept")
    assert use(f"/export {tmp_path}/chat.md").endswith("chat.md")
    assert use(f"/export {tmp_path}/chat.md").endswith("chat.md, over the earlier export")
    assert [turn.prompt for turn in state.dialogue.chat.turns] == ["one", "two"]


@pytest.mark.parametrize(
    ("turns", "answer", "said"),
    [
        (3, "1", "  … 1 earlier turn: /history shows all of it"),
        (5, "1", "  … 3 earlier turns: /history shows all of it"),
        (5, "1\n" * 99, "  … 3 earlier turns and more: /history shows all of it"),
        (1, "1\n" * 99, "  … more: /history shows all of it"),
    ],
)
def test_turns_that_a_loaded_chat_does_not_show(
    state: Any, use: Callable[[str], str], turns: int, answer: str, said: str
) -> None:
    """Their number, and how to see them; the rows still take half the screen."""
    transcript.save(
        "long", transcript.Chat(tuple(transcript.Turn("why?", answer) for _ in range(turns)))
    )
    lines = use("/load long").split("\n")
    assert said in lines
    assert len(lines) - lines.index(said) <= 12
    assert use("/history").count("› why?") == turns
    assert "earlier" not in use("/history")


def use_template(state: Any, template: Template) -> None:
    state.dialogue.set_pair(replace(state.dialogue.pair, template=template))


def test_think(state: Any, use: Callable[[str], str]) -> None:
    """Only where the template knows it; what was thought can be seen later."""
    for word in ("on", "off", "low"):
        with pytest.raises(UsageError, match="chat template"):
            use(f"/think {word}")
    assert state.dialogue.settings.think is state.dialogue.settings.reasoning_effort is None
    template = templates.template_of("glm")
    use_template(state, template)
    use("/think on")
    assert state.dialogue.settings.think is True
    with pytest.raises(UsageError, match="has no reasoning effort"):
        use("/think low")
    turn = transcript.Turn("a", "b", "deep thoughts")
    state.dialogue.chat = replace(state.dialogue.chat, turns=(turn,))
    assert "deep thoughts" in use("/think show")
    assert state.dialogue.display.show_thinking
    assert use("/think") == "  thinking on, shown"
    use("/think hide")
    assert not state.dialogue.display.show_thinking


def test_a_drafter_too_big_for_the_memory(
    state: Any, use: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused before it is loaded, the old one goes on; --force loads it."""
    path = tiny.GOLDEN / "qwen3_full" / "draft"
    monkeypatch.setattr("dflash_mlx.models.memory.working_set", lambda: 1_000_000)
    with pytest.raises(DFlashError, match="needs"):
        use(f"/draft {path}")
    assert state.dialogue.ask("hello").stats.verifies
    state.options = state.options.changed(force=True)
    assert "draft" in use(f"/draft {path}")


def test_effort(state: Any, use: Callable[[str], str]) -> None:
    """Every answer is told of it; no thinking has none, and an effort begins to think."""
    use_template(state, templates.template_of("both"))
    assert use("/think low") == "  thinking effort low"
    assert state.dialogue.options().reasoning_effort == "low"
    assert use("/think off") == "  thinking off"
    assert use("/think high") == "  thinking on · effort high"
    assert use("/think") == "  thinking on · effort high, folded"
    with pytest.raises(UsageError, match="cannot be 'max'"):
        use("/think max")
    forms = {
        "gpt_oss": "  thinking effort high, folded",
        "glm": "  thinking on, folded",
        "llama": "  thinking as the template has it, folded",
    }
    for form, thinking_state in forms.items():
        state.dialogue.settings = replace(
            state.dialogue.settings, think=True, reasoning_effort="high"
        )
        template = templates.template_of(form)
        state.dialogue.settings = thinking.drop_unknown_thinking(
            state.dialogue.settings, template, state.out
        )
        assert use("/think") == thinking_state


def test_another_model_thinks_its_own_way(state: Any, use: Callable[[str], str]) -> None:
    """What the new template does not know is not asked of it: the next prompt is answered."""
    state.dialogue.settings = replace(state.dialogue.settings, reasoning_effort="low")
    with pytest.raises(UsageError, match="has no reasoning effort"):
        state.dialogue.ask("hello")
    use("/model bundled")
    assert state.dialogue.settings.reasoning_effort is None
    assert state.dialogue.ask("What is 3 plus 4?").tokens


def test_stats(state: Any, use: Callable[[str], str]) -> None:
    assert "0 answers" in use("/stats")
    assert "snapshots" not in use("/stats")  # rows need none
    said = state.dialogue.ask("hello")
    page = use("/stats")
    assert f"{said.stats.accepted:,} of {said.stats.drafted:,} drafts" in page
    assert "1 answer " in page
    said.stats.verifies = 1
    assert " · 1 verify pass · " in use("/stats")
    assert "  seed" not in page  # nothing is drawn at temperature 0
    use("/set mode auto")
    state.dialogue.ask("hello")
    page = use("/stats")
    assert page.index("last answer") < page.index("conversation") < page.index("chosen")
    use("/temp 1")
    state.dialogue.ask("hello")
    assert "  seed  " not in use("/stats")  # none was given
    use("/seed 7")
    state.dialogue.ask("hello")
    assert "  seed          7" in use("/stats")


def test_the_acceptance_of_a_chat() -> None:
    """Tokens by passes over all answers, not a mean of theirs; a server tells only its mean."""
    mean = import_module("dflash_mlx.cli.chat.pages").mean_acceptance_length
    passes = ([4, 4], [1, 1], [2] * 16)
    said = [Stats(generated=1 + sum(committed), committed=committed) for committed in passes]
    server = RemoteStats(generated=31, reported={"acceptance_length": 3})
    assert mean([]) == 1
    assert mean(said) == pytest.approx(42 / 20)
    assert mean([*said, server]) == pytest.approx(72 / 30)


def test_stats_of_a_hybrid() -> None:
    """What the places to go back to take is said where there are any, and their limits."""
    backend = backends.LocalBackend(tiny.golden_pair("qwen35_hybrid"))
    talk = start_dialogue(backend, GenerationOptions(max_tokens=12, mode="dflash"))
    page = import_module("dflash_mlx.cli.chat.pages").stats_page

    def said() -> str:
        return next(line for line in page(talk, talk.out) if "snapshots" in line)

    assert "0 places to go back to · 0 bytes · at most 6, or 1.1 GB" in said()
    talk.ask("hello")
    assert "1 place to go back to" in said()
    talk.ask("again")
    cache = talk.backend.session.sequence.target_cache
    assert f"{cache.snapshots} places" in said()
    assert output.format_bytes(talk.backend.session.snapshot_bytes) in said()
    assert talk.backend.session.snapshot_bytes > 0


def test_model(state: Any, use: Callable[[str], str], tmp_path: Path) -> None:
    """Another pair goes on with the conversation; a pair that cannot be loaded changes nothing."""
    state.dialogue.ask("hello")
    assert "drafter" in use("/model bundled")
    assert state.dialogue.pair.target_name == "bundled"
    assert len(state.dialogue.chat.turns) == 1
    assert state.dialogue.ask("And 3 plus 4?").tokens
    (tmp_path / "bad").mkdir()
    with pytest.raises(DFlashError):
        use(f"/model {tmp_path / 'bad'}")
    assert state.dialogue.ask("What is 3 plus 4?").tokens


def test_copy(state: Any, use: Callable[[str], str], tmp_path: Path, monkeypatch: Any) -> None:
    """The system's tool gets the answer; without one, and no terminal, it is said."""
    state.dialogue.ask("hello")
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(DFlashError, match="no clipboard"):
        use("/copy")
    tool = tmp_path / "pbcopy"
    monkeypatch.delenv("LC_CTYPE", raising=False)  # as launchd starts programs
    tool.write_text(f'#!/bin/sh\ncd "{tmp_path}"\necho "$LC_CTYPE" > locale\n/bin/cat > clip\n')
    tool.chmod(0o755)
    assert use("/copy") == "  copied with pbcopy"
    assert (tmp_path / "clip").read_text() == state.dialogue.chat.turns[-1].answer
    assert (tmp_path / "locale").read_text() == "UTF-8\n"  # pbcopy decodes by it


def test_copy_code(state: Any, use: Callable[[str], str], monkeypatch: Any) -> None:
    copying = import_module("dflash_mlx.cli.chat.actions")
    kept: list[str] = []
    monkeypatch.setattr(copying, "copy_to_clipboard", lambda text: kept.append(text) or "there")
    answer = "See:\n\n```py\na = 1\n```\n\n- and\n\n  ~~~~sh\n  ls\n  ```\n  ~~~~\n\n`no` code"
    state.dialogue.chat = transcript.Chat((transcript.Turn("hi", answer),))
    assert use("/copy code") == "  block 2 of 2 copied there"
    use("/copy code 1")
    assert kept == ["ls\n```\n", "a = 1\n"]
    for wrong in ("/copy code 3", "/copy code 0", "/copy all", "/copy code x"):
        with pytest.raises(UsageError):
            use(wrong)
    state.dialogue.chat = transcript.Chat((transcript.Turn("hi", "none"),))
    with pytest.raises(UsageError, match="has no code"):
        use("/copy code")


def test_stop_and_accept(state: Any, use: Callable[[str], str]) -> None:
    assert use("/stop") == "  stop none"
    assert use("/set stop the end\\n") == '  stop "the end\\n"'
    assert state.dialogue.settings.stop == ("the end\n",)
    use('/stop "a b" "c"')
    assert state.dialogue.options().stop == ("a b", "c")
    assert use("/stop none") == "  stop none"
    assert state.dialogue.settings.stop == ()
    use("/accept token")
    assert state.dialogue.options().accept == "token"
    answer = state.dialogue.ask("one").text
    use(f"/stop {answer[3]}")
    assert state.dialogue.ask("one").text != answer or answer[3] in answer[:3]


def test_the_shell(state: Any, use: Callable[[str], str]) -> None:
    """What a command prints is shown, and goes with the next prompt, once."""
    assert shell.is_shell_command("!ls")
    assert not any(map(shell.is_shell_command, ("!", "! ", " !ls", "a!")))
    shell.run_in_shell(state, "!echo one; echo two >&2; exit 3")
    assert state.lines[:3] == ["  one", "  two", "  exit code 3"]
    assert "with the next prompt; /read off drops it" in state.lines[3]
    wanted = "why?\n\n$ echo one; echo two >&2; exit 3:\n\n```text\none\ntwo\n```"
    assert shell.with_files(state, "why?") == wanted
    assert shell.with_files(state, "why?") == "why?"
    shell.run_in_shell(state, "!true")
    assert shell.with_files(state, "why?") == "why?"
    shell.run_in_shell(state, "!echo one")
    use("/read off")
    assert shell.with_files(state, "why?") == "why?"


def test_a_shell_command_has_no_terminal(state: Any) -> None:
    """A program that draws on the whole screen is ended, and no escape code goes into a prompt."""
    started_at = time.monotonic()
    with pytest.raises(UsageError, match="draws on the whole screen"):
        shell.run_in_shell(state, r"!printf 'one\ntwo\033[2;1H~'; sleep 30")
    assert time.monotonic() - started_at < 20
    assert shell.with_files(state, "why?") == "why?"
    shell.run_in_shell(state, r"!printf '\033(B\033[1;31ma\033[0m\033]0;t\007b\007\033=\r\nc\303'")
    assert state.outputs.pop().text == "ab\nc\N{REPLACEMENT CHARACTER}"
    shell.run_in_shell(state, "!(: </dev/tty) || echo $TERM $PAGER $GIT_PAGER")
    assert state.outputs.pop().text.endswith("\ndumb cat cat")


def test_ctrl_c_ends_a_shell_command_and_its_children(state: Any) -> None:
    """Also one that ignores it."""
    command = "(trap '' INT TERM; exec sleep 60) & echo $!; sleep 0.3; kill -INT $PPID; wait"
    shell.run_in_shell(state, f"!{command}")
    assert state.lines[1] == "  stopped"
    ps = ["ps", "-o", "stat=", "-p", state.outputs.pop().text]
    assert subprocess.run(ps, capture_output=True, text=True).stdout.strip()[:1] in ("", "Z")


def test_a_file_that_is_refused_is_not_kept(
    state: Any, use: Callable[[str], str], tmp_path: Path
) -> None:
    """Too long, or gone when the prompt is sent: the next prompt goes without it."""
    (tmp_path / "long.txt").write_text("many words " * 30_000)
    with pytest.raises(UsageError, match="the context holds"):
        shell.read_files(state, str(tmp_path / "long.txt"))
    assert shell.with_files(state, "why?") == "why?"

    kept = tmp_path / "kept.txt"
    gone = tmp_path / "gone.txt"
    for file in (kept, gone):
        file.write_text("x")
        shell.read_files(state, str(file))
    gone.unlink()
    with pytest.raises(UsageError, match="No such file") as fault:
        shell.with_files(state, "why?")
    assert "no longer attached" in fault.value.hint
    assert "kept.txt" in shell.with_files(state, "why?")
    assert shell.with_files(state, "why?") == "why?"


def test_the_external_editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "my editor"
    script.write_text(f"#!{sys.executable}\nimport sys\nopen(sys.argv[-1], 'a').write(' more\\n')")
    script.chmod(0o755)
    monkeypatch.setenv("EDITOR", f"'{script}' --wait")
    monkeypatch.delenv("VISUAL", raising=False)
    assert line_editor.edit_externally("text") == "text more"
    monkeypatch.setenv("VISUAL", "false")
    with pytest.raises(DFlashError, match="ended with 1"):
        line_editor.edit_externally("text")
    monkeypatch.setenv("VISUAL", "/no/such/editor")
    with pytest.raises(DFlashError, match="cannot be used"):
        line_editor.edit_externally("text")


def test_the_history_file_is_private(tmp_path: Path) -> None:
    """Also one that was readable before."""
    path = tmp_path / "history"
    for _ in range(2):
        line_editor.create_private_file(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o644)
    with pytest.raises(DFlashError, match="history file"):
        line_editor.create_private_file(tmp_path / "no" / "history")
    assert os.path.exists(path)


def test_modes_in_one_chat(state: Any, use: Callable[[str], str]) -> None:
    """A mode is changed between answers; what was read stays read, and /draft knows the mode."""
    talk = state.dialogue
    chain = talk.ask("one").stats
    assert chain.drafted <= 7 * chain.verifies
    assert use("/mode ddtree") == "  mode ddtree"
    use("/tree-budget 9")
    assert use("/model").endswith("block 8 · tree 9")
    tree = talk.ask("two").stats
    assert tree.drafted == 9 * tree.verifies
    assert tree.cached_tokens >= chain.prompt_tokens - 1
    assert f"{tree.accepted:,} of {tree.drafted:,} drafts" in use("/stats")
    use("/draft off")
    assert talk.ask("three").stats.verifies == 0
    use("/draft on")
    again = talk.ask("four").stats
    assert again.drafted == 9 * again.verifies


@pytest.mark.parametrize(("limit", "told"), [(8, "the last 8 of 11 characters"), (11, None)])
def test_a_cut_output_is_told(state: Any, monkeypatch: Any, limit: int, told: str | None) -> None:
    """Guards a model that reads a part and a user who believes that it read everything."""
    monkeypatch.setattr(shell, "MAX_OUTPUT", limit)
    state.lines.clear()
    shell.run_in_shell(state, "!echo 12345; echo 67890")
    assert (told in state.lines[-1]) if told else ("characters" not in state.lines[-1])
    assert "with the next prompt" in state.lines[-1]
    assert state.outputs[-1].text == "12345\n67890"[-limit:]
