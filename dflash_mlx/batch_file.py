"""Answers files of many prompts with one pair, many at once, as the server does.

A line of such a file is a plain text, a JSON string, {"prompt": ...} or {"messages": [...]}, with a
"key" if wanted. All lines are checked before a model is loaded.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_mlx.answer import Answer
from dflash_mlx.constrained.grammar import form_fault
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.errors import UsageError
from dflash_mlx.files.checkpoint import read_lines, value_of
from dflash_mlx.files.line_file import LineFile
from dflash_mlx.gone import gone
from dflash_mlx.grammar import Grammar
from dflash_mlx.pair import Pair
from dflash_mlx.serve.access_log import AccessLog
from dflash_mlx.serve.answer_request import AnswerRequest
from dflash_mlx.serve.models import Models
from dflash_mlx.serve.protocol import Problem, Settings, wrong
from dflash_mlx.serve.runner import Metrics, Runner
from dflash_mlx.serve.streams import tasks_of
from dflash_mlx.session import Prompt

FIELDS = ("key", "prompt", "messages")
FORMAT_HINT = 'a line is a text, a JSON string, {"prompt": "..."} or {"messages": [...]}'
ID_START = "batch_req_"
LINE_START = b'{"id": "' + ID_START.encode()
SYSTEM = ("system", "developer")


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the options of a run say for all lines.

    name: the model's. digest: of everything else that an answer depends on. system: the system
    prompt. raw: prompts are sent without the chat template.
    """

    name: str
    digest: str
    system: str | None = None
    raw: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A prompt. key: names its answer. id: changes with all that the answer depends on."""

    key: str
    id: str
    prompt: Prompt

    async def answer(self, runner: Runner) -> tuple[dict[str, Any], int]:
        """The answer with the fields of `dflash generate --json`. Raises Problem."""
        request = AnswerRequest(self.prompt, runner.settings.options)
        choices = await runner.prepare(request)
        async with aclosing(runner.answer(request, choices)) as parts:
            async for _ in parts:
                pass
        answer = choices[0].answer
        return self._line(answer, request.options.structure), answer.stats.generated

    def _line(self, answer: Answer, form: Grammar | None) -> dict[str, Any]:
        stats = answer.stats
        line: dict[str, Any] = {
            "id": self.id,
            "key": self.key,
            "text": answer.text,
            "reasoning": answer.thinking,
            "finish_reason": answer.finish_reason,
            "usage": {
                "prompt": stats.prompt_tokens,
                "cached": stats.cached_tokens,
                "generated": stats.generated,
            },
            "seed": stats.seed,
        }
        if stats.notes:
            line["notes"] = stats.notes
        if form is not None and (fault := form_fault(form, answer.text)):
            line["error"] = f"the text does not follow its schema or grammar ({fault:.200})."
        return line

    def refused(self, problem: Problem) -> dict[str, Any]:
        return {"id": self.id, "key": self.key, "error": problem.message}


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
    """A line; `key` is that of one without a key. Raises Problem."""
    try:
        # A text is none of JSON, even if it is a number.
        value = value_of(text) if text.lstrip().startswith(('"', "{", "[")) else text.strip()
    except ValueError:
        raise Problem(400, "it is not JSON.") from None
    if isinstance(value, str):
        value = {"prompt": value}
    if not isinstance(value, dict):
        raise Problem(400, "it is neither a text nor an object.")
    for name in value:
        if name not in FIELDS:
            known = f"the fields are {', '.join(FIELDS)}"
            raise Problem(400, f"there is no field '{name:.100}': {gone(name) or known}.", name)
    key = value.get("key", key)
    if isinstance(key, bool) or not isinstance(key, str | int) or key == "":
        raise wrong("key", "must be a text or a number")
    if ("prompt" in value) == ("messages" in value):
        raise Problem(400, "it must have either a prompt or messages.")
    if "prompt" in value:
        prompt: Any = value["prompt"]
        if not isinstance(prompt, str) or not prompt.strip():
            raise wrong("prompt", "must be a text that is not empty")
        if not defaults.raw:
            prompt = [{"role": "user", "content": prompt}]
    else:
        prompt = value["messages"]
        is_list = isinstance(prompt, list) and prompt
        if not is_list or not all(isinstance(one, dict) and "role" in one for one in prompt):
            raise wrong("messages", "must be a list of messages, each with a role")
        if defaults.raw:
            raise wrong("messages", "cannot be sent with --raw")
        if defaults.system is not None and prompt[0]["role"] in SYSTEM:
            message = "it has a system message, and --system gives another."
            raise Problem(400, message, "messages")
    if defaults.system is not None:
        assert isinstance(prompt, list)
        prompt = [{"role": "system", "content": defaults.system}, *prompt]
    all_of_it = json.dumps([defaults.name, defaults.digest, prompt], sort_keys=True)
    digest = hashlib.sha256(all_of_it.encode()).hexdigest()
    return Line(str(key), ID_START + digest[:32], prompt)


# The lines of answers


@dataclass(frozen=True, slots=True)
class Answered:
    """What a file of answers holds. keys: those of the batch's lines that have one.

    errors: how many of them have an error. others: answers of lines that the batch does not have.
    """

    keys: frozenset[str]
    errors: int
    others: int


def read_answers(file: LineFile, path: Path, lines: Iterable[Line]) -> Answered:
    """The answers of an earlier run, whose incomplete last line is cut off.

    Raises UsageError for a file of something else, and for an answer to another prompt or with
    other options.
    """
    wanted = {line.key: line for line in lines}
    keys = set[str]()
    errors = others = 0
    another = "give --out another file"
    not_ours = "line {} of '{}' is not an answer of --batch."
    for number, text in enumerate(file.lines, 1):
        answer = read_answer(text)
        if answer is None:
            raise UsageError(not_ours.format(number, path), hint=another)
        key, answer_id, failed = answer
        if key in keys:
            raise UsageError(f"'{path}' has two answers with the key '{key}'.", hint=another)
        if key not in wanted:
            others += 1
            continue
        if answer_id != wanted[key].id:
            raise UsageError(
                f"line {number} of '{path}' answers the key '{key}' for another prompt, or with "
                "another model or other options.",
                hint=f"{another}, or the options of the first run",
            )
        keys.add(key)
        errors += failed
    if not LINE_START.startswith(file.rest[: len(LINE_START)]):
        raise UsageError(not_ours.format(len(file.lines) + 1, path), hint=another)
    file.cut()
    return Answered(frozenset(keys), errors, others)


def read_answer(text: bytes) -> tuple[str, str, bool] | None:
    """Key and id of an answer, and whether it has an error; None for anything else."""
    try:
        value = json.loads(text)
        key = value.get("key")
        if isinstance(key, str) and value["id"].startswith(ID_START):
            return key, value["id"], "error" in value
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass
    return None


# A run


def batch_runner(pair: Pair, settings: Settings) -> Runner:
    """What answers with a pair, and these settings for all that a request leaves out."""
    models = Models(settings, Metrics(), AccessLog())
    served = models.add(settings.names[0], pair, settings.options, stays=True)
    mlx_thread().call(models.share_memory)
    return served.runner


async def answer_lines(
    lines: Iterable[Line],
    runner: Runner,
    on_answer: Callable[[dict[str, Any], int], None],
    on_failure: Callable[[Line, Problem], None],
) -> None:
    """Answer all lines, as many at once as the runner admits.

    `on_answer(answer, tokens)` gets each line of the answers as soon as it is complete, also one
    that says why a prompt cannot be answered. `on_failure` gets the lines that failed for another
    reason than the prompt, which a later run may answer. Both are called in the event loop. When
    this is cancelled, running answers stop after their round.
    """
    waiting = iter(lines)

    async def work() -> None:
        for line in waiting:
            try:
                answer, tokens = await line.answer(runner)
                on_answer(answer, tokens)
            except Problem as problem:
                if problem.status == 400:
                    on_answer(line.refused(problem), 0)
                else:
                    on_failure(line, problem)

    async with tasks_of(*(work() for _ in range(runner.admission.max_running))) as tasks:
        await asyncio.gather(*tasks)
