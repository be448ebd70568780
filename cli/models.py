"""`dflash models`: lists, downloads and deletes models in the Hub's cache."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dflash_mlx.address import model_name
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.models.ability import ALL_DRAFTS

from .confirm import check_can_ask, confirm
from .downloads import download_models
from .exclusions import WHEN_RESOLVED, without_excluded
from .loading import ability_of, model_here
from .options import (
    BUNDLED,
    DisplayOptions,
    ModelOptions,
    Options,
    command_group,
    option,
    option_groups,
    parse_bits,
)
from .sources import sources_of
from .terminal.output import Output, align_columns, format_bytes, screen_width

if TYPE_CHECKING:
    from dflash_mlx.hub.local import LocalModel


# The table of `dflash models list`

OWN_HEAD = "in the target's files"
FOLDER = "folder"  # the state of a model that is not in the Hub's cache
FIT_WORDS = {"ok": "yes", "warn": "tight", "refuse": "no"}
TITLES = ("TARGET", "DRAFTER", "KIND", "BLOCK", "SIZE", "MEMORY", "CACHED", "FITS")
# Columns to show, from the widest terminal to the narrowest; if none fits, a row takes two lines.
COLUMN_SETS = (
    tuple(range(len(TITLES))),
    (0, 1, 2, 5, 6, 7),
    (0, 2, 4, 5, 6, 7),
    (0, 4, 5, 6, 7),
    (0, 4, 6, 7),
)
RIGHT_ALIGNED = (3, 4, 5)  # columns of numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A known pair, or another model on this machine; sizes in bytes.

    published: the target as its authors published it. licence: the drafter's. lacks: why it cannot
    run yet. path: of a model that is not in the Hub's cache. gguf: in this format, which mlx-lm
    does not read. ability: what a model without a known drafter can do with drafts.
    """

    target: str
    published: str = ""
    draft: str | None = None
    kind: str = ""
    block: int | None = None
    target_bytes: int | None = None
    draft_bytes: int | None = None
    memory_bytes: int | None = None
    estimated: bool = False
    cached: str = "no"
    fits: str | None = None
    lacks: str = ""
    licence: str = ""
    note: str = ""
    path: str | None = None
    gguf: bool = False
    ability: str | None = None

    def data(self) -> dict[str, Any]:
        fields = asdict(self)
        lacks = fields.pop("lacks")
        del fields["published"]
        return {**fields, "supported": not lacks, "reason": lacks or None}

    def cells(self) -> tuple[str, ...]:
        size = ("~" if self.estimated else "") + gigabytes(self.target_bytes)
        if self.draft is not None:
            size += f"+{gigabytes(self.draft_bytes)}"
        memory = gigabytes(self.memory_bytes)
        return (
            self.target,
            OWN_HEAD if self.draft == self.target else self.draft or "–",
            self.kind or "–",
            str(self.block or "–"),
            f"{size} GB",
            memory if memory == "?" else f"~{memory} GB",
            self.cached,
            "GGUF" if self.gguf else self.verdict,
        )

    @property
    def verdict(self) -> str:
        if not self.lacks:
            return self.fits or "?"
        return "not yet" if self.draft else "no"


def gigabytes(count: int | None) -> str:
    return "?" if count is None else f"{count / 1e9:.1f}"


