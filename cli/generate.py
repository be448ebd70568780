"""`dflash generate`: one prompt, one answer."""

import json as jsonlib
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dflash_mlx.errors import UsageError
from dflash_mlx.remote.client import is_address
from dflash_mlx.remote.session import RemoteSession, Server, request_fields

from .answer import (
    INTERRUPTED,
    Answer,
    JsonLinesView,
    JsonView,
    LiveView,
    PlainView,
    answer_prompt,
    stats_line,
)
from .cache_options import NO_CACHE, CacheOptions, finish_writing
from .chat.messages import ChatFile, chat_messages, keep_turn, load_latest, with_turn
from .chat.start import with_saved_pair
from .kernel_notes import kernel_warnings
from .loading import bundled_note, load_pair
from .model_names import with_known_target
from .modes import check_block, describe_drafting, resolve_models
from .option_sources import option_source
from .option_tables import PresetName, with_model_defaults, with_preset
from .options import (
    DisplayOptions,
    ModelOptions,
    PromptOptions,
    SamplingOptions,
    option,
    option_groups,
)
from .prompt import prompt_messages, read_prompt
from .recommended import with_recommended
from .remote import RemoteOptions, RemoteSwitches, connect, without_local
from .report import (
    Comparison,
    LogOptions,
    answer_report,
    baseline_answer,
    comparison_json,
    sampling_json,
    show_comparison,
    warm_up,
)
from .structure import asked_schema, read_grammar
from .terminal.keys import Interrupt
from .terminal.output import Output, format_count
from .terminal.spinner import Spinner
from .thinking import resolve_thinking

if TYPE_CHECKING:
    from dflash_mlx import Pair, Session
    from dflash_mlx.engine.request import Mode

MAX_TOKENS = 512
# Below this length, measured over this many verifies, drafting costs more than it saves.
LOW_ACCEPTANCE_LENGTH, MIN_VERIFIES = 1.5, 20


