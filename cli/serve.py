"""`dflash serve`: an HTTP server with the APIs of OpenAI, Anthropic and Ollama."""

import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_mlx.errors import UsageError
from dflash_mlx.files.programs import Notice
from dflash_mlx.options import GenerationOptions
from dflash_mlx.serve.keep_alive import KEEP_ALIVE, parse_keep_alive

from .awake import awake
from .backend.local import LocalBackend
from .keys import server_key
from .loading import (
    bundled_note,
    choose_pair,
    load_pair,
    prepare_libraries,
)
from .log_file import LogFile
from .offers import Offers
from .options import (
    CacheOptions,
    DisplayOptions,
    Flags,
    ModelOptions,
    Options,
    PromptOptions,
    flag,
    option_groups,
)
from .resolve import fit, resolve, sampling_note
from .service import ServiceOptions, address, install, uninstall
from .terminal.output import Output, format_bytes, format_count
from .terminal.spinner import Spinner

if TYPE_CHECKING:
    from dflash_mlx.serve.app import Server
    from dflash_mlx.serve.protocol import Settings

WARM_UP = "1 2 3 4 5 6 7 8"
WARM_UP_TOKENS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    host: str = flag(
        "localhost", "--host ADDRESS", "Address to listen on. [only this machine]", "Server"
    )
    port: int = flag(
        8080, "--port N", "Port to listen on; 0 takes a free one.", "Server", min=0, max=65535
    )
    api_key: str | None = flag(None, "--api-key KEY", "Key that clients must send.", "Server")
    api_key_file: Path | None = flag(
        None, "--api-key-file FILE", "Read that key from this file.", "Server"
    )
    allow_host: list[str] | None = flag(
        None,
        "--allow-host NAME",
        "Another host name that clients may use for this server; repeatable.",
        "Advanced",
    )
    cors: list[str] | None = flag(
        None, "--cors ORIGIN", "Allow web pages of this origin; repeatable.", "Advanced"
    )
    alias: list[str] | None = flag(
        None, "--alias NAME", "Another name for the model; repeatable.", "Server"
    )
    keep_alive: float = flag(
        KEEP_ALIVE,
        "--keep-alive TIME",
        "Unload a model after this time without a request, such as 10m; -1 never.",
        "Server",
        parser=parse_keep_alive,
    )
    allow_pull: bool = flag(False, "--allow-pull", "Let requests download known models.", "Server")
    max_sequences: int = flag(
        16, "--max-sequences N", "Answers at the same time.", "Server", min=1, max=256
    )
    queue: int = flag(
        64, "--queue N", "Requests that may wait for a place.", "Advanced", min=0, max=10_000
    )
    context: int | None = flag(
        None,
        "--context N",
        "Maximum tokens of prompt and answer together. [the model's]",
        "Context and cache",
        min=2,
    )
    let_sleep: bool = flag(
        False, "--let-sleep", "Let a Mac go to sleep by itself, as a service does.", "Advanced"
    )
    log_file: Path | None = flag(
        None,
        "--log-file FILE",
        "Write all output to this file; it and 4 older ones have 10 MB each.",
        "Output",
    )
    log_json: bool = flag(
        False, "--log-json", "Log one JSON object per request, on stdout.", "Output"
    )
    log_prompts: bool = flag(False, "--log-prompts", "Include prompts in the log.", "Output")


GROUPS = Flags(
    (ModelOptions, CacheOptions, GenerationOptions, PromptOptions),
    without=("system", "show_thinking"),
)


