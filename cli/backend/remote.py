"""One model of a server."""

from typing import Any

from dflash_mlx.errors import UsageError
from dflash_mlx.options import EFFORTS, GenerationOptions, declared
from dflash_mlx.remote.session import (
    KINDS,
    RemoteServer,
    RemoteSession,
    api_messages,
    prompt_length,
    request_fields,
    thinking_fields,
)

from ..terminal.output import Output
from .base import ModelInfo, ThinkingSwitches

TOKEN_LENGTH = 4  # characters; most tokens are shorter
LOCAL_OPTIONS = [option for option in declared(GenerationOptions) if option.scope == "local"]


class RemoteBackend(RemoteSession):
    """One model of a server. Its features beyond OpenAI's API depend on the kind of server."""

    def __init__(self, server: RemoteServer):
        super().__init__(server)
        self.info = info_of(server)

    def check(self, options: GenerationOptions) -> None:
        for option in LOCAL_OPTIONS:
            if getattr(options, option.name) not in (option.default, option.command_default):
                raise UsageError(
                    f"{option.setting} cannot be sent to a server: its API has no field for it.",
                    hint="leave it out; some options can be given to `dflash serve` instead",
                )
        request_fields(self.server.kind, options)

    def count(self, prompt: Any, options: GenerationOptions) -> int:
        """An estimate from the last prompt that the server counted: it has the tokenizer.

        A shorter prompt gets a proportional share of those tokens; a longer one gets a token more
        per four characters more.
        """
        length = prompt_length(api_messages(prompt), options.tools)
        counted_tokens, counted_length = self.counted
        if length < counted_length:
            return counted_tokens * length // counted_length
        return counted_tokens + (length - counted_length) // TOKEN_LENGTH

    def rows(self, options: GenerationOptions) -> list[tuple[str, str]]:
        return [("server", self.info.title)]

    def finish(self, out: Output) -> None: ...


def info_of(server: RemoteServer) -> ModelInfo:
    """What a server tells of its model: no sampling, no warnings, no reason against tools."""

    def check_thinking(think: bool | None, effort: str | None) -> None:
        if think is False and effort is not None:
            raise UsageError(
                "--no-think and --effort contradict each other.", hint="leave one of them out"
            )
        thinking_fields(think, effort, server.kind)

    kind = KINDS.get(server.kind, "OpenAI-compatible server")
    drafter = f" · drafter {server.draft_name}" if server.draft_name else ""
    return ModelInfo(
        local=False,
        name=server.target_name,
        draft=server.draft_name,
        title=f"{server.model} · {kind} at {server.address.url}{drafter}",
        heading=server.model,
        context_length=server.context_length,
        context=f"{server.context_length:,}" if server.context_length else "unknown",
        # All efforts: the server refuses or ignores what its model does not know.
        thinking=ThinkingSwitches(
            "enable_thinking" if server.kind in KINDS else None, EFFORTS, check_thinking
        ),
        json={
            "model": server.target_name,
            "draft": server.draft_name,
            "server": server.kind or None,
        },
    )