def known_rows(kv_bits: int | None = None, paths: Mapping[str, str] | None = None) -> list[Row]:
    """The pairs of the registry; those that this version can run come first.

    Of a quantised target only the pair with the drafter that is taken without `--draft`; the
    published one has a row for each drafter. The memory is that of 4,096 tokens, with a KV cache
    of `kv_bits` where it can be quantised. paths: of the models in folders, by their names.
    """
    from dflash_mlx.hub.cache import cached_state
    from dflash_mlx.hub.kinds import KINDS
    from dflash_mlx.hub.registry import best_known, entries

    best = best_known()
    listed = [entry for entry in entries() if not entry.quant or entry in best]
    states = {repo: cached_state(repo) for repo in {r for entry in listed for r in entry.repos}}
    rows = []
    for entry in sorted(listed, key=lambda entry: bool(entry.lacks)):
        memory = entry.memory(kv_bits=kv_bits)
        cached, *drafter = (states[repo] for repo in entry.repos)
        if cached == "yes" and drafter:  # a drafter alone does not count: targets may share it
            cached = {"yes": "yes", "partly": "partly", "no": "target only"}[drafter[0]]
        path = (paths or {}).get(entry.target.lower()) if cached == "no" else None
        rows.append(
            Row(
                target=entry.target,
                published=entry.published,
                draft=entry.draft or None,
                kind=KINDS.get(entry.kind, ""),
                block=entry.block or None,
                target_bytes=entry.target_bytes,
                draft_bytes=entry.draft_bytes,
                memory_bytes=memory,
                estimated=entry.estimated,
                cached=FOLDER if path else cached,
                path=path,
                fits=None if memory is None else fits(memory),
                lacks=entry.lacks,
                licence=entry.licence,
                note=entry.note,
            )
        )
    return rows


def fits(size: int) -> str:
    from dflash_mlx.models.memory import memory_fit, working_set

    return FIT_WORDS[memory_fit(size, working_set())]


def other_rows(in_folders: Sequence["LocalModel"]) -> list[Row]:
    """The models on this machine that belong to no known pair: those of the cache first."""
    from dflash_mlx.hub.cache import cached_bytes, cached_gguf, cached_repos, cached_state
    from dflash_mlx.hub.local import GGUF, in_cache
    from dflash_mlx.hub.registry import entries, find
    from dflash_mlx.models.memory import weight_bytes

    paired = {name for entry in entries() for name in (entry.target, entry.draft)}
    targets = {model.name: model for model in in_cache()}
    rows = []
    for repo in (*cached_repos(), *cached_gguf()):
        if repo not in paired:
            model = targets.get(repo)
            cached = "yes" if model else cached_state(repo)
            rows.append(other_row(repo, cached_bytes(repo), cached, model))
    for model in in_folders:
        if find(model.name) is None or model.lacks:
            pattern = "*.gguf" if model.lacks == GGUF else "*.safetensors"
            rows.append(other_row(model.name, weight_bytes(model.folder, pattern), FOLDER, model))
    return rows


def other_row(name: str, size: int, cached: str, model: "LocalModel | None") -> Row:
    """model: None for a drafter, and for one that is downloaded only in part."""
    from dflash_mlx.hub.local import GGUF

    ability, lacks = None, model.lacks if model else ""
    if model and not lacks:
        try:
            ability = ability_of(model.folder, name)
        except DFlashError as error:
            lacks = f"cannot run: {error.message.rstrip('.')}"
    return Row(
        target=name,
        target_bytes=size,
        cached=cached,
        fits=None if lacks or cached not in ("yes", FOLDER) else fits(size),
        lacks=lacks,
        path=str(model.folder) if model and cached == FOLDER else None,
        gguf=lacks == GGUF,
        ability=ability,
    )


def short_rows(rows: list[Row]) -> list[Row]:
    """The models that are downloaded, at least in part, then those that fit this machine.

    Of a target that is not downloaded only the smallest version, which its short name means, and
    only if it has a drafter. Of one that is, the drafters that are downloaded, else the first one.
    """
    here = {row.target for row in rows if row.cached == "yes"}
    downloaded = []
    for row in rows:
        if row.cached == "yes" or (row.cached != "no" and row.target not in here):
            downloaded.append(row)
            here.add(row.target)
    published = {row.published for row in downloaded}
    smallest: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: row.target_bytes or 1 << 62):
        if row.draft and not row.lacks and row.fits in ("yes", "tight"):
            smallest.setdefault(row.published, row)
    return downloaded + [row for name, row in smallest.items() if name not in published]


