"""The tools of a chat, which its MCP servers offer: asks the user, runs calls, shows results."""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_mlx.errors import DFlashError
from dflash_mlx.tools.call import Call

from ..backend.base import Backend
from ..backend.local import LocalBackend
from ..report import RunLog
from ..terminal.output import Output, format_count, stderr_columns
from ..terminal.render import wrap_hanging
from ..terminal.spinner import Spinner
from .transcript import call_text, data_folder, data_path, write_atomically

if TYPE_CHECKING:
    from dflash_mlx.tools.functions import Tool
    from dflash_mlx.tools.mcp import ServerConfig, Servers


# Tool calls as text

RESULT_LINES = 4  # lines of a result that are shown
MAX_CALL = 600  # characters of a call that are shown at once
STATE_LABELS = {"done": "", "open": "not run"}  # others are shown by their names


def call_line(call: Call) -> str:
    """A call on an indented line; a long one is cut and says how much is missing."""
    text = call_text(call)
    if len(text) <= MAX_CALL:
        return f"  › {text}"
    return f"  › {text[:MAX_CALL]} … {len(text) - MAX_CALL:,} more characters"


def result_lines(call: Call, columns: int) -> list[str]:
    """The first lines of a result, each cut to one row, and how many more there are.

    columns: of the terminal; if 0, it is unknown and no line is cut.
    """
    lines = [line.replace("\t", "  ").rstrip() for line in call.result.strip("\n").split("\n")]
    first_lines = lines[:RESULT_LINES] if len(lines) > RESULT_LINES + 1 else lines
    hidden = len(lines) - len(first_lines)
    label = STATE_LABELS.get(call.state, call.state)
    if label and not first_lines[0].startswith((label, "error", "not run")):
        first = f"{label}: {first_lines[0]}" if first_lines[0] else label
        first_lines = [first, *first_lines[1:]]
    width = max(columns - 6, 10)
    cut = [
        line[: width - 1] + "…" if columns and len(line) > width else line for line in first_lines
    ]
    rows = [f"  │ {line or '(nothing)'}" if len(cut) == 1 else f"  │ {line}" for line in cut]
    if hidden:
        rows.append(f"  │ … {hidden:,} more lines")
    return rows


# Which tools may be called without asking

ALLOWED_FILE = "allowed_tools.json"


class Permissions:
    """The tools that may be called without asking, in this session or always."""

    def __init__(self) -> None:
        """DFlashError for a damaged file."""
        self._session: set[str] = set()
        self._always = read_allowed()

    def state(self, key: str) -> str:
        """ "always", "session", or "" if the user must be asked."""
        return "always" if key in self._always else "session" if key in self._session else ""

    def allow(self, key: str, *, always: bool) -> None:
        """Stop asking about a tool; DFlashError if that cannot be saved."""
        self._session.add(key)
        if always:
            self._always = read_allowed() | {key}  # another chat may have added some
            write_allowed(self._always)

    def forget(self) -> None:
        self._session.clear()
        if self._always:
            self._always.clear()
            write_allowed(self._always)


def permission_key(config: "ServerConfig", tool: str) -> str:
    """The name of a tool among the permissions; another command or address is another tool."""
    source = json.dumps([config.command, config.args, config.cwd, config.url])
    return f"{config.name}/{tool} {hashlib.sha256(source.encode()).hexdigest()[:16]}"


def allowed_path() -> Path:
    return data_path() / ALLOWED_FILE


def read_allowed() -> set[str]:
    """The permission keys in the file; empty without a file, DFlashError for a damaged one."""
    path = allowed_path()
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        keys = document["allowed"]
    except FileNotFoundError:
        return set()
    except (OSError, ValueError, KeyError, TypeError):
        keys = None
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise DFlashError(
            f"the list of allowed tools '{path}' cannot be read.",
            hint="repair it, or delete it and allow the tools again when you are asked",
        )
    return set(keys)


def write_allowed(keys: set[str]) -> None:
    """Replace the file in one step; DFlashError if it cannot be written."""
    path = allowed_path()
    text = json.dumps({"version": 1, "allowed": sorted(keys)}, ensure_ascii=False, indent=1)
    try:
        data_folder()
        write_atomically(path, text + "\n")
    except OSError as error:
        raise DFlashError(
            f"'{path}' cannot be written ({error.strerror}): the permission ends with this chat.",
            hint="check the folder's permissions",
        ) from None


QUESTION = "  run it? y once, s in this session, a always, n no"
REPLIES = {"yes": "y", "once": "y", "session": "s", "always": "a", "no": "n", "view": "v"}


DEFAULT_CONTEXT = 32_768  # tokens; limits results if the context is unknown
TOKEN_LENGTH = 4  # characters of most tokens, at least, for a server's model
MAX_TOKEN_LENGTH = 32  # characters; used to cut a result before it is encoded


