"""`--help` with options under headings, and `dflash help`: the pages of the guide."""

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from dflash_mlx.errors import UsageError
from dflash_mlx.files.folder import is_sidecar
from dflash_mlx.gone import gone
from dflash_mlx.text import did_you_mean

from .options import DisplayOptions, option_groups
from .terminal.output import Output

TYPED = "dflash.typed"  # key of a context's `meta`: the words of the command line

# The headings of `--help`, in their order. Options without one come last.
ARGUMENTS = "Arguments"
PANELS = (
    ARGUMENTS,
    *("Model", "Data", "Drafter", "Training", "Server", "Measurement"),
    *("Prompt and answer", "Drafting", "Sampling", "Context and cache", "Output", "Advanced"),
)


class PanelCommand(TyperCommand):
    """A command whose `--help` lists options under the headings of their declarations."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[TYPED] = tuple(args)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for panel, records in panels(self, ctx).items():
            with formatter.section(panel):
                formatter.write_dl(records)


def panels(command: Any, ctx: Any) -> dict[str, list[tuple[str, str]]]:
    """The arguments and options that a command's help lists, by heading, each with its help."""
    found: dict[str, list[tuple[str, str]]] = {panel: [] for panel in (*PANELS, "Options")}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        is_argument = parameter.param_type_name == "argument"
        panel = ARGUMENTS if is_argument else getattr(parameter, "rich_help_panel", "")
        if parameter.name == "help" and found["Output"]:
            panel = "Output"
        if record is not None:
            found[panel or "Options"].append(record)
    return {panel: records for panel, records in found.items() if records}


@option_groups
def help_page(
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="The page to show; none lists them.")
    ] = None,
    *,
    display: DisplayOptions,
) -> None:
    """Show a page of the guide, or list them.

    In a pipe or a file, a page is Markdown.
    """
    out = Output(quiet=display.quiet, plain=display.plain)
    if topic is None:
        width = max(map(len, topics())) + 2
        for name, title in topics().items():
            out.write(f"{name:{width}}{title}\n")
        return
    text = page(topic)
    if not out.stdout_live:
        out.write(text)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(text, hyperlinks=False))


def topics() -> dict[str, str]:
    guide = guide_folder()
    pages = [file.name for file in guide.iterdir() if file.name.endswith(".md")]
    names = sorted(name for name in pages if not is_sidecar(name))
    texts = {name: (guide / name).read_text(encoding="utf-8") for name in names}
    return {
        name.removesuffix(".md").replace("_", "-"): text.split("\n", 1)[0].lstrip("# ")
        for name, text in texts.items()
    }


def page(topic: str) -> str:
    """The Markdown of the page whose name begins with `topic`; UsageError for none or several."""
    asked = topic.lower().replace("_", "-")
    names = [name for name in topics() if name.startswith(asked)]
    name = asked if asked in names or len(names) != 1 else names[0]
    if name not in names:
        hint = did_you_mean(name, topics()) or "`dflash help` lists them"
        raise UsageError(f"the guide has no page '{topic}'.", hint=gone(asked) or hint)
    file = guide_folder() / f"{name.replace('-', '_')}.md"
    return file.read_text(encoding="utf-8")


def guide_folder() -> Any:
    """The folder of the pages; imported here, as the import takes a tenth of `--help`'s time."""
    from importlib.resources import files

    return files("dflash_mlx.guide")