def show_rows(rows: list[Row], out: Output) -> None:
    """Write the table, and below it on a terminal what its words mean."""
    cells = [TITLES, *(row.cells() for row in rows)]
    lines, hidden = fit_rows(cells, shutil.get_terminal_size().columns)
    out.write_table(cells, lines)
    if not out.stdout_is_tty:
        return
    if hidden:
        out.note(f"a wider terminal also shows {', '.join(hidden)}")
    out.note("size: target + drafter on disk; ~ marks an estimate")
    for row in rows:
        if row.verdict == "no" and row.lacks and not row.gguf:
            out.note(f"{row.target} {row.lacks}")
        elif row.ability not in (None, ALL_DRAFTS.words):
            out.note(f"{row.target}: {row.ability}")
    if any(row.verdict == "not yet" for row in rows):
        out.note("not yet: this version does not run the target's type or the drafter's kind")
    if any(row.gguf for row in rows):
        out.note("GGUF: mlx-lm does not read this format; the same model in another one does run")
    if any(row.cached == FOLDER for row in rows):
        out.note("folder: not in the Hub's cache; --json has its path")


def fit_rows(cells: list[tuple[str, ...]], width: int) -> tuple[list[str], list[str]]:
    """The lines of the table in as many columns as fit, and the titles of the other columns."""
    for shown in COLUMN_SETS:
        right = [place for place, column in enumerate(shown) if column in RIGHT_ALIGNED]
        lines = align_columns([[row[column] for column in shown] for row in cells], right)
        if screen_width(lines[0]) <= width:
            break
    else:
        shown = COLUMN_SETS[-1]
        lines = []
        for row in cells[1:]:
            lines += [row[0], f"  {row[4]} · cached {row[6]} · fits {row[7]}"]
    return lines, [title for number, title in enumerate(TITLES) if number not in shown]


models = command_group("List, download and delete models.")


