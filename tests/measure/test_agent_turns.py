"""What long conversations of agents read again, by the script that measures it."""

import asyncio

import agent_turns
import pytest
from agent_turns import AGENTS, Conversation, Script, Turn, scripted_pair

import dflash_mlx.session as session

OVERHEAD = 30  # tokens that the template writes around the messages of a turn


def played(name: str, family: str) -> list[Turn]:
    script = Script()
    conversation = Conversation(AGENTS[name], scripted_pair(family, script), script, 0.03)
    return asyncio.run(conversation.play(8))[1:]


@pytest.mark.parametrize("name", AGENTS)
@pytest.mark.parametrize("family", agent_turns.TARGETS)
def test_what_could_be_kept_is_kept(name: str, family: str) -> None:
    """A hybrid goes on from snapshots: those at the ends of turns, and before reminders."""
    for turn in played(name, family):
        assert turn.could <= (0 if family == "dense" else 3)  # the generation prompt


@pytest.mark.parametrize("family", agent_turns.TARGETS)
def test_an_answer_that_comes_back_is_not_read_again(family: str) -> None:
    """With its thinking, its text and its call: line breaks between them were twice there."""
    turns = played("Codex", family)
    for turn in (*turns[:4], *turns[5:]):  # the fifth drops the thinking of the first question
        assert turn.again < OVERHEAD


def test_without_the_snapshot_it_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: nothing is known of reminders."""
    monkeypatch.setattr(session, "without_reminder", lambda messages: None)
    assert max(turn.could for turn in played("Claude Code", "hybrid")) > OVERHEAD
