"""Files of many prompts: their lines, checked before a model is loaded, and the lines of answers.

A line is a JSON string, {"prompt": ...} or {"messages": [...]}, with a "key" if wanted; or a
request in the format of OpenAI's batches, whose body is checked as the server does:
https://platform.openai.com/docs/guides/batch
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from dflash_mlx.constrained.grammar import form_fault
from dflash_mlx.errors import UsageError
from dflash_mlx.files.checkpoint import read_lines, value_of
from dflash_mlx.files.line_file import LineFile
from dflash_mlx.grammar import Grammar
from dflash_mlx.session import Prompt

from .answer_request import AnswerRequest, Completion, usage
from .app import APIS, FIELDS, Api
from .body import Fields, read_body
from .fields import CHAT, COMPLETIONS, RESPONSES
from .protocol import Problem, find_model
from .runner import Runner

OPENAI_APIS = {api.path: api for api in APIS if api.path in (CHAT, COMPLETIONS, RESPONSES)}
OPENAI_FIELDS = ("custom_id", "method", "url", "body")
PLAIN_FIELDS = ("key", "prompt", "messages")
FORMAT_HINT = (
    'a line is a JSON string, {"prompt": "..."} or {"messages": [...]}, or has the custom_id, '
    "method, url and body of OpenAI's batches"
)
ID_START = "batch_req_"
LINE_START = b'{"id": "' + ID_START.encode()
SYSTEM = ("system", "developer")


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the options of a run say for all lines.

    names: of the model. digest: of everything else that an answer depends on. system: the system
    prompt. raw: prompts are sent without the chat template. form: whether answers have a schema or
    a grammar.
    """

    names: tuple[str, ...]
    digest: str
    system: str | None = None
    raw: bool = False
    form: bool = False


class Line(Protocol):
    """A line of a batch. key: names its answer. id: changes with all that the answer depends on."""

    @property
    def key(self) -> str: ...
    @property
    def id(self) -> str: ...

    async def answer(self, runner: Runner) -> tuple[dict[str, Any], int]:
        """The line of the answer, and its number of tokens. Raises Problem."""
        ...

    def refused(self, problem: Problem) -> dict[str, Any]:
        """The line in place of an answer that cannot be given."""
        ...


@dataclass(frozen=True, slots=True)
class PlainLine:
    """A prompt, answered with the options of the run."""

    key: str
    id: str
    prompt: Prompt

    async def answer(self, runner: Runner) -> tuple[dict[str, Any], int]:
        """The answer with the fields of `dflash generate --json`. Raises Problem."""
        request = AnswerRequest(self.prompt, runner.settings.options)
        choices = await runner.prepare(request)
        (completion,) = await runner.complete(request, choices)
        return self._line(completion, request.options.structure), completion.stats.generated

    def _line(self, completion: Completion, form: Grammar | None) -> dict[str, Any]:
        stats = completion.stats
        line: dict[str, Any] = {
            "id": self.id,
            "key": self.key,
            "text": completion.text,
            "reasoning": completion.thinking,
            "finish_reason": completion.finish_reason,
            "usage": {
                "prompt": stats.prompt_tokens,
                "cached": stats.cached_tokens,
                "generated": stats.generated,
            },
            "seed": stats.seed,
        }
        if stats.notes:
            line["notes"] = stats.notes
        if form is not None and (fault := form_fault(form, completion.text)):
            line["error"] = f"the text does not follow its schema or grammar ({fault:.200})."
        return line

    def refused(self, problem: Problem) -> dict[str, Any]:
        """The line with the reason."""
        return {"id": self.id, "key": self.key, "error": problem.message}


