"""`/continue`: a chat goes on from the end of its last answer, here and with servers."""

from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import typer
from openai_server import openai_server
from recorded_chat import RecordedState, recorded_chat
from scripted_server import pair_saying

from dflash_mlx.address import parse_address
from dflash_mlx.errors import UsageError
from dflash_mlx.remote.session import RemoteSession, connect

transcript = import_module("dflash_mlx.cli.chat.transcript")
ASKED = [{"role": "user", "content": "count"}]


def chat_after(cli_app: typer.Typer, turn: Any, said: str) -> RecordedState:
    """A chat with one turn; its model says `said` after the turn's answer."""
    begun = [*ASKED, {"role": "assistant", "content": turn.answer}]
    state = recorded_chat(cli_app, pair_saying(said, begun, strict=False))
    state.dialogue.chat = transcript.Chat(turns=(turn,))
    return state


def test_the_text_becomes_a_part_of_the_answer(cli_app: typer.Typer) -> None:
    """The thinking before it stays."""
    turn = transcript.Turn("count", "one, two", "hm", "interrupted")
    state = chat_after(cli_app, turn, "\n three, four")
    state.enter("/continue")
    wanted = replace(turn, answer="one, two\n three, four", finish_reason="stop")
    assert state.dialogue.chat.turns == (wanted,)


def test_nothing_to_go_on_from(cli_app: typer.Typer) -> None:
    state = chat_after(cli_app, transcript.Turn("count", "", "hm", "interrupted"), "x")
    with pytest.raises(UsageError, match="no text to go on from"):
        state.enter("/continue")


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("dflash", {}),
        ("llamacpp", {}),
        ("sglang", {"continue_final_message": True}),
        ("vllm", {"continue_final_message": True, "add_generation_prompt": False}),
        ("", None),
    ],
)
def test_servers(kind: str, fields: dict[str, bool] | None) -> None:
    """Those that do it by a field get it; one that may write a new message is not asked."""
    begun = [*ASKED, {"role": "assistant", "content": "one"}]
    with openai_server() as fake:
        fake.kind = kind
        session = RemoteSession(connect(parse_address(fake.url)))
        if fields is None:
            with pytest.raises(UsageError, match="may not go on"):
                list(session.stream(begun))
            return
        list(session.stream(begun))
        sent = {name: fake.bodies[-1].get(name) for name in fields}
        assert sent == fields
        list(session.stream(ASKED))
        assert not {"continue_final_message", "add_generation_prompt"} & {*fake.bodies[-1]}
