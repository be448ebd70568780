"""A chat with tools in this process, with typed input and a recorded screen."""

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pytest
from paths import SUPPORT
from recorded_chat import chat_options, start_dialogue
from tool_talk import says, talking_pair

from dflash_mlx.options import GenerationOptions
from dflash_mlx.tools import ServerConfig

backends = import_module("dflash_mlx.cli.backend.local")
loop = import_module("dflash_mlx.cli.chat.loop")
states = import_module("dflash_mlx.cli.chat.state")
tool_box = import_module("dflash_mlx.cli.chat.tools")

SERVER = SUPPORT / "mcp_server.py"
HERE = ServerConfig("here", sys.executable, (str(SERVER),))


class ToolChat:
    """A chat whose screen is a text with input, questions and output in order."""

    def __init__(self, screen: io.TextIOWrapper, *configs: ServerConfig, **more: Any):
        self.screen, self.answers = screen, iter(more.pop("answers", ()))
        self.pair: Any = more.pop("pair", None) or talking_pair(says)
        settings = GenerationOptions(mode="dflash", **more)
        self.talk = start_dialogue(backends.LocalBackend(self.pair), settings, quiet=False)
        self.talk.tools = tool_box.ToolBox(self.talk.out, configs)
        self.talk.tools.ask = self.ask
        self.talk.tools.wait()
        self.state = states.ChatState(self.talk, self.talk.out, chat_options())

    def ask(self, question: str) -> str:
        """Answer a question with the next of `answers`; "^C" raises KeyboardInterrupt."""
        typed = next(self.answers)
        self.screen.write(f"{question}{typed}\n")
        if typed == "^C":
            raise KeyboardInterrupt
        return typed + "\n"

    def type(self, text: str) -> str:
        begin = len(self.text)
        self.screen.write(f"› {text}\n")
        loop.handle_input(self.state, text)
        return self.text[begin:]

    @property
    def text(self) -> str:
        self.screen.flush()
        return self.screen.buffer.getvalue().decode()  # type: ignore[attr-defined]

    @property
    def sent(self) -> list[int]:
        return self.prompts[-1][1]

    @property
    def prompts(self) -> list[Any]:
        return self.pair.target.prompts


@contextmanager
def tool_chats(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ToolChat]]:
    """Yields a function that starts chats; ends their MCP servers afterwards."""
    screen = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    begun: list[ToolChat] = []

    def begin(*configs: ServerConfig, **more: Any) -> ToolChat:
        monkeypatch.setattr(sys, "stdout", screen)  # only now: pytest replaces it before the test
        monkeypatch.setattr(sys, "stderr", screen)
        begun.append(ToolChat(screen, *configs, **more))
        return begun[-1]

    yield begin
    for session in begun:
        session.talk.tools.close()