@dataclass(frozen=True, slots=True)
class OpenAILine:
    """A request of OpenAI's batch format. ignored: fields of its body without an effect."""

    key: str
    id: str
    api: Api
    body: Any
    ignored: tuple[str, ...]

    async def answer(self, runner: Runner) -> tuple[dict[str, Any], int]:
        """The answer as the server's, in a line of OpenAI's format. Raises Problem."""
        to_request = self.api.to_request
        request = await runner.threads.run(to_request, self.body, runner.pair, runner.settings)
        request = request.with_ignored(self.ignored)
        choices = await runner.prepare(request)
        token_limit = choices[0].prompted.request.token_limit
        request = replace(request, token_limit=token_limit)
        body = await self.api.writer(self.body, request, runner).complete(choices)
        generated = usage([choice.session.stats for choice in choices])["completion_tokens"]
        return self._line(200, body), generated

    def _line(self, status: int, body: dict[str, Any]) -> dict[str, Any]:
        response = {"status_code": status, "request_id": self.id, "body": body}
        return {"id": self.id, "custom_id": self.key, "response": response, "error": None}

    def refused(self, problem: Problem) -> dict[str, Any]:
        """The line with the error that the server would send."""
        return self._line(problem.status, problem.openai())


# The lines of a file


def read_batch(path: Path, defaults: Defaults) -> list[Line]:
    """All lines of a file but empty ones. Raises UsageError for the first that is wrong."""
    lines = list[Line]()
    numbers: dict[str, int] = {}
    for number, text in enumerate(read_lines(path, FORMAT_HINT), 1):
        if not text.strip():
            continue
        try:
            line = read_line(text, str(number), defaults)
            if line.key in numbers:
                message = f"line {numbers[line.key]} has the key '{line.key}', too."
                raise Problem(400, message, "key")
        except Problem as problem:
            hint = "correct the line; nothing was answered yet" if problem.param else FORMAT_HINT
            raise UsageError(f"line {number} of '{path}': {problem.message}", hint=hint) from None
        numbers[line.key] = number
        lines.append(line)
    if not lines:
        raise UsageError(f"there are no prompts in '{path}'.", hint=FORMAT_HINT)
    return lines


def read_line(text: str, key: str, defaults: Defaults) -> Line:
    """A line of either format; `key` is that of a plain one without a key. Raises Problem."""
    try:
        value = value_of(text)
    except ValueError:
        raise Problem(400, "it is not JSON.") from None
    if isinstance(value, str):
        value = {"prompt": value}
    if not isinstance(value, dict):
        raise Problem(400, "it is neither a text nor an object.")
    if not value.keys().isdisjoint(OPENAI_FIELDS):
        return read_openai_line(value, defaults)
    return read_plain_line(value, key, defaults)


def read_plain_line(value: dict[str, Any], key: str, defaults: Defaults) -> PlainLine:
    check_names(value, PLAIN_FIELDS)
    key = value.get("key", key)
    if isinstance(key, bool) or not isinstance(key, str | int) or key == "":
        raise Problem(400, "key must be a text or a number.", "key")
    if ("prompt" in value) == ("messages" in value):
        raise Problem(400, "it must have either a prompt or messages.")
    if "prompt" in value:
        prompt = value["prompt"]
        if not isinstance(prompt, str) or not prompt.strip():
            raise Problem(400, "prompt must be a text that is not empty.", "prompt")
        if not defaults.raw:
            prompt = [{"role": "user", "content": prompt}]
    else:
        prompt = value["messages"]
        check_messages(prompt, defaults)
    if defaults.system is not None:
        assert isinstance(prompt, list)
        prompt = [{"role": "system", "content": defaults.system}, *prompt]
    return PlainLine(str(key), line_id(defaults, prompt), prompt)


def check_messages(messages: Any, defaults: Defaults) -> None:
    """Raise Problem for what is not a chat, or contradicts the options of the run."""
    is_list = isinstance(messages, list) and messages
    if not is_list or not all(isinstance(one, dict) and "role" in one for one in messages):
        raise Problem(400, "messages must be a list of messages, each with a role.", "messages")
    if defaults.raw:
        raise Problem(400, "messages cannot be sent with --raw.", "messages")
    if defaults.system is not None and messages[0]["role"] in SYSTEM:
        raise Problem(400, "it has a system message, and --system gives another.", "messages")


