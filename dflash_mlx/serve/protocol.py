"""What all APIs share: errors and settings."""

import logging
from dataclasses import dataclass, field

from starlette.responses import JSONResponse

from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.options import GenerationOptions

# Errors

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
    """A request that cannot be answered: the HTTP status and a sentence.

    param: the field of the body. code: OpenAI's error code. retry_after: seconds.
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
        return NAMES.get(self.status, "api_error")

    @property
    def headers(self) -> dict[str, str]:
        headers = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers

    def openai(self) -> dict[str, object]:
        error = {"message": self.message, "type": self.kind}
        return {"error": {**error, "param": self.param, "code": self.code}}

    def anthropic(self) -> dict[str, object]:
        """The error object of Anthropic's API.

        Its SDK's tool runner asks for a thread first. With these details it goes on without one.
        """
        error: dict[str, object] = {"type": self.kind, "message": self.message}
        if self.param == "thread":
            code = "thread_unsupported_request"
            error["details"] = {"error_code": code, "unsupported": ["thread"]}
        return {"type": "error", "error": error}

    def ollama(self) -> dict[str, object]:
        return {"error": self.message}


def wrong(place: str, why: str) -> Problem:
    """A field of a body that is wrong; `place` is its path, and `why` ends the sentence."""
    return Problem(400, f"{place} {why}.", place)


STOPPED = Problem(503, "the server was stopped.")


def problem_of(error: DFlashError, *, bad_request: bool) -> Problem:
    """An error of the engine; `bad_request`: the request caused it."""
    hint = f" ({error.hint})" if error.hint else ""
    status = 400 if bad_request or isinstance(error, UsageError) else 500
    return Problem(status, error.message.rstrip(".") + "." + hint)


def as_problem(error: Exception) -> Problem:
    """Any exception as a problem. Unexpected ones are logged with their traceback."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, DFlashError):
        return problem_of(error, bad_request=False)
    logger.error("a request failed", exc_info=error)
    return Problem(500, "the server failed at this request: its log says where.")


# Settings of a server

MIB = 1 << 20
MAX_TOKENS = 4096  # of an answer by default


@dataclass(frozen=True, slots=True)
class Limits:
    """Requests beyond these limits are refused, or their connection is closed.

    body_bytes: of a body. body_seconds: to receive a body. write_seconds: for a client to
    receive an event. choices: the largest `n`. queue: answers that may wait; more get status 429.
    """

    body_bytes: int = 16 * MIB
    body_seconds: float = 30.0
    write_seconds: float = 60.0
    choices: int = 16
    queue: int = 64


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a server.

    names: of the model in requests; answers have the first. options: defaults for fields that a
    request leaves out; its `max_tokens` of None is 4,096. context: the limit for prompt and answer
    in tokens; None is the target's. keepalive: seconds without an event after which a stream sends
    a ping. hosts: allowed names in the Host header; empty allows all. origins: of web pages that
    may use the server.
    """

    names: tuple[str, ...]
    options: GenerationOptions = field(default_factory=lambda: GenerationOptions(mode="auto"))
    max_sequences: int = 16
    context: int | None = None
    keepalive: float = 5.0
    limits: Limits = field(default_factory=Limits)
    api_key: str | None = None
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()

    @property
    def max_tokens(self) -> int:
        return self.options.max_tokens or MAX_TOKENS


LATEST = ":latest"  # Ollama's tag, which counts as none

# Errors in the form of each API

ANTHROPIC = "/v1/messages"
OLLAMA = "/api/"


def problem_reply(problem: Problem, path: str) -> JSONResponse:
    if path.startswith(ANTHROPIC):
        body = problem.anthropic()
    else:
        body = problem.ollama() if path.startswith(OLLAMA) else problem.openai()
    return JSONResponse(body, status_code=problem.status, headers=problem.headers)
