"""`dflash generate`: one prompt, one answer; or with --batch many."""

from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from dflash_mlx.address import is_address
from dflash_mlx.errors import DFlashError
from dflash_mlx.grammar import Grammar
from dflash_mlx.options import GenerationOptions

from .answer import (
    INTERRUPTED,
    Answer,
    AnswerView,
    View,
    answer_prompt,
    cut_note,
    is_acceptance_low,
    stats_line,
)
from .backend.base import Backend
from .backend.local import LocalBackend, local_backend
from .backend.open import open_backend
from .batch import BatchOptions, answer_batch
from .chat.chat_file import ChatFile, save_turn
from .chat.messages import chat_messages, step_of, turn_of
from .chat.start import with_saved_pair
from .chat.transcript import latest_chat_name
from .chat.view import make_chat_view
from .exclusions import FOR_ANSWER, without_excluded
from .loading import bundled_note
from .options import (
    NO_CACHE,
    CacheOptions,
    DisplayOptions,
    Flags,
    ModelOptions,
    Options,
    PromptOptions,
    RemoteOptions,
    flag,
    option_groups,
)
from .passes import Passes
from .presets import PresetName
from .prompt import prompt_messages, read_grammar, read_prompt
from .report import (
    Comparison,
    LogOptions,
    RunLog,
    answer_report,
    baseline_answer,
    comparable_options,
    comparison_json,
    show_comparison,
    warm_up,
)
from .resolve import fit, resolve, with_preset
from .terminal.output import Output, format_count, stderr_columns
from .terminal.signals import Interrupt
from .terminal.spinner import Spinner


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions:
    file: list[str] | None = flag(
        None,
        "--file -f FILE",
        "Add files, folders or patterns to the prompt; repeatable.",
        "Prompt and answer",
        variable=False,
    )
    preset: PresetName = None
    latest: bool = flag(
        False,
        "--continue -c",
        "Continue the chat that was saved last, and save the answer in it.",
        "Prompt and answer",
        variable=False,
    )
    raw: bool = flag(
        False, "--raw", "Send the text as it is, without the chat template.", "Prompt and answer"
    )
    schema: str | None = flag(
        None, "--schema FILE|JSON", "Make the answer follow this JSON schema.", "Prompt and answer"
    )
    grammar: str | None = flag(
        None,
        "--grammar FILE|TEXT",
        "Make the answer follow this Lark grammar.",
        "Prompt and answer",
    )
    json: bool = flag(
        False, "--json", "Print one JSON object: the answer and all numbers.", "Output"
    )
    jsonl: bool = flag(
        False, "--jsonl", "Print a JSON object for each block, then one for the whole.", "Output"
    )
    stats: bool | None = flag(
        None, "--stats/--no-stats", "Print the numbers on stderr. [on a terminal]", "Output"
    )
    compare: bool = flag(
        False, "--compare", "Also answer without drafts, and compare speed and text.", "Output"
    )
    watch: bool = flag(
        False,
        "--watch",
        "Colour the tokens by the pass that wrote them; show rejected drafts.",
        "Output",
    )

    @property
    def as_data(self) -> bool:
        return self.json or self.jsonl


GROUPS = Flags((ModelOptions, CacheOptions, GenerationOptions, PromptOptions))


@option_groups
def generate(
    ctx: typer.Context,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="The prompt; - reads standard input."),
    ] = None,
    *,
    options: Annotated[Options, GROUPS],
    own: GenerateOptions,
    batch: BatchOptions,
    remote: RemoteOptions,
    display: DisplayOptions,
    log_options: LogOptions,
) -> None:
    """Answer one prompt, or each line of a file.

    \b
      dflash generate "Why is the sky blue?"
      git diff | dflash generate "Review this:" -m qwen3:4b
      dflash generate --batch prompts.jsonl --out answers.jsonl

    The answer goes to stdout, everything else to stderr. Text from a pipe follows the prompt.
    """
    out = Output(quiet=display.quiet, plain=display.plain)
    log = ctx.with_resource(log_options.open("generate", out.warn))
    options = with_preset(options, own.preset)
    if batch.batch is not None:
        options = resolve(options, out)
        grammar = read_grammar(own.schema, own.grammar)
        show_bundled_note(own, options, out)
        answer_batch(batch, options, grammar, raw=own.raw, log=log, out=out)
        return
    text = read_prompt(prompt, own.file or ())
    log.typed = text
    chat_file = ChatFile()
    chat = chat_file.load(latest_chat_name()) if own.latest else None
    options = resolve(
        options,
        out,
        choose=lambda options: options if chat is None else with_saved_pair(options, chat),
        keep_system=own.raw or (chat is not None and chat.system is not None),
    )
    if is_address(options.model.model):  # `resolve` refuses these flags, and leaves variables out
        own = replace(own, raw=False, grammar=None, compare=False)
    without_excluded(options, FOR_ANSWER)
    system = options.prompt.system
    messages = prompt_messages(text, system, raw=own.raw)
    grammar = read_grammar(own.schema, own.grammar, remote=is_address(options.model.model))
    show_bundled_note(own, options, out)
    # There is only one answer, so a cache in memory alone would serve nobody.
    cache = options.cache if options.cache.cache_disk else NO_CACHE
    backend, load_seconds = open_backend(options, cache, remote, out)
    info = backend.info
    out.warn(*info.warnings)
    if info.kv_note and not own.as_data:
        out.note(info.kv_note)
    if chat is not None:
        chat = replace(chat, system=system or chat.system)
        messages = chat_messages(chat, text, calls=not info.no_tools)
    options = fit(options, info, out, raw=own.raw)
    asked = options.generation
    asked = replace(asked, max_tokens=asked.token_limit, grammar=grammar, raw=own.raw)
    if own.compare:
        asked = comparable_options(asked)
    with Spinner(out, "preparing the grammar"):
        backend.check(asked)
    log.loaded(backend, load_seconds, asked)
    run = ask(backend, messages, asked, own, options.prompt, text, log, out)
    if chat is not None and not run.answer.is_empty:
        turns = (*chat.turns, turn_of(text, [step_of(run.answer)]))
        save_turn(chat_file, replace(chat, turns=turns), info, out)
    report(run, backend, asked, own, load_seconds, out)
    backend.finish(out)
    if grammar is not None:
        check_form(run.answer, grammar, remote=not info.local)
    if run.interrupted:
        raise typer.Exit(130)