def read_openai_line(value: dict[str, Any], defaults: Defaults) -> OpenAILine:
    check_names(value, OPENAI_FIELDS)
    key = value.get("custom_id")
    if not isinstance(key, str) or not key:
        raise Problem(400, "custom_id must be a text.", "custom_id")
    if value.get("method") != "POST":
        raise Problem(400, "method must be POST.", "method")
    api = OPENAI_APIS.get(str(value.get("url")))
    if api is None:
        raise Problem(400, f"url must be one of {', '.join(OPENAI_APIS)}.", "url")
    for given, flag in (
        (defaults.system is not None, "--system"),
        (defaults.raw, "--raw"),
        (defaults.form, "--schema and --grammar"),
    ):
        if given:
            raise Problem(400, f"{flag} cannot be used for it: its body says all.", "body")
    body = read_body(api.body_model, value.get("body"))
    return OpenAILine(
        key,
        line_id(defaults, [api.path, value["body"]]),
        api,
        body,
        check_body(api, body, defaults),
    )


def check_body(api: Api, body: Any, defaults: Defaults) -> tuple[str, ...]:
    """The fields of a body that have no effect. Raises Problem for all that would be lost."""
    assert isinstance(body, Fields)
    found = FIELDS.check(api.path, body)
    if found.unknown:
        raise Problem(400, f"no API has the field '{found.unknown[0]}'.", found.unknown[0])
    if getattr(body, "stream", None):
        raise Problem(400, "stream cannot be used in a batch.", "stream")
    model = getattr(body, "model", None)
    if model is not None and find_model(model, defaults.names) is None:
        known = f"this run's is '{defaults.names[0]}' (--model)"
        raise Problem(400, f"it is for the model '{model:.100}', and {known}.", "model")
    return found.ignored


def check_names(value: dict[str, Any], known: Sequence[str]) -> None:
    """Raise Problem for a field that a line does not have."""
    for name in value:
        if name not in known:
            message = f"there is no field '{name:.100}': the fields are {', '.join(known)}."
            raise Problem(400, message, name)


def line_id(defaults: Defaults, request: Any) -> str:
    """An id by all that an answer depends on."""
    text = json.dumps([defaults.names[0], defaults.digest, request], sort_keys=True)
    return ID_START + hashlib.sha256(text.encode()).hexdigest()[:32]


# The lines of answers


@dataclass(frozen=True, slots=True)
class Answered:
    """What a file of answers holds. keys: those of the batch's lines that have one.

    errors: how many of them have an error. others: answers of lines that the batch does not have.
    """

    keys: frozenset[str]
    errors: int
    others: int


def has_error(answer: dict[str, Any]) -> bool:
    """Whether a line of the answers has an error, with a text or instead of one."""
    if "key" in answer:
        return "error" in answer
    return answer["response"]["status_code"] != 200


def read_answers(file: LineFile, path: Path, lines: Iterable[Line]) -> Answered:
    """The answers of an earlier run, whose incomplete last line is cut off.

    Raises UsageError for a file of something else, and for an answer to another prompt or with
    other options.
    """
    wanted = {line.key: line for line in lines}
    keys = set[str]()
    errors = others = 0
    for number, text in enumerate(file.lines, 1):
        key, answer_id, failed = read_answer(text, number, path)
        if key in keys:
            raise UsageError(
                f"'{path}' has two answers with the key '{key}'.", hint="give --out another file"
            )
        if key not in wanted:
            others += 1
            continue
        if answer_id != wanted[key].id:
            raise UsageError(
                f"line {number} of '{path}' answers the key '{key}' for another prompt, or with "
                "another model or other options.",
                hint="give --out another file, or the options of the first run",
            )
        keys.add(key)
        errors += failed
    if not LINE_START.startswith(file.rest[: len(LINE_START)]):
        raise not_answers(path, len(file.lines) + 1)
    file.cut()
    return Answered(frozenset(keys), errors, others)


def read_answer(text: bytes, number: int, path: Path) -> tuple[str, str, bool]:
    """Key and id of an answer, and whether it has an error."""
    try:
        value = json.loads(text)
        key = value.get("key", value.get("custom_id"))
        if isinstance(key, str) and value["id"].startswith(ID_START):
            return key, value["id"], has_error(value)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass
    raise not_answers(path, number)


def not_answers(path: Path, number: int) -> UsageError:
    return UsageError(
        f"line {number} of '{path}' is not an answer of --batch.", hint="give --out another file"
    )
