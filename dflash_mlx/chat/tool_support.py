"""Whether a model can be told of tools, and its calls be read."""

from typing import Protocol

from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx.errors import DFlashError

from .call_formats import call_format
from .template import Template, TemplateOptions

TOOL = {"type": "function", "function": {"name": "probe", "description": "?", "parameters": {}}}


class CallsTools(Protocol):
    """What is asked of a target."""

    template: Template
    tokenizer: TokenizerWrapper


def without_tools(target: CallsTools) -> str | None:
    """Why this model cannot call tools, as the end of a sentence; None where it can."""
    sample = [{"role": "user", "content": "?"}]
    try:
        told = target.template.write(sample, TemplateOptions(tools=[TOOL]))
        told = told != target.template.write(sample)
    except DFlashError:
        told = False
    if not told:
        return "does not call tools"
    if call_format(target.tokenizer) is None:
        return "calls tools in a form that cannot be read"
    return None