@option_groups
def serve(
    ctx: typer.Context,
    *,
    options: Annotated[Options, GROUPS],
    own: ServeOptions,
    service: ServiceOptions,
    display: DisplayOptions,
) -> None:
    """Serve the models of this machine to other programs.

    \b
      dflash serve                                   all, at http://127.0.0.1:8080
      dflash serve -m qwen3:4b --install             one, at each login (macOS)
      dflash serve --host 0.0.0.0 --api-key SECRET   for other machines

    The server speaks the APIs of OpenAI (/v1), Anthropic (/v1/messages) and Ollama (/api). Sampling
    options are for requests that do not say how to sample. Ctrl-C gives running answers ten seconds
    to end.
    """
    log_file = None
    if own.log_file is not None and not service.install and not service.uninstall:
        log_file = LogFile(own.log_file)  # before it is asked what the output is
    out = Output(quiet=display.quiet, plain=display.plain)
    if service.uninstall:
        uninstall(ctx, out)
        return
    prepare_libraries(offline=options.model.offline)  # before the server imports them
    api_key = server_key(ctx)
    check_address(own.host, api_key)
    if service.install:
        install(ctx, own.host, own.port, out)
        return
    from dflash_mlx.serve.listening import listen

    listening = listen(own.host, own.port)
    if not own.let_sleep:
        ctx.with_resource(awake())
    server, seconds = start(options, own, api_key, log_file, out)
    context = server.first.runner.context
    if own.context is not None and own.context > context:
        out.warn(f"--context {own.context:,}: this model holds {context:,} tokens")
    warm_up(server, out)
    port = listening[0].getsockname()[1]
    show_address(server, port, own.host, seconds, out)
    notice = None if api_key else Notice(address=address(own.host, port))
    try:
        run_until_stopped(server, listening, out)
    finally:
        if notice is not None:
            notice.remove()
        for served in server.models.loaded:
            LocalBackend(served.pair).finish(out)
        out.note("stopped")


def start(
    options: Options,
    own: ServeOptions,
    api_key: str | None,
    log_file: LogFile | None,
    out: Output,
) -> tuple["Server", float]:
    """The server, with its first model loaded, and the seconds that took.

    A model that the options name stays loaded, and is the only one.
    """
    from dflash_mlx.serve.access_log import AccessLog
    from dflash_mlx.serve.app import Server

    asked = resolve(options, out, choose=lambda options: choose_target(options, out))
    if note := bundled_note(asked.model):
        out.note(note)
    pair, seconds = load_pair(asked.model, out, asked.cache)
    info = LocalBackend(pair).info
    generation = fit(asked, info, out, recommended=True).generation
    if sampling := sampling_note(info, generation.sampling, "--sampling recommended"):
        out.note(sampling)
    out.warn(*info.warnings)
    if info.kv_note:
        out.note(info.kv_note)
    warned = set[str]()

    def on_answered(line: str) -> None:
        write_line(line, out, data=own.log_json, dated=log_file is not None)
        for served in server.models.loaded:
            warnings = LocalBackend(served.pair).drafter_warning()
            if warnings and served.name not in warned:
                warned.add(served.name)
                out.warn(*warnings)
        if log_file is not None:
            log_file.rotate()

    folders = options.model.folders
    offers = Offers(options, folders, out, allow_pull=own.allow_pull)
    server = Server(
        pair,
        settings_of(served_name(pair.target_name, folders), generation, own, api_key),
        AccessLog(on_answered, own.log_json, own.log_prompts),
        offers=offers if offers_all(options) else None,
        keep_alive=own.keep_alive,
        cache_ram=asked.cache.cache_ram,
    )
    return server, seconds


def offers_all(options: Options) -> bool:
    """Whether requests may name other models, because no option names one."""
    model = options.model
    return model.model is None and model.draft is None and model.adapter is None


def choose_target(options: Options, out: Output) -> Options:
    """The options with a pair that suits this machine, unless they name one."""
    if options.model.model is not None or options.model.draft is not None:
        return options
    chosen = choose_pair(options.model, out, interactive=False)
    return options.changed(model=chosen.model, draft=chosen.draft)


def settings_of(
    name: str, options: GenerationOptions, own: ServeOptions, api_key: str | None
) -> "Settings":
    from dflash_mlx.serve.guard import LOCAL_HOSTS, is_loopback
    from dflash_mlx.serve.protocol import Limits, Settings

    hosts = tuple(own.allow_host or ())
    if is_loopback(own.host):
        hosts = (*LOCAL_HOSTS, own.host.lower(), *hosts)
    return Settings(
        names=(name, *(own.alias or ())),
        options=options,
        max_sequences=own.max_sequences,
        context=own.context,
        limits=Limits(queue=own.queue),
        api_key=api_key,
        hosts=hosts,
        origins=tuple(own.cors or ()),
    )