class ToolBox:
    """The MCP servers of a chat and the user's permissions; without servers there are no tools.

    ask: asks the user a question and returns the typed text; None if nobody can be asked. put_back:
    gets what was typed there and is no reply. enabled: whether the tools are offered to the model.
    """

    def __init__(self, out: Output, configs: Sequence["ServerConfig"] = ()):
        self.out = out
        self.configs = {config.name: config for config in configs}
        self.ask: Callable[[str], str | None] = lambda question: None
        self.put_back: Callable[[str], None] = lambda text: None
        self.enabled = True
        self.log = RunLog(None)
        self.servers: Servers | None = None
        self.permissions: Permissions | None = None
        self._offered: dict[str, Tool] = {}  # by the name that the model uses
        self._backend: Backend | None = None
        if configs:
            from dflash_mlx.tools import mcp

            # The library logs a traceback for every line of a server that is no message.
            logging.getLogger("mcp").addHandler(logging.NullHandler())
            self.permissions = Permissions()
            self.servers = mcp.Servers(configs)

    def wait(self) -> None:
        if self.servers is not None:
            with Spinner(self.out, "starting the MCP servers"):
                self.servers.wait()

    def close(self) -> None:
        if self.servers is not None:
            self.servers.close()

    @property
    def schemas(self) -> list[dict[str, Any]]:
        return [tool.schema for tool in self._offered.values()]

    def offer_to(self, backend: Backend) -> None:
        """Offer the tools of the running servers to a model; none if it cannot call tools."""
        self._offered = {}
        self._backend = backend
        if self.servers is not None and self.enabled and not backend.info.no_tools:
            self._offered = {tool.name: tool for tool in self.servers.tools}

    def summary(self, reason: str | None) -> str:
        """The number of tools and the running servers on one line; empty without servers.

        reason: why the model cannot call them; None if it can.
        """
        if self.servers is None:
            return ""
        running = [server for server in self.servers.all if server.state == "running"]
        tools = format_count(sum(len(server.tools) for server in running), "tool", "tools")
        names = ", ".join(server.config.name for server in running) or "no server"
        line = f"{tools} of {names}"
        return f"{line}, but this model {reason}" if reason else f"{line} · /mcp lists them"

    def failures(self) -> list[str]:
        servers = self.servers.all if self.servers else []
        return [
            f"the MCP server '{server.config.name}' does not run: {server.why}."
            for server in servers
            if server.why
        ]

    # Calls ----------------------------------------------------------------------------------------

    def run(self, call: Call) -> Call:
        """Show a call, ask the user, run it and show its result.

        A failed tool becomes the result; Ctrl-C interrupts the call.
        """
        from dflash_mlx.tools.loop import run_call

        tool = self._offered.get(call.name)
        self._show(call_line(call) + (f" · {tool.server}" if tool else ""))
        started_at = time.perf_counter()
        try:
            refusal = self._refusal(call)
            if refusal is not None:
                finished = replace(call, result=refusal, state="refused")
            else:
                started_at = time.perf_counter()
                with Spinner(self.out, f"running {call.name}"):
                    finished = self._truncated(run_call(self._offered, call))
        except KeyboardInterrupt:
            self.out.clear_status()
            finished = replace(call, result="interrupted by the user", state="interrupted")
        for line in result_lines(finished, stderr_columns()):
            self.out.info(line, "dim")
        self.out.info("")
        self.log.called(
            finished.name,
            finished.state,
            time.perf_counter() - started_at,
            arguments=finished.arguments,
            result=finished.result,
        )
        return finished

    def _refusal(self, call: Call) -> str | None:
        """Why a call may not run; None if it may, or if its tool is unknown and the call fails."""
        tool = self._offered.get(call.name)
        if tool is None or self.permissions is None:
            return None
        key = permission_key(self.configs[tool.server], tool.key)
        if self.permissions.state(key):
            return None
        reply = self._ask_user(call)
        if reply is None:
            return "refused: nobody could be asked"
        if reply in ("s", "a"):
            try:
                self.permissions.allow(key, always=reply == "a")
            except DFlashError as error:
                self.out.error(error.message, error.hint)
        return "refused by the user" if reply == "n" else None

    def _ask_user(self, call: Call) -> str | None:
        """The user's reply: y, s, a or n (also at the end of the input); None without a user."""
        text = call_text(call)
        question = QUESTION + (", v view all of it" if len(text) > MAX_CALL else "")
        while True:
            typed = self.ask(f"{question} › ")
            if typed is None:
                return None
            reply = typed.strip().lower()
            reply = "n" if not typed else REPLIES.get(reply, reply)
            if reply == "v":
                self._show(f"  › {text}")
            elif reply in ("y", "s", "a", "n"):
                return reply
            else:
                self.put_back(typed.strip())

    def _truncated(self, call: Call) -> Call:
        if self._backend is None:
            return call
        result = beginning_of(call.result, self._backend)
        if result == call.result:
            return call
        note = f"[cut: the first {len(result):,} of {len(call.result):,} characters]"
        return replace(call, result=f"{result}\n{note}")

    def _show(self, line: str) -> None:
        self.out.info(wrap_hanging(line, stderr_columns()))


def beginning_of(result: str, backend: Backend) -> str:
    """The beginning of a tool's result, at most a quarter of the context."""
    limit = (backend.info.context_length or DEFAULT_CONTEXT) // 4
    if not isinstance(backend, LocalBackend):
        return result[: TOKEN_LENGTH * limit]
    beginning = result[: MAX_TOKEN_LENGTH * limit]
    while (tokens := len(backend.pair.encode(beginning))) > limit:
        beginning = beginning[: len(beginning) * limit // tokens]
    return beginning