@dataclass(frozen=True, slots=True)
class Run:
    """comparison: with the answer of plain decoding. passes: of the answer, with --watch."""

    answer: Answer
    passes: Passes | None
    comparison: Comparison | None
    interrupted: bool


def show_bundled_note(own: GenerateOptions, options: Options, out: Output) -> None:
    note = bundled_note(options.model)
    if note and own.compare:
        out.info(note, "dim")
    elif note and not own.as_data:
        out.note(note)


def ask(
    backend: Backend,
    prompt: Any,
    options: GenerationOptions,
    own: GenerateOptions,
    prompt_options: PromptOptions,
    typed: str,
    log: RunLog,
    out: Output,
) -> Run:
    """Answer the prompt, with --compare plainly too; KeyboardInterrupt after two Ctrl-C."""
    passes = None
    view: View
    if own.watch:
        passes = Passes(local_backend(backend, "--watch").pair.tokenizer.decode, out)
        view = make_chat_view(
            out,
            show_thinking=prompt_options.show_thinking,
            passes=passes,
            thinking_hint="--show-thinking",
        )
    elif own.as_data:
        view = AnswerView(out, stdout="blocks" if own.jsonl else "nothing")
    else:
        view = AnswerView(out, thinking=prompt_options.show_thinking)
    with Interrupt() as interrupt:
        if own.compare:
            warm_up(local_backend(backend).pair, prompt, options, out, interrupt)
        if own.file and backend.info.local:
            count = format_count(backend.count(prompt, options), "token", "tokens")
            out.note(f"  the prompt has {count}")
        answer = answer_prompt(
            backend,
            prompt,
            options,
            view,
            interrupt,
            on_end=lambda answer: log.answered(answer, backend, options, typed),
        )
        if interrupt.requested_twice:
            raise KeyboardInterrupt
        comparison = None
        interrupted = answer.finish_reason == INTERRUPTED
        if own.compare and not interrupted:
            pair = local_backend(backend).pair
            baseline = baseline_answer(pair, prompt, options, out, interrupt)
            interrupted = baseline.finish_reason == INTERRUPTED
            comparison = None if interrupted else Comparison.of(answer, baseline, options)
    return Run(answer, passes, comparison, interrupted)


def report(
    run: Run,
    backend: Backend,
    options: GenerationOptions,
    own: GenerateOptions,
    load_seconds: float,
    out: Output,
) -> None:
    answer = run.answer
    stats = answer.stats
    comparison = run.comparison
    if own.as_data:
        document = {"type": "answer"} if own.jsonl else {}
        document |= answer_report(answer, backend, options, load_seconds)
        document |= comparison_json(comparison) if comparison else {}
        out.write_json(document)
    elif comparison:
        show_comparison(comparison, backend.info, options, out)
    for note in stats.notes:
        out.warn(note)
    show_stats = out.stderr_is_tty and not (out.quiet or own.as_data or comparison)
    if own.stats is not None:
        show_stats = own.stats
    if show_stats:
        line = stats_line(answer, backend.info, options.token_limit, stderr_columns())
        out.info(line, "dim")
    elif answer.finish_reason == "length" and not own.as_data:
        out.warn(cut_note(answer, backend.info, options.token_limit))
    if run.passes is not None and not out.quiet:
        out.info(run.passes.legend(stats), "dim")
    if answer.finish_reason == "stop" and not answer.text.strip() and not own.as_data:
        out.warn(empty_note(answer))
    drafter_warning = backend.drafter_warning() if isinstance(backend, LocalBackend) else []
    out.warn(*drafter_warning)
    # The mode auto drafts less by itself.
    quiet = drafter_warning or own.as_data or options.mode == "auto"
    if is_acceptance_low(stats) and not quiet:
        out.note(
            f"  low acceptance: τ {stats.acceptance_length:.2f} with drafts in "
            f"{stats.verifies} passes; drafting may cost more than it saves. "
            "Try --no-draft",
            "warning",
        )


def empty_note(answer: Answer) -> str:
    """The warning for an answer without text, which a pipe would not show."""
    if not answer.thinking:
        return "the answer is empty"
    return (
        "the answer is empty: the model wrote only thinking "
        "(--show-thinking prints it, --no-think switches it off)"
    )


def check_form(answer: Answer, grammar: Grammar, *, remote: bool) -> None:
    """Raise DFlashError for a finished answer that does not follow its form."""
    from dflash_mlx.constrained.grammar import form_fault

    if answer.finish_reason == INTERRUPTED:
        return
    text = answer.text.lstrip("\n") if answer.thinking else answer.text
    fault = form_fault(grammar, text)
    if fault and answer.finish_reason == "length":
        raise DFlashError(
            "the answer was cut before its schema or grammar was complete.",
            hint="give a larger --max-tokens, or a form with shorter answers",
        )
    if fault:
        raise DFlashError(
            f"the answer does not follow its schema or grammar ({fault:.200}).",
            hint="this server may not know response_format; `dflash serve`, vLLM, SGLang and "
            "llama-server do"
            if remote
            else "--stop may have ended it early",
        )
