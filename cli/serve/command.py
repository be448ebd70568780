"""`dflash serve`: an HTTP server with the endpoints that other programs use."""

import os
import signal
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.types import Effort

from ..cache_options import CacheOptions, finish_writing
from ..first_run import choose_pair
from ..kernel_notes import kernel_warnings
from ..loading import bundled_note, load_pair
from ..model_names import with_known_target
from ..modes import resolve_models
from ..option_tables import with_model_defaults
from ..options import (
    DisplayOptions,
    ModelOptions,
    PromptOptions,
    SamplingOptions,
    option,
    option_groups,
)
from ..recommended import with_recommended
from ..terminal.output import Output, format_bytes
from ..terminal.spinner import Spinner
from ..thinking import check_thinking, resolve_thinking

if TYPE_CHECKING:
    from dflash_mlx.serve.app import Server

NEEDED = ("starlette", "uvicorn", "pydantic", "prometheus_client")
WARM_UP, WARM_UP_TOKENS = "1 2 3 4 5 6 7 8", 32


@option_groups
def serve(
    ctx: typer.Context,
    *,
    model_options: ModelOptions,
    host: Annotated[
        str, option("--host", metavar="ADDRESS", help="Where to listen. [this machine only]")
    ] = "127.0.0.1",
    port: Annotated[
        int, option("--port", min=0, max=65535, metavar="N", help="0 takes a free one.")
    ] = 8080,
    api_key: Annotated[
        str | None, option("--api-key", metavar="KEY", help="What clients have to send.")
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        option("--allow-host", metavar="NAME", help="A further name of this server; repeatable."),
    ] = None,
    cors: Annotated[
        list[str] | None,
        option("--cors", metavar="ORIGIN", help="Let pages of this origin in; repeatable."),
    ] = None,
    alias: Annotated[
        list[str] | None,
        option("--alias", metavar="NAME", help="What clients may call the model; repeatable."),
    ] = None,
    max_sequences: Annotated[
        int, option("--max-sequences", min=1, max=256, metavar="N", help="Answers at once.")
    ] = 16,
    queue: Annotated[
        int, option("--queue", min=0, max=10_000, metavar="N", help="Requests that may wait.")
    ] = 64,
    context: Annotated[
        int | None,
        option("--context", min=2, metavar="N", help="Most tokens a request. [the model's]"),
    ] = None,
    cache_options: CacheOptions,
    sampling_options: SamplingOptions,
    think: Annotated[
        bool | None, option("--think/--no-think", help="Thinking, where a request does not say.")
    ] = None,
    effort: Annotated[
        Effort | None, option("--effort", metavar="LEVEL", help="How hard to think, likewise.")
    ] = None,
    log_json: Annotated[
        bool, option("--log-json", help="A JSON object a request on stdout.")
    ] = False,
    log_prompts: Annotated[bool, option("--log-prompts", help="Prompts in the log.")] = False,
    display_options: DisplayOptions,
) -> None:
    """Serve a pair to other programs, by OpenAI's and Anthropic's APIs.

    Sampling options are what a request does not say itself. Ctrl-C lets running answers end for ten
    seconds.
    """
    out = Output(quiet=display_options.quiet, plain=display_options.plain)
    check_packages()
    check_address(host, api_key)
    from dflash_mlx.serve.app import listen

    model_options = with_known_target(resolve_models(ctx, model_options), out)
    if model_options.model is None and model_options.draft is None:
        model_options = choose_pair(model_options, out, interactive=False)
    model_options, sampling_options, prompt_options = with_model_defaults(
        ctx, model_options, sampling_options, PromptOptions(think=think, effort=effort)
    )
    sampling_options.params()  # a wrong value is told before anything is loaded
    if note := bundled_note(model_options):
        out.note(note)
    listening = listen(host, port)
    pair, seconds = load_pair(model_options, out, cache_options)
    params = with_recommended(ctx, sampling_options, pair, out).params()
    out.warn(*kernel_warnings(pair.target.kernels))
    prompt_options = resolve_thinking(ctx, prompt_options, pair.target.template, out)
    check_thinking(pair.target.template, prompt_options)
    from dflash_mlx.distributed.group import world
    from dflash_mlx.serve.app import LOCAL_HOSTS, RequestLog, Server, is_loopback, run
    from dflash_mlx.serve.protocol import Limits, Settings

    hosts = tuple(allow_host or ())
    settings = Settings(
        names=(pair.target_name, *(alias or ())),
        mode=model_options.mode,
        max_sequences=max_sequences,
        context=context,
        sampling=params,
        stop=tuple(sampling_options.stop or ()),
        options={
            "block_size": model_options.block_size,
            "accept": model_options.accept,
            "tree_budget": model_options.tree_budget,
            "think": prompt_options.think,
            "reasoning_effort": prompt_options.effort,
        },
        limits=Limits(queue=queue),
        api_key=api_key,
        hosts=(*LOCAL_HOSTS, host.lower(), *hosts) if is_loopback(host) else hosts,
        origins=tuple(cors or ()),
        **({"max_tokens": sampling_options.max_tokens} if sampling_options.max_tokens else {}),
    )
    log = RequestLog(lambda line: write_line(line, out, data=log_json), log_json, log_prompts)
    server = Server(pair, settings, log)
    warm_up(server, out)
    show_address(server, listening.getsockname()[1], host, seconds, out)
    group = world()
    if group is not None:
        group.when_lost = lambda error: os.kill(os.getpid(), signal.SIGINT)
    try:
        run(server.app, listening)
    except KeyboardInterrupt:
        if group is not None and group.lost is not None:
            raise group.lost from None
        raise typer.Exit(130) from None
    finally:
        finish_writing(pair, out)
        out.note("stopped")


