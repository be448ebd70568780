"""Long conversations: summaries, going back, what fills the context, the system prompt."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from typing import Any

import openai_server
import pytest
import tiny
from openai_server import Behaviour
from recorded_chat import RecordedState, chat_options, start_dialogue

from dflash_mlx.address import parse_address
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.options import GenerationOptions
from dflash_mlx.pair import Pair
from dflash_mlx.remote.session import connect

local = import_module("dflash_mlx.cli.backend.local")
remote = import_module("dflash_mlx.cli.backend.remote")
compacts = import_module("dflash_mlx.cli.chat.compact")
messages = import_module("dflash_mlx.cli.chat.messages")
tool_box = import_module("dflash_mlx.cli.chat.tools")
terminal_keys = import_module("dflash_mlx.cli.terminal.keys")
transcript = import_module("dflash_mlx.cli.chat.transcript")

LONG = "word " * 40


@pytest.fixture
def fake() -> Iterator[Behaviour]:
    with openai_server.openai_server() as found:
        yield found


def chat_with(backend: Any, **changes: Any) -> RecordedState:
    talk = start_dialogue(backend, GenerationOptions(mode="dflash", **changes))
    return RecordedState(talk, talk.out, chat_options())


@pytest.fixture
def state(fake: Behaviour) -> RecordedState:
    return chat_with(remote.RemoteBackend(connect(parse_address(fake.url))))


@pytest.fixture
def use(state: RecordedState) -> Callable[[str], str]:
    return state.enter


@pytest.fixture(scope="module")
def golden() -> Pair:
    """A pair whose context holds all that these tests say."""
    return tiny.golden_pair("qwen3_full")


def fill(state: RecordedState, count: int) -> None:
    turns = tuple(transcript.Turn(f"{n} {LONG}", f"answer {n}") for n in range(1, count + 1))
    state.dialogue.replace_chat(replace(state.dialogue.chat, turns=turns))


def contents(body: dict[str, Any]) -> list[str]:
    return [message["content"].strip() for message in body["messages"]]


# `/compact` ---------------------------------------------------------------------------------------


def test_a_summary_is_sent_in_place_of_the_older_turns(
    state: RecordedState, use: Callable[[str], str], fake: Behaviour
) -> None:
    """The model reads the older turns and writes it; the last two turns stay as they are."""
    fill(state, 4)
    state.dialogue.replace_chat(replace(state.dialogue.chat, system="Be brief."))
    fake.says = "They counted."
    said = use("/compact")
    asked = contents(fake.bodies[-1])
    assert asked[:2] == ["Be brief.", f"1 {LONG}".strip()]
    assert asked[-2] == "answer 2"
    assert asked[-1].startswith("Summarise our conversation so far.")
    assert "chat_template_kwargs" not in fake.bodies[-1]  # the server may not know the switch
    assert "turns 1 to 2 are sent as this summary" in said
    before, after = re.findall(r"[\d,]+ tokens, not [\d,]+", said)[0].split(" tokens, not ")[::-1]
    assert int(after.replace(",", "")) < int(before.replace(",", ""))
    state.dialogue.ask("and now?")
    sent = contents(fake.bodies[-1])
    assert sent[:3] == ["Be brief.", messages.SUMMARY_PROMPT, "They counted."]
    assert sent[3:] == [
        f"3 {LONG}".strip(),
        "answer 3",
        f"4 {LONG}".strip(),
        "answer 4",
        "and now?",
    ]
    assert "They counted." in use("/compact show")
    assert "turns 1 to 2 are sent as a summary" in use("/history 1")


def test_nothing_is_lost(state: RecordedState, use: Callable[[str], str], fake: Behaviour) -> None:
    """The file keeps all turns and the summary; undone, the turns are sent again."""
    fill(state, 4)
    turns = state.dialogue.chat.turns
    fake.says = "They counted."
    use("/compact 1")
    saved = transcript.load(state.dialogue.file.name)
    assert saved.turns == turns
    assert (saved.summary.text, saved.left_out) == ("They counted.", 3)
    assert "## Summary of all above\n\nThey counted." in transcript.to_markdown(saved)
    use(f"/load {state.dialogue.file.name}")
    assert state.dialogue.chat.summary == saved.summary
    assert "turns 1 to 3 are sent again" in use("/undo")
    assert (state.dialogue.chat.turns, state.dialogue.chat.left_out) == (turns, 0)
    assert use("/undo").startswith("  forgotten: 4 ")  # the next one is that of a turn
    assert transcript.load(state.dialogue.file.name).turns == turns[:3]


def test_a_summary_of_a_summary(
    state: RecordedState, use: Callable[[str], str], fake: Behaviour
) -> None:
    """The second one is made of the first and of the turns since; undoing goes back one by one."""
    fill(state, 4)
    fake.says = "First."
    use("/compact")
    fake.says = ""
    for _ in range(2):
        state.dialogue.ask(LONG)
    fake.says = "Second."
    use("/compact")
    sent = contents(fake.bodies[-1])
    assert sent[:2] == [messages.SUMMARY_PROMPT, "First."]
    assert sent[2] == f"3 {LONG}".strip()
    assert state.dialogue.chat.summary.turns == 4
    assert "sent as the summary before" in use("/compact undo")
    assert (state.dialogue.chat.summary.text, state.dialogue.chat.left_out) == ("First.", 2)
    use("/compact undo")
    with pytest.raises(UsageError, match="no summary to undo"):
        use("/compact undo")


def test_turns_that_were_left_out_are_summarised_in_parts(
    state: RecordedState, use: Callable[[str], str], fake: Behaviour, monkeypatch: Any
) -> None:
    """A chat longer than the context: each part is summarised with the summary before it."""
    fill(state, 9)
    state.dialogue.replace_chat(replace(state.dialogue.chat, left_out=6))
    estimate = state.dialogue.backend.count
    monkeypatch.setattr(
        state.dialogue.backend,
        "count",
        lambda sent, asked: estimate(sent, asked) + 512 * (len(sent) - 2),
    )
    fake.says = "So far."
    said = use("/compact")
    parts = [body for body in fake.bodies if "Summarise" in contents(body)[-1]]
    assert len(parts) > 1
    assert said.count("  summarising turns ") == len(parts)
    assert contents(parts[0])[0] == f"1 {LONG}".strip()
    for part in parts[1:]:
        assert contents(part)[:2] == [messages.SUMMARY_PROMPT, "So far."]
    turns = [text for part in parts for text in contents(part) if text.endswith("word")]
    assert turns == [f"{n} {LONG}".strip() for n in range(1, 8)]  # each once
    assert state.dialogue.chat.summary.turns == 7


@pytest.mark.parametrize(
    ("count", "text", "message"),
    [
        (0, "/compact", "the chat is empty."),
        (2, "/compact", "there are no turns to summarise: the last 2 turns stay as they are."),
        (1, "/compact 1", "there are no turns to summarise: the last turn stays as they are."),
        (4, "/compact 0", "/compact cannot be '0'."),
        (4, "/compact all", "/compact cannot be 'all'."),
        (4, "/compact undo", "there is no summary to undo."),
    ],
)
def test_wrong_use_of_compact(
    state: RecordedState, use: Callable[[str], str], count: int, text: str, message: str
) -> None:
    fill(state, count)
    before = state.dialogue.chat
    with pytest.raises(UsageError) as found:
        use(text)
    assert found.value.message == message
    assert found.value.hint
    assert state.dialogue.chat == before


@pytest.mark.parametrize(
    ("says", "fault", "message"),
    [
        ("", "", "no shorter than the turns"),  # it repeats the request
        ("x", "500", "because of 500"),
        ("a b c d e", "cut", "broke off"),
    ],
)
def test_a_summary_that_fails_changes_nothing(
    state: RecordedState,
    use: Callable[[str], str],
    fake: Behaviour,
    says: str,
    fault: str,
    message: str,
) -> None:
    turns = tuple(transcript.Turn("a", "b") for _ in range(3))
    state.dialogue.replace_chat(transcript.Chat(turns))
    before = state.dialogue.chat
    fake.says, fake.fault = says, fault
    with pytest.raises(DFlashError, match=message):
        use("/compact")
    assert state.dialogue.chat == before
    assert transcript.load(state.dialogue.file.name).summaries == ()


def test_a_local_model_reads_only_the_request(golden: Pair, monkeypatch: Any) -> None:
    """Guards the time of /compact: the chat before it is in the caches."""
    monkeypatch.setattr(compacts, "MAX_SHARE", 100)
    state = chat_with(local.LocalBackend(golden), max_tokens=8)
    for number in range(3):
        state.dialogue.ask(f"{number} {LONG}")
    read: list[tuple[int, int]] = []
    apart = state.dialogue.answer_apart

    def watched(*given: Any) -> Any:
        answer = apart(*given)
        read.append((answer.stats.prompt_tokens, answer.stats.cached_tokens))
        return answer

    state.dialogue.answer_apart = watched
    state.enter("/compact 1")
    prompt, cached = read[0]
    assert prompt - cached < 300 < prompt
    assert state.dialogue.chat.summary.turns == 2
    sent = messages.chat_messages(state.dialogue.chat, "x")
    assert len(sent) == 5
    assert state.dialogue.ask("and now?").tokens


# `/rewind` ----------------------------------------------------------------------------------------


def test_back_to_a_turn(state: RecordedState, use: Callable[[str], str]) -> None:
    """The chat ends there and goes on under a new name; with all turns it stays saved."""
    fill(state, 5)
    whole = state.dialogue.chat.turns
    name = state.dialogue.file.name
    said = use("/rewind 2")
    assert f"back by 3 turns · the whole chat stays saved: /load {name}" in said
    assert "answer 2" in said
    assert state.dialogue.chat.turns == whole[:2]
    assert state.dialogue.file.name != name
    state.dialogue.ask("another way")
    assert transcript.load(name).turns == whole
    assert transcript.load(state.dialogue.file.name).turns[:2] == whole[:2]
    assert len(transcript.load(state.dialogue.file.name).turns) == 3
    use(f"/load {name}")
    assert state.dialogue.chat.turns == whole


def test_a_turn_from_the_list(
    state: RecordedState, use: Callable[[str], str], monkeypatch: Any
) -> None:
    """Each turn is on one row with its number; Enter and the end of the input change nothing."""
    fill(state, 3)
    before = state.dialogue.chat
    asked: list[str] = []
    replies = ["\n", "", "1\n"]

    def ask_line(self: Any, question: str) -> str:
        asked.append(question)
        return replies.pop(0)

    monkeypatch.setattr(RecordedState, "ask_line", ask_line, raising=False)
    for _ in range(2):
        said = use("/rewind")
        assert [line[:11] for line in said.split("\n")[:3]] == [
            "  1  1 word",
            "  2  2 word",
            "  3  3 word",
        ]
        assert "nothing was changed" in said
        assert state.dialogue.chat == before
    use("/rewind")
    assert len(state.dialogue.chat.turns) == 1
    assert "Enter: stay here" in asked[0]


def test_a_message_at_the_question_of_rewind_comes_back(
    state: RecordedState, use: Callable[[str], str], monkeypatch: Any
) -> None:
    """It was lost, with `/rewind cannot be 'and in winter?'`."""
    fill(state, 2)
    state.keys = terminal_keys.KeyReader(terminal_keys.TypeAhead(), lambda: None)
    monkeypatch.setattr(RecordedState, "ask_line", lambda *_: "and in winter?\n", raising=False)
    with pytest.raises(UsageError, match="'and in winter"):
        use("/rewind")
    assert state.keys.typed.take_draft() == "and in winter?"


def test_a_long_list_fits_on_the_screen() -> None:
    listing = import_module("dflash_mlx.cli.chat.turns").turn_list
    turns = [transcript.Turn(f"turn {n}\n" + "é" * 200, "x") for n in range(1, 31)]
    lines = listing(turns, 8)
    assert lines[0] == "  … 23 earlier turns: /history"
    assert len(lines) == 8
    assert lines[-1].startswith("  30  turn 30 é")
    assert all(len(line) < 80 for line in lines)
    assert len(listing(turns[:8], 8)) == 8


def test_back_to_the_beginning(state: RecordedState, use: Callable[[str], str]) -> None:
    """As /clear: the system prompt stays."""
    fill(state, 2)
    state.dialogue.replace_chat(replace(state.dialogue.chat, system="Be brief."))
    name = state.dialogue.file.name
    assert f"/load {name}" in use("/rewind 0")
    assert state.dialogue.chat == transcript.Chat(system="Be brief.")
    assert len(transcript.load(name).turns) == 2


def test_wrong_turns(state: RecordedState, use: Callable[[str], str]) -> None:
    """The last turn is where the chat is: that number changes nothing."""
    with pytest.raises(UsageError, match="the chat is empty"):
        use("/rewind")
    fill(state, 2)
    assert "nothing was changed" in use("/rewind 2")
    for wrong in ("3", "-1", "x", "1 2"):
        with pytest.raises(UsageError, match="/rewind cannot be") as found:
            use(f"/rewind {wrong}")
        assert found.value.hint == "give 0 to 2; /rewind alone lists the turns"
    assert len(state.dialogue.chat.turns) == 2


def test_a_copy_that_cannot_be_written(
    state: RecordedState, use: Callable[[str], str], monkeypatch: Any
) -> None:
    """Guards the turns on a full disk: nothing changes."""
    fill(state, 3)
    before, name = state.dialogue.chat, state.dialogue.file.name

    def full(path: Any, text: str) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(transcript, "write_atomically", full)
        with pytest.raises(DFlashError, match="No space left"):
            use("/rewind 1")
    assert (state.dialogue.chat, state.dialogue.file.name) == (before, name)
    state.dialogue.ask("on")
    assert len(transcript.load(name).turns) == 4


def test_a_chat_that_is_not_saved(state: RecordedState, use: Callable[[str], str]) -> None:
    """It is told that the turns are gone."""
    state.dialogue.autosaves = False
    fill(state, 3)
    assert "2 turns forgotten: this chat is not saved" in use("/rewind 1")
    assert transcript.chat_names() == []


def test_back_into_what_was_summarised(
    state: RecordedState, use: Callable[[str], str], fake: Behaviour
) -> None:
    """A summary of later turns is not sent any more; one of earlier turns is."""
    fill(state, 6)
    fake.says = "Short."
    use("/compact 3")
    name = state.dialogue.file.name
    use("/rewind 4")
    assert (state.dialogue.chat.summary.turns, state.dialogue.chat.left_out) == (3, 3)
    use(f"/load {name}")
    use("/rewind 3")
    assert (state.dialogue.chat.summary, state.dialogue.chat.left_out) == (None, 0)


# `/tokens` ----------------------------------------------------------------------------------------


def rows_of(page: str) -> dict[str, int]:
    found = re.findall(r"^  (\S.*?) +([\d,]+)  +-?\d+%", page, re.MULTILINE)
    return {label: int(tokens.replace(",", "")) for label, tokens in found}


def test_the_parts_of_the_context(golden: Pair) -> None:
    """Their sum is what the next prompt would begin with, and with what is left the context."""
    state = chat_with(local.LocalBackend(golden), max_tokens=8)
    talk = state.dialogue
    empty = rows_of(state.enter("/tokens"))
    assert set(empty) == {"template", "left"}
    assert empty["template"] > 0
    talk.replace_chat(replace(talk.chat, system="Be brief. " * 5))
    for number in range(3):
        talk.ask(f"{number} {LONG}")
    rows = rows_of(state.enter("/tokens"))
    assert list(rows) == ["system prompt", "turn 1", "turn 2", "turn 3", "left"]
    sent = messages.chat_messages(talk.chat, "")
    used = talk.backend.count(sent, talk.settings)
    assert sum(rows.values()) - rows["left"] == used
    assert sum(rows.values()) == talk.context_length
    assert f"context {used:,} / {talk.context_length:,}" in state.enter("/stats")
    alone = golden.encode(f"1 {LONG}")
    assert len(alone) < rows["turn 2"] < len(alone) + 60
    assert rows["system prompt"] > 40  # a byte is a token here
    talk.replace_chat(replace(talk.chat, left_out=2))
    page = state.enter("/tokens")
    assert "turn 2" not in rows_of(page)
    assert "2 turns are not sent: turn 1 to 2" in page


def test_the_tools_are_a_part_of_the_context(golden: Pair) -> None:
    state = chat_with(local.LocalBackend(golden))
    count = state.dialogue.backend.count

    def as_with_tools(sent: Any, asked: GenerationOptions) -> int:
        return count(sent, replace(asked, tools=())) + 70 * len(asked.tools)

    state.dialogue.backend.count = as_with_tools

    class Box(tool_box.ToolBox):
        schemas = [{"type": "function", "function": {"name": "add"}}] * 2

    before = rows_of(state.enter("/tokens"))
    state.dialogue.tools = Box(state.out)
    rows = rows_of(state.enter("/tokens"))
    assert rows["2 tools"] == 140
    assert rows["template"] == before["template"]


def test_many_turns_fit_on_the_screen(state: RecordedState, use: Callable[[str], str]) -> None:
    """The first ones become one row with their sum; `all` lists them."""
    fill(state, 60)
    short = rows_of(use("/tokens"))
    whole = rows_of(use("/tokens all"))
    assert len(short) <= 24 < len(whole)
    label = next(label for label in short if label.startswith("turns 1 to "))
    count = int(label.split()[-1])
    first = [tokens for label, tokens in whole.items() if label.startswith("turn ")][:count]
    assert short[label] == sum(first)
    assert f"turn {count + 1}" in short
    with pytest.raises(UsageError, match="/tokens cannot be 'some'"):
        use("/tokens some")


def test_a_server_has_the_tokenizer(
    state: RecordedState, use: Callable[[str], str], fake: Behaviour
) -> None:
    """What is shown is called an estimate, and so is a summary's."""
    fill(state, 3)
    page = use("/tokens")
    assert "an estimate, only the server has the tokenizer" in page
    assert list(rows_of(page)) == ["template", "turn 1", "turn 2", "turn 3", "left"]
    fake.says = "Short."
    use("/compact")
    assert list(rows_of(use("/tokens"))) == ["template", "summary", "turn 2", "turn 3", "left"]
    assert "turn 1 is sent as the summary" in use("/tokens")
    fake.kind = "someone"  # tells no context length
    other = chat_with(remote.RemoteBackend(connect(parse_address(fake.url))))
    fill(other, 1)
    assert "left" not in rows_of(other.enter("/tokens"))


# `/system edit` -----------------------------------------------------------------------------------


def test_the_system_prompt_in_the_editor(state: RecordedState, use: Callable[[str], str]) -> None:
    """It gets the prompt that there is; the same text changes nothing, an empty one removes it."""
    fill(state, 1)
    given: list[str] = []
    texts = ["Be brief.\n", "Be brief.\n", " \n", ""]

    def edit(text: str) -> str:
        given.append(text)
        return texts.pop(0)

    state.edit = edit
    assert use("/system edit") == "  system prompt set"
    assert transcript.load(state.dialogue.file.name).system == "Be brief."
    assert use("/system edit") == "  nothing was changed"
    assert use("/system edit") == "  system prompt removed"
    assert use("/system edit") == "  nothing was changed"
    assert given == ["", "Be brief.", "Be brief.", ""]
    assert len(state.dialogue.chat.turns) == 1
