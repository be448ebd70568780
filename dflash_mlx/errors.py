"""What goes wrong for a reason the user can mend: one sentence, and one about what to do."""


class DFlashError(Exception):
    """A fault to show to the user without a traceback.

    `message` says what is wrong, `hint` what to do about it; both are one sentence.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(DFlashError):
    """An argument is wrong; nothing was loaded or computed. The command line exits with 2."""


class PromptTooLong(UsageError):
    """A prompt has more tokens than the context holds."""

    def __init__(self, tokens: int, context: int, *, estimated: bool = False) -> None:
        self.tokens = tokens
        about = "about " if estimated else ""
        super().__init__(
            f"the prompt has {about}{tokens:,} tokens, the context holds {context:,}.",
            hint="shorten the prompt",
        )


class RewindError(DFlashError):
    """A cache no longer holds what going back would need."""


class RankLost(DFlashError):
    """A machine of the group is gone; this process can compute nothing any more."""


class ServerLost(DFlashError):
    """An answer of another machine's server broke off; what came of it can be kept."""


def first_line(error: BaseException) -> str:
    """The start of an error's text, short enough for one sentence."""
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__)[:200].rstrip(".")