@models.command("list")
@option_groups
def show(
    *,
    every: Annotated[
        bool, typer.Option("--all", "-a", help="List all known pairs, in all versions.")
    ] = False,
    kv_bits: Annotated[
        int | None,
        option(
            "--kv-bits",
            metavar="4|8|none",
            parser=parse_bits,
            help="Count the memory with a quantised KV cache, as with `dflash chat --kv-bits`.",
        ),
    ] = None,
    models: Annotated[
        list[Path] | None,
        option(
            "--models",
            "--model-folders",
            metavar="FOLDER",
            help="Also list the models in this folder; repeatable.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
    display: DisplayOptions,
) -> None:
    """List your models, and those that fit this machine.

    Your models are those of the Hub's cache, of LM Studio, and of your own folders: --models, or
    model-folders in the config file. Nothing is asked of the Hub. Sizes with ~ are estimates; the
    memory is that of both models with 4,096 tokens of context, where a quantised target's drafter
    is held in 8 bits (--draft-bits).
    """
    from dflash_mlx.hub.local import in_folders

    out = Output(quiet=display.quiet, plain=display.plain)
    options = ModelOptions(models=models)
    here = list(in_folders(options.folders))
    paths = {model.name.lower(): model.source for model in here if not model.lacks}
    rows = [*known_rows(kv_bits, paths), *other_rows(here)]
    if json:
        out.write_json([row.data() for row in rows])
        return
    listed = rows if every else short_rows(rows)
    show_rows(listed, out)
    if hidden := len(rows) - len(listed):
        out.note(f"{hidden} more, and other versions of these: dflash models list --all")
    if kv_bits:
        out.note(f"memory with a KV cache of {kv_bits} bits, where it can be quantised")
    chosen = model_here(options, out)
    out.note(f"`dflash chat` uses {'the bundled pair' if chosen is None else chosen.model}")
    out.note("-m also takes short names: qwen3:4b, or what follows the /")


@models.command("pull")
@option_groups
def pull(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(metavar="ID", help="Target: a Hub id, or qwen3:4b.")],
    *,
    draft: Annotated[
        str | None,
        typer.Option("--draft", "-d", metavar="ID", help="Drafter; else the target's known one."),
    ] = None,
    no_draft: Annotated[bool, typer.Option("--no-draft", help="Download only the target.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    display: DisplayOptions,
) -> None:
    """Download a model and its drafter, or their newest versions.

    Stopped or cut off, the same command goes on from there. Files that are downloaded already are
    read, and damaged ones are downloaded again.
    """
    out = Output(quiet=display.quiet, plain=display.plain)
    without_excluded(Options(ctx, sources_of(ctx)), WHEN_RESOLVED)
    if model == BUNDLED and draft is None:
        out.info("the bundled pair comes with the package: there is nothing to download")
        return
    model = target_id(model, out)
    if draft is not None:
        draft = checked_id(model_name(draft))
    check_can_ask(yes)
    try:
        download(model, draft, no_draft, yes, out)
    except KeyboardInterrupt:
        out.info(f"stopped; a second `dflash models pull {model}` goes on from here")
        raise typer.Exit(130) from None


def download(target: str, draft: str | None, no_draft: bool, yes: bool, out: Output) -> None:
    """Say which drafter is downloaded, or why none is; show the sizes, ask, and download both."""
    from dflash_mlx.hub import registry

    if draft is None and not no_draft:
        entry = registry.find(target)
        draft = entry.repos[1] if entry and len(entry.repos) > 1 else None
        if entry is None or not entry.draft:
            out.info(
                f"no drafter is known for '{target}': give one with --draft, make one with"
                " `dflash train`, or go on with lookup, which copies from earlier text",
                "warning",
            )
        elif entry.lacks:
            draft = None
            out.info(f"no drafter is downloaded: {entry.lacks}; lookup drafts instead", "warning")
    download_models([repo for repo in (target, draft) if repo is not None], out, yes=yes)


@models.command("rm")
@option_groups
def rm(
    model: Annotated[str, typer.Argument(metavar="ID", help="A Hub id.")],
    *,
    draft: Annotated[
        bool, typer.Option("--draft", help="Delete the target's known drafter as well.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    display: DisplayOptions,
) -> None:
    """Delete a model from the Hub's cache."""
    from dflash_mlx.hub import registry
    from dflash_mlx.hub.cache import cached_bytes, remove, repo_folder, repo_of

    out = Output(quiet=display.quiet, plain=display.plain)
    model = target_id(model, out)
    if not repo_folder(model).is_dir():
        raise DFlashError(
            f"'{model}' is not in the cache.", hint="`dflash models list` shows what is"
        )
    if is_part_of_cached(model):
        raise DFlashError(
            f"'{repo_of(model)}' is in the cache as a whole, not only its head.",
            hint=f"`dflash models rm {repo_of(model)}` deletes all of it",
        )
    repos = [model]
    if draft:
        drafter = registry.drafter_of(model)
        if drafter is None:
            raise DFlashError(f"no drafter is known for '{model}'.", hint="delete it by its own id")
        if is_part_of_cached(drafter):
            out.info(f"{repo_of(drafter)} stays: the whole model is here, not only its head")
        elif drafter != model and repo_folder(drafter).is_dir():
            repos.append(drafter)
    check_can_ask(yes)
    sizes = {repo: cached_bytes(repo) for repo in repos}
    for repo, count in sizes.items():
        out.info(f"{repo} · {format_bytes(count)}")
    confirm(f"Delete {format_bytes(sum(sizes.values()))}?", "nothing was deleted", out, yes=yes)
    freed = sum(remove(repo) for repo in repos)
    out.note(f"{format_bytes(freed)} freed")


def is_part_of_cached(name: str) -> bool:
    """Whether a name means the head of a model that the cache holds completely."""
    from dflash_mlx.hub.cache import cached_state, is_head_only, repo_of

    return is_head_only(name) and cached_state(repo_of(name)) == "yes"


def target_id(name: str, out: Output) -> str:
    """A Hub id; that of a short name is printed. Raises UsageError for other names."""
    from dflash_mlx.hub.registry import find_target

    given = model_name(name)
    target = find_target(given) or given
    if target != name and not out.quiet:
        out.info(f"'{name}' is {target}", "dim")
    return checked_id(target)


def checked_id(name: str) -> str:
    if name.count("/") != 1 or name.startswith((".", "/", "~")) or name.endswith("/"):
        from dflash_mlx.hub.local import did_you_mean

        raise UsageError(
            f"'{name}' is not a Hub id.",
            hint=did_you_mean(name) or "give owner/model, as on the Hub",
        )
    return name