def served_name(target: str, folders: Sequence[Path]) -> str:
    """The name of a target in requests: as it is offered, else its id or its folder's name."""
    from dflash_mlx.hub.local import in_folders

    folder = Path(target)
    if not folder.is_dir():
        return target
    offered = (model.name for model in in_folders(folders) if model.source == target)
    return next(offered, folder.resolve().name)


def run_until_stopped(server: "Server", listening: list[socket], out: Output) -> None:
    """Serve until Ctrl-C, which exits with 130, or SIGTERM (143)."""
    from dflash_mlx.serve.listening import STOP_SECONDS, run

    def on_stop() -> None:
        admission = server.models.admission
        if admission.running or admission.waiting:
            out.warn(
                f"stopping: running answers have {STOP_SECONDS} seconds to finish; Ctrl-C again "
                "ends them now"
            )

    def on_term(number: int, frame: object) -> None:
        raise typer.Exit(128 + number)  # uvicorn sends the signal again when it has ended

    before = signal.signal(signal.SIGTERM, on_term)
    try:
        run(server, listening, on_stop)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def write_line(line: str, out: Output, *, data: bool, dated: bool) -> None:
    """Write a line of the log: JSON to stdout, text to stderr unless --quiet.

    dated: with the date before the time of day. The JSON has both. A full disk ends no answer.
    """
    with suppress(OSError):
        if data:
            out.write(line + "\n")
        elif not out.quiet:
            out.info(f"{datetime.now():{'%Y-%m-%d ' if dated else ''}%H:%M:%S} {line}")


def check_address(host: str, api_key: str | None) -> None:
    """Raise UsageError for a server that other machines could use without a key."""
    from dflash_mlx.serve.guard import is_loopback

    if api_key is not None and not api_key.strip():
        raise UsageError("the API key is empty.", hint="give --api-key a secret, or leave it out")
    if not is_loopback(host) and api_key is None:
        raise UsageError(
            f"at {host} every machine of the network could use this server.",
            hint="give --api-key KEY, or --api-key-file, or leave --host out",
        )


def warm_up(server: "Server", out: Output) -> None:
    """Check the kernels and answer once, so that no request waits for that."""
    from dflash_mlx import api
    from dflash_mlx.engine.worker_thread import mlx_thread

    pair = server.first.pair
    settings = server.settings
    with Spinner(out, "warming up", has_line=True):
        mlx_thread().call(pair.engine.finish_work)
        api.generate(
            pair,
            pair.encode(WARM_UP),
            mode=settings.options.mode,
            max_tokens=WARM_UP_TOKENS,
            block_size=settings.options.block_size,
            tree_budget=settings.options.tree_budget,
        )


def show_address(server: "Server", port: int, host: str, seconds: float, out: Output) -> None:
    pair = server.first.pair
    runner = server.first.runner
    url = address(host, port)
    draft = f"drafter {pair.draft_label}" if pair.draft_label else "no drafter"
    sequence_bytes = server.first.pair.engine.sequence_bytes(runner.context)
    fitting = min(server.settings.max_sequences, runner.admission.max_bytes // sequence_bytes)
    mode = server.settings.options.mode
    out.info(f"dflash serve · model {pair.target_name} · {draft} · mode {mode}", "bold")
    out.info(f"  OpenAI     {url}/v1")
    out.info(f"  Anthropic  {url}")
    out.info(f"  Ollama     {url}")
    out.info(f"  browser    {url}")
    out.info(
        f"  {runner.context:,} tokens of context, {format_bytes(sequence_bytes)} each; "
        f"{fitting} of {server.settings.max_sequences} fit at once; loaded in {seconds:.1f} s",
        "dim",
    )
    if (others := len(server.models.offers()) - 1) > 0:
        out.info(
            f"  {format_count(others, 'other model', 'other models')} can be asked for: "
            "`dflash ps --all`",
            "dim",
        )
    key = "an API key is needed" if server.settings.api_key else "no API key"
    out.info(f"  {key} · /health · /metrics · Ctrl-C stops", "dim")
