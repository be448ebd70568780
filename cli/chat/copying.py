"""`/copy`: the last answer, or a block of code in it, to the clipboard."""

from dflash_mlx.errors import UsageError

from ..terminal.clipboard import copy_to_clipboard
from ..terminal.markdown_rules import make_parser
from .state import ChatState


def copy_answer(state: ChatState, argument: str) -> None:
    """`/copy` and `/copy code [n]`."""
    if not state.dialogue.chat.turns:
        raise UsageError("nothing was said yet.", hint="type a prompt first")
    answer = state.dialogue.chat.turns[-1].answer
    word, _, number = argument.partition(" ")
    if not argument:
        state.print_line(f"  copied {copy_to_clipboard(answer)}", "dim")
        return
    if word != "code" or (number and not number.strip().isdecimal()):
        raise UsageError(
            f"/copy cannot be '{argument}'.", hint="/copy, /copy code, or /copy code 2"
        )
    blocks = code_blocks(answer)
    if not blocks:
        raise UsageError("the last answer has no code.", hint="/copy takes all of it")
    chosen = int(number) if number else len(blocks)
    if not 1 <= chosen <= len(blocks):
        raise UsageError(
            f"the last answer has no block {chosen} of code.", hint=f"give 1 to {len(blocks)}"
        )
    copied = copy_to_clipboard(blocks[chosen - 1])
    state.print_line(f"  block {chosen} of {len(blocks)} copied {copied}", "dim")


def code_blocks(text: str) -> list[str]:
    """The blocks of code in Markdown, without their fences."""
    tokens = make_parser(blocks_only=True).parse(text)
    return [token.content for token in tokens if token.type in ("fence", "code_block")]
