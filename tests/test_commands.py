"""Slash commands: which word is which command, what is wrong is said, and what each one does."""

import os
import stat
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import templates
import tiny

from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.pair import Pair

commands = import_module("dflash_mlx.cli.chat.commands")
dialogue = import_module("dflash_mlx.cli.chat.dialogue")
interrupt = import_module("dflash_mlx.cli.terminal.interrupt")
options = import_module("dflash_mlx.cli.options")
output = import_module("dflash_mlx.cli.output")
prompt = import_module("dflash_mlx.cli.terminal.prompt")
rooms = import_module("dflash_mlx.cli.chat.room")
thinking = import_module("dflash_mlx.cli.thinking")
transcript = import_module("dflash_mlx.cli.chat.transcript")
tuning = import_module("dflash_mlx.cli.tuning")


@pytest.fixture(scope="module")
def golden() -> Pair:
    """A pair that answers something."""
    return tiny.golden_pair("qwen3_full")


@pytest.fixture
def room(golden: Pair) -> Any:
    """A chat that nobody watches; `room.told` is what it says."""
    talk = dialogue.Dialogue(
        golden,
        output.Output(quiet=True),
        tuning=tuning.Tuning(max_tokens=12),
        looks=dialogue.Looks(quiet=True),
        keeps=True,
    )
    told: list[str] = []

    class Told(rooms.Room):
        def line(self, text: str, style: str = "") -> None:
            told.append(text)

    room = Told(talk, talk.out, options.ModelOptions(model="x", draft="y"))
    room.__class__.told = told
    return room


@pytest.fixture
def use(room: Any) -> Callable[[str], str]:
    """Type a command; what is told."""

    def run(text: str) -> str:
        room.told.clear()
        commands.dispatch(room, text)
        return "\n".join(room.told)

    return run


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
    """// sends one slash."""
    assert commands.unescaped("//help me") == "/help me"
    assert commands.unescaped("a //b") == "a //b"


@pytest.mark.parametrize("command", commands.COMMANDS, ids=lambda command: command.name)
def test_names_and_prefixes(command: Any) -> None:
    """Every name finds its command; a prefix does when it fits no other."""
    for name in (command.name, *command.aliases):
        assert commands.find(name) == (command, "")
    names = [other.name for other in commands.COMMANDS if other is not command]
    names += [which.name for which in tuning.SETTINGS]
    names += [
        alias for other in commands.COMMANDS if other is not command for alias in other.aliases
    ]
    for end in range(1, len(command.name)):
        prefix = command.name[:end]
        if not any(name.startswith(prefix) for name in names) and prefix not in names:
            assert commands.find(prefix) == (command, "")
        elif prefix not in names:
            with pytest.raises(UsageError, match="could be"):
                commands.find(prefix)


@pytest.mark.parametrize("which", tuning.SETTINGS, ids=lambda which: which.name)
def test_settings_are_short_for_set(which: Any, use: Callable[[str], str]) -> None:
    """`/temp` shows, `/temp 2` changes, `/set temp 2` does the same."""
    assert use(f"/{which.name}").startswith(f"  {which.name} ")
    value = {"top-p": "0.5", "min-p": "0.5", "mode": "ddtree"}.get(which.name, "2")
    assert use(f"/{which.name} {value}") == f"  {which.name} {value}"
    assert use(f"/set {which.name} {value}") == f"  {which.name} {value}"


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
        ("/temp nan", "temperature cannot be nan."),
        ("/top-p 0", "top_p cannot be 0.0."),
        ("/seed 1.5", "seed cannot be '1.5'."),
        ("/block 1", "block cannot be 1."),
        ("/max-tokens 0", "max-tokens cannot be 0."),
        ("/mode baseline", "mode cannot be 'baseline'."),
        ("/tree-budget 1025", "tree-budget cannot be 1,025."),
        ("/set speed 9", "there is no setting 'speed'."),
        ("/think maybe", "/think cannot be 'maybe'."),
        ("/undo", "nothing was said yet."),
        ("/retry", "nothing was said yet."),
        ("/edit", "nothing was said yet."),
        ("/compare", "nothing was said yet."),
        ("/copy", "nothing was said yet."),
        ("/export x.md", "nothing was said yet."),
        ("/load nothing", "there is no saved chat 'nothing'."),
        ("/save a/b", "a chat cannot be named 'a/b'."),
        ("/help tmep", "unknown command /tmep. Did you mean /temp?"),
        ("/model no/such/folder", "there is no folder 'no/such/folder'."),
        ("/draft no/such/folder", "there is no folder 'no/such/folder'."),
    ],
)
def test_wrong_use(text: str, message: str, room: Any, use: Callable[[str], str]) -> None:
    """One sentence and a hint; nothing changes."""
    before = room.dialogue.tuning, room.dialogue.chat, room.dialogue.session
    with pytest.raises(DFlashError) as found:
        use(text)
    assert found.value.message == message
    assert found.value.hint
    assert (room.dialogue.tuning, room.dialogue.chat, room.dialogue.session) == before


