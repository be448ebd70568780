"""What a request is refused with. Knows HTTP; each API writes it in its own shape."""

import logging
from dataclasses import dataclass

from dflash_mlx.errors import DFlashError, UsageError

logger = logging.getLogger("dflash.serve")
INVALID = "invalid_request_error"
NAMES = {
    400: INVALID,
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: INVALID,
    408: "timeout_error",
    413: "request_too_large",
    415: INVALID,
    429: "rate_limit_error",
    503: "overloaded_error",
}


@dataclass(eq=False)
class Problem(Exception):
    """A request that cannot be answered: the HTTP status, a sentence, and what it is about.

    param: the field of the request. code: OpenAI's word for it. retry_after: seconds.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    retry_after: int | None = None

    def __str__(self) -> str:
        return self.message

    @property
    def kind(self) -> str:
        """OpenAI's and Anthropic's word for problems with this status."""
        return NAMES.get(self.status, "api_error")

    @property
    def headers(self) -> dict[str, str]:
        """What the answer's head says of it."""
        found = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.status == 401:
            found["WWW-Authenticate"] = "Bearer"
        return found

    def openai(self) -> dict[str, object]:
        """The error object of OpenAI's API."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def anthropic(self) -> dict[str, object]:
        """The error object of Anthropic's API."""
        return {"type": "error", "error": {"type": self.kind, "message": self.message}}


def of_error(error: DFlashError, *, asked: bool) -> Problem:
    """An error of the engine; `asked`: it came from what was asked, not from answering."""
    hint = f" ({error.hint})" if error.hint else ""
    status = 400 if asked or isinstance(error, UsageError) else 500
    return Problem(status, error.message.rstrip(".") + "." + hint)


def as_problem(error: Exception) -> Problem:
    """Any exception as a problem; one that nobody foresaw goes to the log with its traceback."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, DFlashError):
        return of_error(error, asked=False)
    logger.error("a request failed", exc_info=error)
    return Problem(500, "the server failed at this request: its log says where.")
