"""`--log FILE`: a run as JSON lines, for bug reports. Numbers and settings, no prompts or answers.

start: versions and machine. pair: models, how they run, settings. answer: the object of `generate
--json` without its words, and its rounds, each [seconds since the answer began, tokens, drafts
checked, drafts accepted]. call: of a tool. error: what was shown. end: the exit.

Knows numbers, not where they are from.
"""

import json
import os
import platform
import re
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from dflash_mlx import __version__
from dflash_mlx.errors import DFlashError, UsageError

from .json_report import answer_report, pair_report
from .options import option
from .terminal.interrupt import LeaveChat

if TYPE_CHECKING:
    from dflash_mlx import Pair, Session
    from dflash_mlx.remote.session import RemoteSession, Server

    from .answer import Answer

WORDS = ("text", "reasoning", "tokens")  # of an answer's report
QUOTED = re.compile(r"'[^'\n]*'")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Where a run is logged, and whether with its words."""

    log: Annotated[
        Path | None,
        option("--log", metavar="FILE", help="Add JSON lines with all timings, for bug reports."),
    ] = None
    log_text: Annotated[bool, option("--log-text", help="Prompts and answers there, too.")] = False

    def open(self, command: str, warn: Callable[[str], None]) -> "RunLog":
        """The log of a command; without a file one that writes nothing.

        UsageError for words without a file, DFlashError for a file that cannot be written. Where
        that happens later, `warn` is told and the run goes on.
        """
        if self.log is None:
            if self.log_text:
                raise UsageError("--log-text needs --log.", hint="say where: --log FILE")
            return RunLog(None)
        path = self.log.expanduser()
        try:
            file = open(path, "a", encoding="utf-8", opener=private)  # noqa: SIM115
        except OSError as error:
            raise DFlashError(
                f"the log '{path}' cannot be written ({error.strerror}).",
                hint="give --log a file that you may write",
            ) from None
        log = RunLog(file, with_text=self.log_text, warn=warn)
        log.started(command)
        return log


def private(path: str, flags: int) -> int:
    """Open a file that only its owner can read, if it is new."""
    return os.open(path, flags, 0o600)


class RunLog:
    """The log of one run; a context manager that adds what ends the run.

    `typed` is what was typed last: errors do not repeat it, unless `with_text`.
    """

    def __init__(
        self,
        file: IO[str] | None,
        *,
        with_text: bool = False,
        warn: Callable[[str], None] = lambda text: None,
    ):
        self.typed = ""
        self._file, self._with_text, self._warn = file, with_text, warn
        self._began = time.perf_counter()

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        code: Any = 0
        if isinstance(error, LeaveChat | SystemExit):
            code = error.code
        elif isinstance(error, typer.Exit):
            code = error.exit_code
        elif isinstance(error, KeyboardInterrupt):
            code = 130
        elif isinstance(error, DFlashError):
            code = 2 if isinstance(error, UsageError) else 1
            self.error(error.message, error.hint)
        elif error is not None:
            code = 1
            frames = [f"{f.filename}:{f.lineno} {f.name}" for f in traceback.extract_tb(trace)]
            self.error(f"{type(error).__name__}: {error}", frames=frames)
        self.write("end", code=code)
        if self._file is not None:
            self._file.close()
            self._file = None

    def write(self, kind: str, **fields: Any) -> None:
        """Add one line; a fault of the disk is told once, and ends the log."""
        if self._file is None:
            return
        line = {"type": kind, "at": round(time.perf_counter() - self._began, 4), **fields}
        try:
            self._file.write(json.dumps(line, default=str) + "\n")
            self._file.flush()
        except OSError as error:
            self._file = None
            self._warn(f"the log ends here: it cannot be written ({error.strerror})")

    def started(self, command: str) -> None:
        """The first line."""
        self.write(
            "start",
            time=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            command=command,
            versions={
                "dflash": __version__,
                **{name: version(name) for name in ("mlx", "mlx-lm")},
                "python": platform.python_version(),
            },
            machine=platform.platform(),
            processor=platform.processor() or platform.machine(),
        )

    def loaded(self, pair: "Pair | Server", load_seconds: float, settings: dict[str, Any]) -> None:
        """A pair, and the settings that answers have."""
        if self._file is not None:
            self.write("pair", **pair_report(pair), load_s=round(load_seconds, 4), **settings)

    def answered(
        self,
        answer: "Answer",
        session: "Session | RemoteSession",
        options: dict[str, Any],
        prompt: Any,
    ) -> None:
        """An answer, or what there is of it; `prompt` is kept only with the words."""
        if self._file is None:
            return
        report = answer_report(answer, session, options, 0.0)
        del report["timing"]["load_s"]
        if not self._with_text:
            report = {name: value for name, value in report.items() if name not in WORDS}
        words = {"prompt": prompt} if self._with_text else {}
        rounds = [[round(one[0], 4), *one[1:]] for one in answer.rounds]
        self.write("answer", **report, calls=len(answer.calls), rounds=rounds, **words)

    def called(self, name: str, state: str, seconds: float, **words: str) -> None:
        """A call of a tool; its arguments and its result are words."""
        told = words if self._with_text else {}
        self.write("call", tool=name, state=state, seconds=round(seconds, 4), **told)

    def error(self, message: str, hint: str = "", **more: Any) -> None:
        """An error that was shown, or that ends the run."""
        if self._with_text:
            self.write("error", message=message, hint=hint, **more)
        else:  # a hint may list chats, which are named after prompts
            self.write("error", message=without_words(message, self.typed), **more)


def without_words(message: str, typed: str) -> str:
    """A message without what it quotes, and without the words that were typed, from four letters.

    It may quote a path, which may be that of a chat named after its prompt.
    """
    message = QUOTED.sub("'…'", message)
    for word in sorted(set(re.findall(r"[^\s'\",;:()]{4,}", typed)), key=len, reverse=True):
        message = message.replace(word, "…")
    return message
