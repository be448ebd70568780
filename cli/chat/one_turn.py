"""One more turn of the chat that was saved last, for `dflash generate --continue`."""

from dataclasses import replace
from typing import TYPE_CHECKING

from dflash_mlx.errors import UsageError

from ..terminal.output import Output
from .chat_file import ChatFile
from .start import latest_chat_name
from .turn import Chat

if TYPE_CHECKING:
    from dflash_mlx import Pair
    from dflash_mlx.remote.session import Server


def load_latest(saved: ChatFile, *, raw: bool, compare: bool) -> Chat:
    """The chat that was saved last, which `saved` then holds."""
    for flag, given in (("--raw", raw), ("--compare", compare)):
        if given:
            raise UsageError(
                f"--continue and {flag} do not go together.", hint="leave one of them out"
            )
    return saved.load(latest_chat_name())


def keep_turn(saved: ChatFile, chat: Chat, source: "Pair | Server", out: Output) -> None:
    """Save a chat with its new turn, and say so when that is under another name."""
    _, left = saved.save(replace(chat, model=source.target_name, draft=source.draft_name))
    if left is not None:
        out.warn(f"'{left}' was changed by another dflash: this chat is now '{saved.name}'")
