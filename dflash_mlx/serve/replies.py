"""Answers that are one JSON object, problems in the shape of the API that was asked."""

from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from .problem import Problem

ANTHROPIC = "/v1/messages"


def problem_body(problem: Problem, path: str) -> dict[str, Any]:
    """A problem as the API of a path writes it."""
    return problem.anthropic() if path.startswith(ANTHROPIC) else problem.openai()


def problem_reply(problem: Problem, path: str) -> JSONResponse:
    """A problem as an answer."""
    body = problem_body(problem, path)
    return JSONResponse(body, status_code=problem.status, headers=problem.headers)


async def send_problem(problem: Problem, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request with a problem."""
    await problem_reply(problem, scope["path"])(scope, receive, send)