@option_groups
def generate(
    ctx: typer.Context,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="The prompt; - reads standard input."),
    ] = None,
    *,
    file: Annotated[
        list[str] | None,
        typer.Option(
            "--file", "-f", metavar="FILE", help="Read the prompt here; repeatable; folders, globs."
        ),
    ] = None,
    preset: PresetName = None,
    model_options: ModelOptions,
    cache_options: CacheOptions,
    sampling_options: SamplingOptions,
    prompt_options: PromptOptions,
    latest: Annotated[
        bool,
        typer.Option(
            "--continue", "-c", help="Go on with the chat that was saved last, and save it."
        ),
    ] = False,
    raw: Annotated[bool, option("--raw", help="Send the text as it is: no chat template.")] = False,
    schema: Annotated[
        str | None,
        option("--schema", metavar="FILE|JSON", help="JSON schema that the answer follows."),
    ] = None,
    grammar: Annotated[
        str | None,
        option("--grammar", metavar="FILE|TEXT", help="Lark grammar that the answer follows."),
    ] = None,
    remote_options: RemoteOptions,
    display: DisplayOptions,
    json: Annotated[bool, option("--json", help="Print one JSON object.")] = False,
    jsonl: Annotated[
        bool,
        option("--jsonl", help="Print a JSON object a block, and the whole at last."),
    ] = False,
    stats: Annotated[
        bool | None,
        option("--stats/--no-stats", help="Numbers on stderr. [on a terminal]"),
    ] = None,
    compare: Annotated[
        bool, option("--compare", help="Also decode plainly, and hold the two side by side.")
    ] = False,
    log_options: LogOptions,
) -> None:
    """Answer one prompt.

    The answer goes to stdout, everything else to stderr. Text on standard input follows the prompt
    after an empty line.
    """
    out = Output(quiet=display.quiet, plain=display.plain)
    log = ctx.with_resource(log_options.open("generate", out.warn))
    model_options, sampling_options, prompt_options = with_preset(
        ctx, preset, model_options, sampling_options, prompt_options
    )
    log.typed = text = read_prompt(prompt, file or ())
    saved = ChatFile()
    chat = load_latest(saved, raw=raw, compare=compare) if latest else None
    model_options = resolve_models(ctx, model_options)
    if chat is not None:
        model_options = with_saved_pair(model_options, chat)
    if remote := is_address(model_options.model):
        model_options = without_local(ctx, model_options, out)
        structure = asked_schema(schema)
    else:
        structure = read_grammar(schema, grammar)
    model_options = with_known_target(model_options, out)
    model_options, sampling_options, prompt_options = with_model_defaults(
        ctx,
        model_options,
        sampling_options,
        prompt_options,
        system=not raw and (chat is None or chat.system is None),
    )
    sampling_options.params()  # a wrong value is told before anything is loaded
    max_tokens = sampling_options.max_tokens or MAX_TOKENS
    request = prompt_messages(text, prompt_options.system, raw=raw)
    if chat is not None:
        chat = replace(chat, system=prompt_options.system or chat.system)
    if compare and model_options.no_draft:
        baseline_flag = (
            "--mode baseline" if option_source(ctx, "no_draft") == "DEFAULT" else "--no-draft"
        )
        raise UsageError(
            f"--compare needs a drafter, and {baseline_flag} leaves it out.",
            hint="leave one of them out",
        )
    if json and jsonl:
        raise UsageError("--json and --jsonl print different things.", hint="leave one of them out")
    if note := bundled_note(model_options):
        if compare:
            out.info(note, "dim")
        elif not (json or jsonl):
            out.note(note)
    if remote:
        source, load_seconds = connect(ctx, model_options, remote_options, out)
        template = RemoteSwitches(source.kind)
    else:
        # One answer goes on from nothing that is in memory.
        kept = cache_options if cache_options.cache_disk else NO_CACHE
        source, load_seconds = load_pair(model_options, out, kept)
        template = source.target.template
        check_block(source, model_options.block_size)
        out.warn(*kernel_warnings(source.target.kernels))
    if chat is not None:
        request = chat_messages(chat, text, calls=calls_tools(source))
    params = with_recommended(ctx, sampling_options, source, out).params()
    prompt_options = resolve_thinking(ctx, prompt_options, template, out, raw=raw)
    options: dict[str, Any] = {
        "sampling": params,
        "max_tokens": max_tokens,
        "stop": sampling_options.stop or (),
        "think": prompt_options.think,
        "reasoning_effort": prompt_options.effort,
        "grammar": structure,
    }
    if isinstance(source, Server):
        request_fields(source.kind, **options)  # what cannot be asked is told at once
    else:
        options |= {
            "block_size": model_options.block_size,
            "accept": model_options.accept,
            "tree_budget": model_options.tree_budget,
            "raw": raw,
        }
        if structure is not None:
            with Spinner(out, "preparing the grammar"):
                source.target.compiler.compile(structure)
    session = new_session(source, model_options.mode)
    log.loaded(source, load_seconds, {"mode": session.mode, **sampling_json(options)})
    view = make_view(out, json=json, jsonl=jsonl, thinking=prompt_options.show_thinking)
    json = json or jsonl
    baseline = None
    with Interrupt() as interrupt:
        if compare and not isinstance(source, Server):
            from dflash_mlx import Session

            warm = Session(source, mode=model_options.mode, shares=False)
            warm_up(warm, request, options, out, interrupt)
        if file and not isinstance(session, RemoteSession):
            count = prompt_length(session, request, options)
            out.note(f"  the prompt has {format_count(count, 'token', 'tokens')}")
        answer = answer_prompt(
            session,
            request,
            view,
            interrupt,
            keep=lambda answer: log.answered(answer, session, options, text),
            **options,
        )
        if interrupt.requested_twice:
            raise KeyboardInterrupt
        if compare and answer.finish_reason != INTERRUPTED and not isinstance(source, Server):
            baseline = baseline_answer(source, request, out, interrupt, **options)
    if chat is not None and answer.said:
        keep_turn(saved, with_turn(chat, text, answer), source, out)
    comparison = None
    if baseline is not None and baseline.finish_reason != INTERRUPTED:
        comparison = Comparison(answer, baseline, sampled=not params.greedy)
    if json:
        document = {"type": "answer"} if jsonl else {}
        document |= answer_report(answer, session, options, load_seconds)
        document |= comparison_json(comparison) if comparison else {}
        out.write(jsonlib.dumps(document, ensure_ascii=out.stdout_is_tty) + "\n")
    elif comparison and not isinstance(source, Server):
        sizes = model_options.block_size, model_options.tree_budget
        drafting = describe_drafting(source, model_options.mode, *sizes)
        show_comparison(comparison, params, model_options.mode, drafting, out)
    stats_by_default = out.stderr_is_tty and not (display.quiet or json or comparison)
    if stats_by_default if stats is None else stats:
        out.info(stats_line(answer.stats, answer.finish_reason, max_tokens), "dim")
    if not json and model_options.mode != "auto":  # auto drafts less by itself
        warn_low_acceptance(answer, out)
    finish_writing(None if isinstance(source, Server) else source, out)
    if INTERRUPTED in (answer.finish_reason, baseline and baseline.finish_reason):
        raise typer.Exit(130)


def new_session(source: "Pair | Server", mode: "Mode") -> "Session | RemoteSession":
    """A session of a pair, or of a server's model."""
    if isinstance(source, Server):
        return RemoteSession(source)
    from dflash_mlx import Session

    return Session(source, mode=mode)


def calls_tools(source: "Pair | Server") -> bool:
    """Whether calls of tools in a chat are sent as such; of a server nobody knows otherwise."""
    if isinstance(source, Server):
        return True
    from dflash_mlx.chat.tool_parser import without_tools

    return not without_tools(source.target)


def prompt_length(session: "Session", request: Any, options: dict[str, Any]) -> int:
    """The tokens of a prompt, the chat template's included."""
    template = {name: options[name] for name in ("think", "reasoning_effort", "raw")}
    return len(session.tokens(request, **template))


def make_view(out: Output, *, json: bool, jsonl: bool, thinking: bool) -> PlainView:
    """The view that fits the options and the terminals on stdout and stderr."""
    if jsonl:
        return JsonLinesView(out)
    if json:
        return JsonView(out)
    return (LiveView if out.stderr_live else PlainView)(out, thinking=thinking)


def warn_low_acceptance(answer: Answer, out: Output) -> None:
    """Print a note when drafting costs more than it saves."""
    tau, verifies = answer.stats.acceptance_length, answer.stats.verifies
    if verifies >= MIN_VERIFIES and tau < LOW_ACCEPTANCE_LENGTH:
        out.note(
            f"  low acceptance: τ {tau:.2f} over {verifies} blocks; drafting may cost more than it "
            "saves. Try --no-draft",
            "warning",
        )