def write_line(line: str, out: Output, *, data: bool) -> None:
    """A line of the log: data to stdout, words to stderr unless --quiet."""
    if data:
        out.write(line + "\n")
    elif not out.quiet:
        out.info(line)


def check_packages() -> None:
    """DFlashError where the server's packages are not installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise DFlashError(
            f"the server needs the package {missing[0]}.",
            hint="in this project's folder: pip install '.[serve]'",
        )


def check_address(host: str, api_key: str | None) -> None:
    """UsageError for a server that others could use without a key."""
    from dflash_mlx.serve.app import is_loopback

    if api_key is not None and not api_key.strip():
        raise UsageError("the API key is empty.", hint="give --api-key a secret, or leave it out")
    if not is_loopback(host) and api_key is None:
        raise UsageError(
            f"at {host} every machine of the network could use this server.",
            hint="give --api-key KEY, or leave --host at 127.0.0.1",
        )


def warm_up(server: "Server", out: Output) -> None:
    """Answer once and measure at all depths, so that no answer waits for that later."""
    from dflash_mlx import api
    from dflash_mlx.engine.worker_thread import mlx_thread

    pair, settings = server.pair, server.settings
    with Spinner(out, "measuring this machine"):
        api.generate(
            pair,
            pair.target.encode(WARM_UP),
            mode=settings.mode,
            max_tokens=WARM_UP_TOKENS,
            block_size=settings.options["block_size"],
            tree_budget=settings.options["tree_budget"],
        )
        mlx_thread().call(pair.engine.scheduler.measure, server.runner.context)


def show_address(server: "Server", port: int, host: str, seconds: float, out: Output) -> None:
    """Print where the server is, what answers, and how much fits."""
    pair, runner = server.pair, server.runner
    name = f"[{host}]" if ":" in host and not host.startswith("[") else host
    draft = pair.draft_label or "no drafter"
    each = runner.need(runner.context)
    fits = min(server.settings.max_sequences, runner.admission.room // each)
    out.info(f"dflash serve · {pair.target_name} · {draft} · {server.settings.mode}", "bold")
    out.info(f"  OpenAI     http://{name}:{port}/v1")
    out.info(f"  Anthropic  http://{name}:{port}")
    out.info(
        f"  {runner.context:,} tokens of context, {format_bytes(each)} each; "
        f"{fits} of {server.settings.max_sequences} fit at once; loaded in {seconds:.1f} s",
        "dim",
    )
    key = "an API key is needed" if server.settings.api_key else "no API key"
    out.info(f"  {key} · /health · /metrics · Ctrl-C stops", "dim")
