"""Errors that the user can do something about: one sentence, and a hint."""

from collections.abc import Iterable


class DFlashError(Exception):
    """An error to show to the user without a traceback.

    `message` says what is wrong, `hint` what to do about it; both are one sentence.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint:  # so that a traceback shows it
            self.add_note(f"Hint: {hint}")


class UsageError(DFlashError):
    """An argument is wrong; nothing was loaded or computed. The command line exits with 2."""


class PromptTooLong(UsageError):
    """A prompt has more tokens than the context holds, or than the memory does (`memory`)."""

    def __init__(
        self, tokens: int, context: int, *, estimated: bool = False, memory: bool = False
    ) -> None:
        self.tokens = tokens
        about = "about " if estimated else ""
        holder = "this machine's memory" if memory else "the context"
        super().__init__(
            f"the prompt has {about}{tokens:,} tokens, {holder} holds {context:,}.",
            hint="shorten the prompt" + " or take a smaller model" * memory,
        )


class RewindError(DFlashError):
    """A cache cannot rewind: it no longer has the rows or states for it."""


class GPUFault(DFlashError):
    """The GPU has not computed what it was given, for lack of memory or of time.

    What was generated before can be kept, and later answers work again.
    """

    @property
    def note(self) -> str:
        return f"{self.message.rstrip('.')}: the text so far was read again"


class KernelFailed(DFlashError):
    """A kernel raised in the middle of an answer.

    names: its operation, or all that may have raised. replaced: stock MLX computes them from now
    on; else they run one by one to find out which it is.
    """

    def __init__(self, names: Iterable[str], cause: str, *, replaced: bool) -> None:
        self.names = frozenset(names)
        self.replaced = replaced
        super().__init__(
            f"the kernel {' or '.join(sorted(self.names))} failed ({cause}).",
            hint="ask again, without this kernel; dflash doctor --kernels checks it",
        )

    @property
    def note(self) -> str:
        what = "stock MLX replaces it" if self.replaced else "each runs by itself to find it"
        return f"{self.message.rstrip('.')}: {what}"


class ServerLost(DFlashError):
    """The answer of a remote server broke off. The part that arrived can be kept."""


def first_line(error: BaseException) -> str:
    """The start of an error's text, short enough for one sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    if text.endswith(":"):  # names follow
        text = " ".join(lines[:2])
    return text[:200].rstrip(".,")
