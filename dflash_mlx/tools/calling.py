"""How one call of a tool is run. Knows tools and calls, no models."""

from dataclasses import replace

from dflash_mlx.errors import DFlashError, first_line

from .call import Call
from .call_messages import arguments_of
from .tool import Tool


def run_call(box: dict[str, Tool], call: Call) -> Call:
    """A call with what came of it; whatever goes wrong is its result.

    What is no Exception (Ctrl-C) is raised.
    """
    tool, arguments = box.get(call.name), arguments_of(call)
    if tool is None:
        known = ", ".join(box) or "none"
        return failed(call, f"there is no tool '{call.name}'; there are: {known}")
    if arguments is None:
        return failed(call, f"the arguments are no JSON object: {call.arguments:.200}")
    try:
        result = tool.run(arguments)
    except DFlashError as error:
        return failed(call, error.message)
    except Exception as error:  # a tool may raise any exception
        return failed(call, f"{type(error).__name__}: {first_line(error)}")
    return replace(call, result=result, state="done")


def failed(call: Call, why: str) -> Call:
    """A call that went wrong, as the model is told."""
    text = why if "error" in why.lower() else f"error: {why}"
    return replace(call, result=text, state="failed")