def test_help(use: Callable[[str], str]) -> None:
    """All commands, one command, the keys."""
    everything = use("/help")
    assert all(command.form in everything for command in commands.COMMANDS)
    for command in commands.COMMANDS:
        assert command.help in use(f"/help {command.name}")
    assert all(which.help in use("/help set") for which in tuning.SETTINGS)
    assert use("/help /undo") == use("/? undo")
    assert "Ctrl-R" in use("/help keys")


def test_completion(room: Any) -> None:
    """Tab knows commands, settings, and what belongs after them."""

    def offered(text: str) -> list[str]:
        last = text.split(" ")[-1]
        return [w for w, _ in commands.completions(room, text) if w.startswith(last)]

    assert offered("/te") == ["/temp"]
    assert {"/think", "/temp", "/top-p", "/top-k", "/tree-budget"} == set(offered("/t"))
    assert offered("/think s") == ["show"]
    assert "min-p" in offered("/set m")
    assert offered("/set min-p 0") == []
    assert offered("/help un") == ["undo"]
    assert offered("hello /t") == []
    assert "Qwen/Qwen3-4B" in offered("/model Qwen/")
    room.dialogue.save("my chat")
    assert offered("/load m") == ["my chat"]


def test_system(room: Any, use: Callable[[str], str]) -> None:
    """Shown, set, kept by /clear, removed; turns stay."""
    assert use("/system") == "  no system prompt"
    room.dialogue.ask("hi")
    use("/system Be\nbrief.")
    assert use("/system") == "  Be\nbrief."
    assert dialogue.messages(room.dialogue.chat, "x")[0]["content"] == "Be\nbrief."
    assert len(room.dialogue.chat.turns) == 1
    use("/clear")
    assert room.dialogue.chat == transcript.Chat(system="Be\nbrief.")
    use("/system off")
    assert room.dialogue.chat.system is None


def test_draft_off_and_on(room: Any, use: Callable[[str], str]) -> None:
    """The target alone says the same and reads nothing twice; said in so many words."""
    first = room.dialogue.ask("hello there").tokens
    assert use("/draft off").endswith("draft off")
    said = room.dialogue.ask("and now")
    assert said.stats.verifies == 0
    assert said.stats.cached_tokens >= len(first)
    assert use("/draft off") == "  drafting is off already"
    with pytest.raises(UsageError, match="draft is off"):
        use("/compare")
    assert "block" in use("/draft on")
    again = room.dialogue.again()[1]
    assert again.tokens == said.tokens
    assert again.stats.verifies


def test_undo_retry_edit(room: Any, use: Callable[[str], str]) -> None:
    """The last turn goes, comes again, or gets another prompt."""
    room.dialogue.ask("one")
    room.dialogue.ask("two")
    assert "the same again" in use("/retry")
    assert [turn.prompt for turn in room.dialogue.chat.turns] == ["one", "two"]
    room.edit = lambda text: text + " and a half\n"
    use("/edit")
    assert [turn.prompt for turn in room.dialogue.chat.turns] == ["one", "two and a half"]
    for same in ("", " \n", "two and a half"):
        room.edit = lambda text, same=same: same
        assert use("/edit") == "  nothing was changed"
    assert use("/undo") == "  forgotten: two and a half"
    assert [turn.prompt for turn in transcript.load(room.dialogue.name).turns] == ["one"]


