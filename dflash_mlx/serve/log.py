"""One line for each request; no prompt is in it unless that was asked for."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dflash_mlx.session import Session

from .job import Job


@dataclass(slots=True)
class Seen:
    """A request as the log tells it. Status 499: the client went before an answer began."""

    method: str
    path: str
    status: int = 499
    began: float = field(default_factory=time.perf_counter)
    job: Job | None = None
    sessions: list[Session] = field(default_factory=list)

    def take(self, job: Job, sessions: list[Session]) -> None:
        """What the request asked for, and the sessions that answer."""
        self.job, self.sessions = job, sessions


@dataclass(frozen=True, slots=True)
class RequestLog:
    """Writes a line for each request to `write`: for people, or with `as_json` for programs."""

    write: Callable[[str], None] = lambda line: None
    as_json: bool = False
    prompts: bool = False

    def ended(self, seen: Seen) -> None:
        """Write the line of a request that has ended."""
        seconds = time.perf_counter() - seen.began
        told: dict[str, object] = {
            "method": seen.method,
            "path": seen.path,
            "status": seen.status,
            "seconds": round(seconds, 3),
        }
        if seen.sessions:
            stats = [session.stats for session in seen.sessions]
            told |= {
                "prompt": stats[0].prompt_tokens,
                "cached": stats[0].cached_tokens,
                "generated": sum(one.generated for one in stats),
                "tokens_per_second": round(stats[0].tokens_per_second, 1),
                "acceptance_length": round(stats[0].acceptance_length, 2),
            }
        if self.prompts and seen.job is not None:
            told["prompt_text"] = seen.job.prompt
        if self.as_json:
            self.write(json.dumps({"time": round(time.time(), 3), **told}, ensure_ascii=False))
            return
        line = f"{seen.status} {seen.method} {seen.path} {seconds:.2f} s"
        if seen.sessions:
            line += (
                f", {told['prompt']} + {told['generated']} tokens, "
                f"{told['tokens_per_second']} tok/s, τ {told['acceptance_length']}"
            )
            if told["cached"]:
                line += f", {told['cached']} cached"
        if "prompt_text" in told:
            line += f"  {json.dumps(told['prompt_text'], ensure_ascii=False)}"
        self.write(line)
