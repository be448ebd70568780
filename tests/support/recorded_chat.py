"""A chat in this process that records the lines it prints."""

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand

from dflash_mlx.options import GenerationOptions
from dflash_mlx.pair import Pair

backends = import_module("dflash_mlx.cli.backend.local")
commands = import_module("dflash_mlx.cli.chat.commands")
dialogue = import_module("dflash_mlx.cli.chat.dialogue")
options = import_module("dflash_mlx.cli.options")
output = import_module("dflash_mlx.cli.terminal.output")
settings = import_module("dflash_mlx.cli.chat.settings")
states = import_module("dflash_mlx.cli.chat.state")


class RecordedState(states.ChatState):
    def __init__(self, *args: Any, **kwargs: Any):
        self.lines: list[str] = []
        super().__init__(*args, **kwargs)

    def print_line(self, text: str, style: str = "") -> None:
        self.lines.append(text)

    def enter(self, command: str) -> str:
        self.lines.clear()
        commands.dispatch(self, command)
        return "\n".join(self.lines)


def chat_options(*, command: Any = None, **model: Any) -> Any:
    """The options of a chat that got none but these of the model; without a command no tables."""
    ctx = typer.Context(command or TyperCommand("chat"))
    return options.Options(ctx, {}, model=options.ModelOptions(**model))


def start_dialogue(
    backend: Any, settings: GenerationOptions, *, quiet: bool = True, autosaves: bool = True
) -> Any:
    """A conversation in this process, without the screen of a chat."""
    return dialogue.Dialogue(
        backend,
        output.Output(quiet=quiet),
        settings=settings,
        display=dialogue.DisplaySettings(),
        autosaves=autosaves,
    )


def recorded_chat(cli_app: typer.Typer, pair: Pair) -> RecordedState:
    """A chat whose only option is the model A; it uses `pair`."""
    begin = GenerationOptions(mode="dflash")
    talk = start_dialogue(backends.LocalBackend(pair), begin, autosaves=False)
    command = typer.main.get_command(cli_app).commands["chat"]  # type: ignore[attr-defined]
    state = RecordedState(talk, talk.out, chat_options(model="A", command=command))
    state.options = state.options.changed(**settings.present_values(state))
    return state