def test_a_retry_that_fails_keeps_the_turn(room: Any, use: Callable[[str], str]) -> None:
    """Guards the last turn, on disk too, against faults and Ctrl-C in the new answer."""
    room.dialogue.ask("one")
    chat = room.dialogue.chat
    ask = room.dialogue.session.stream

    def broken(*args: Any, **options: Any) -> Any:
        raise DFlashError("no.", hint="none")

    room.dialogue.session.stream = broken
    with pytest.raises(DFlashError, match="no"):
        use("/retry")
    room.dialogue.session.stream = ask
    assert room.dialogue.chat == chat
    assert transcript.load(room.dialogue.name).turns == chat.turns


def test_save_load_clear(room: Any, use: Callable[[str], str]) -> None:
    """Chats go on where they were; a name is never taken from another chat."""
    room.dialogue.ask("one")
    first = room.dialogue.name
    assert first
    use("/save kept")
    room.dialogue.ask("two")
    assert len(transcript.load("kept").turns) == 2
    assert len(transcript.load(first).turns) == 1
    assert use("/clear") == "  new conversation; the old one is saved as kept"
    room.dialogue.ask("three")
    with pytest.raises(UsageError, match="a saved chat 'kept' already"):
        use("/save kept")
    assert "kept" in use("/load")
    assert "last prompt: two" in use("/load kept")
    assert [turn.prompt for turn in room.dialogue.chat.turns] == ["one", "two"]


def test_no_name_is_used_twice(room: Any) -> None:
    """Two chats begun in the same second do not share a file."""
    names = set()
    for _ in range(3):
        room.dialogue.name = None
        room.dialogue.save()
        names.add(room.dialogue.name)
    assert len(names) == 3


def test_think(room: Any, use: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where the template knows it; what was thought can be seen later."""
    for word in ("on", "off", "low"):
        with pytest.raises(UsageError, match="chat template"):
            use(f"/think {word}")
    assert room.dialogue.tuning.think is room.dialogue.tuning.effort is None
    template = templates.template_of("glm")
    monkeypatch.setattr(room.dialogue.pair.target, "template", template)
    use("/think on")
    assert room.dialogue.tuning.think is True
    with pytest.raises(UsageError, match="knows no reasoning effort"):
        use("/think low")
    turn = transcript.Turn("a", "b", "deep thoughts")
    room.dialogue.chat = replace(room.dialogue.chat, turns=(turn,))
    assert "deep thoughts" in use("/think show")
    assert room.dialogue.looks.show_thinking
    assert use("/think") == "  thinking on, shown"
    use("/think hide")
    assert not room.dialogue.looks.show_thinking


def test_a_drafter_too_big_for_the_memory(
    room: Any, use: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused before it is loaded, the old one goes on; --force loads it."""
    path = tiny.GOLDEN / "qwen3_full" / "draft"
    monkeypatch.setattr("dflash_mlx.hub.memory.working_set", lambda: 1_000_000)
    with pytest.raises(DFlashError, match="needs"):
        use(f"/draft {path}")
    assert room.dialogue.ask("hello").stats.verifies
    room.models = replace(room.models, force=True)
    assert "draft" in use(f"/draft {path}")


def test_effort(room: Any, use: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer is told of it; no thinking has none, and an effort begins to think."""
    pair = room.dialogue.pair
    monkeypatch.setattr(pair.target, "template", templates.template_of("both"))
    assert use("/think low") == "  thinking effort low"
    assert room.dialogue.options()["reasoning_effort"] == "low"
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
    for form, state in forms.items():
        room.dialogue.tuning = replace(room.dialogue.tuning, think=True, effort="high")
        template = templates.template_of(form)
        room.dialogue.tuning = thinking.fitting(room.dialogue.tuning, template, room.out)
        assert use("/think") == state


def test_another_model_thinks_its_own_way(room: Any, use: Callable[[str], str]) -> None:
    """What the new template does not know is not asked of it: the next prompt is answered."""
    room.dialogue.tuning = replace(room.dialogue.tuning, effort="low")
    with pytest.raises(UsageError, match="knows no reasoning effort"):
        room.dialogue.ask("hello")
    use("/model bundled")
    assert room.dialogue.tuning.effort is None
    assert room.dialogue.ask("What is 3 plus 4?").tokens


def test_stats(room: Any, use: Callable[[str], str]) -> None:
    """Before and after an answer; the counts are the answer's."""
    assert "0 answers" in use("/stats")
    assert "snapshots" not in use("/stats")  # rows need none
    said = room.dialogue.ask("hello")
    page = use("/stats")
    assert f"{said.stats.accepted:,} of {said.stats.drafted:,} drafts" in page
    assert "1 answer " in page


def test_stats_of_a_hybrid() -> None:
    """What the places to go back to take is said where there are any, and their limits."""
    talk = dialogue.Dialogue(
        tiny.golden_pair("qwen35_hybrid"),
        output.Output(quiet=True),
        tuning=tuning.Tuning(max_tokens=12),
        looks=dialogue.Looks(quiet=True),
        keeps=True,
    )
    page = import_module("dflash_mlx.cli.chat.stats_page").stats_page

    def said() -> str:
        return next(line for line in page(talk, talk.out) if "snapshots" in line)

    assert "0 places to go back to · 0 bytes · at most 6, or 1.1 GB" in said()
    talk.ask("hello")
    assert "1 place to go back to" in said()
    talk.ask("again")
    cache = talk.session.context.target_cache
    assert f"{cache.snapshots} places" in said()
    assert output.size(talk.session.snapshot_bytes) in said()
    assert talk.session.snapshot_bytes > 0


def test_model(room: Any, use: Callable[[str], str], tmp_path: Path) -> None:
    """Another pair goes on with the conversation; a pair that cannot be loaded changes nothing."""
    room.dialogue.ask("hello")
    assert "drafter" in use("/model bundled")
    assert room.dialogue.pair.target_name == "bundled"
    assert len(room.dialogue.chat.turns) == 1
    assert room.dialogue.ask("And 3 plus 4?").tokens
    (tmp_path / "bad").mkdir()
    with pytest.raises(DFlashError):
        use(f"/model {tmp_path / 'bad'}")
    assert room.dialogue.ask("What is 3 plus 4?").tokens


def test_export(room: Any, use: Callable[[str], str], tmp_path: Path) -> None:
    """A file of Markdown."""
    room.dialogue.ask("hello")
    use(f"/export {tmp_path / 'a.md'}")
    assert "## You\n\nhello" in (tmp_path / "a.md").read_text()


def test_copy(room: Any, use: Callable[[str], str], tmp_path: Path, monkeypatch: Any) -> None:
    """The system's tool gets the answer; without one, and no terminal, it is said."""
    room.dialogue.ask("hello")
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(DFlashError, match="no clipboard"):
        use("/copy")
    tool = tmp_path / "pbcopy"
    clip = str(tmp_path / "clip")
    tool.write_text(f"#!{sys.executable}\nimport sys\nopen({clip!r}, 'w').write(sys.stdin.read())")
    tool.chmod(0o755)
    assert use("/copy") == "  copied with pbcopy"
    assert (tmp_path / "clip").read_text() == room.dialogue.chat.turns[-1].answer


def test_leave(use: Callable[[str], str]) -> None:
    """By any of its names."""
    for name in ("exit", "quit", "bye"):
        with pytest.raises(interrupt.Leave):
            use(f"/{name}")


def test_the_external_editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With arguments; a failing or missing one is told."""
    script = tmp_path / "my editor"
    script.write_text(f"#!{sys.executable}\nimport sys\nopen(sys.argv[-1], 'a').write(' more\\n')")
    script.chmod(0o755)
    monkeypatch.setenv("EDITOR", f"'{script}' --wait")
    monkeypatch.delenv("VISUAL", raising=False)
    assert prompt.edit("text") == "text more"
    monkeypatch.setenv("VISUAL", "false")
    with pytest.raises(DFlashError, match="ended with 1"):
        prompt.edit("text")
    monkeypatch.setenv("VISUAL", "/no/such/editor")
    with pytest.raises(DFlashError, match="cannot be used"):
        prompt.edit("text")


def test_the_history_file_is_private(tmp_path: Path) -> None:
    """Also one that was readable before."""
    path = tmp_path / "history"
    for _ in range(2):
        prompt.make_private(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o644)
    with pytest.raises(DFlashError, match="history file"):
        prompt.make_private(tmp_path / "no" / "history")
    assert os.path.exists(path)


def test_modes_in_one_chat(room: Any, use: Callable[[str], str]) -> None:
    """A mode is changed between answers; what was read stays read, and /draft knows the mode."""
    talk = room.dialogue
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
