"""The tools of a chat: those of its MCP servers, asked about, run and shown."""

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
from ..report import RunLog
from ..terminal.output import Output, format_count, stderr_columns
from ..terminal.render import wrap_hanging
from ..terminal.spinner import Spinner
from .transcript import (
    MAX_CALL,
    call_line,
    call_text,
    data_folder,
    data_path,
    result_lines,
    write_atomically,
)

if TYPE_CHECKING:
    from dflash_mlx.tools.functions import Tool
    from dflash_mlx.tools.mcp import ServerConfig, Servers


# Which tools may be called without asking

FILE = "allowed_tools.json"


class Permissions:
    """Tools that may be called; DFlashError for a file that was damaged."""

    def __init__(self) -> None:
        self._session: set[str] = set()
        self._always = read_allowed()

    def state(self, key: str) -> str:
        """always, session, or nothing where the user is to be asked."""
        return "always" if key in self._always else "session" if key in self._session else ""

    def allow(self, key: str, *, always: bool) -> None:
        """Do not ask about a tool any more; DFlashError where that cannot be kept."""
        self._session.add(key)
        if always:
            self._always = read_allowed() | {key}  # another chat may have added some
            write_allowed(self._always)

    def forget(self) -> None:
        """Ask about every tool again."""
        self._session.clear()
        if self._always:
            self._always.clear()
            write_allowed(self._always)


def key_of(config: "ServerConfig", tool: str) -> str:
    """What a tool is known by."""
    source = json.dumps([config.command, config.args, config.cwd, config.url])
    return f"{config.name}/{tool} {hashlib.sha256(source.encode()).hexdigest()[:16]}"


def allowed_path() -> Path:
    """The file; it need not exist."""
    return data_path() / FILE


def read_allowed() -> set[str]:
    """What the file says."""
    path = allowed_path()
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        found = document["allowed"]
    except FileNotFoundError:
        return set()
    except (OSError, ValueError, KeyError, TypeError):
        found = None
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise DFlashError(
            f"the file '{path}' of tools that may be called cannot be read.",
            hint="mend or delete it: then each tool is asked about again",
        )
    return set(found)


def write_allowed(keys: set[str]) -> None:
    """Replace the file in one step."""
    path = allowed_path()
    text = json.dumps({"version": 1, "allowed": sorted(keys)}, ensure_ascii=False, indent=1)
    try:
        data_folder()
        write_atomically(path, text + "\n")
    except OSError as error:
        raise DFlashError(
            f"'{path}' cannot be written ({error.strerror}): it holds for this session only.",
            hint="check the folder's permissions",
        ) from None


QUESTION = "  run it? y once, s in this session, a always, n no"
WORDS = {"yes": "y", "once": "y", "session": "s", "always": "a", "no": "n", "view": "v"}
ASK = Callable[[str], str | None]


class ToolBox:
    """MCP servers, and what may be called; without servers there are no tools.

    `ask` puts a question and gives what was typed, None where nobody can be asked. `on` is False
    while models are told of no tools.
    """

    def __init__(self, out: Output, configs: Sequence["ServerConfig"] = ()):
        self.out, self.configs = out, {config.name: config for config in configs}
        self.ask: ASK = lambda question: None
        self.on, self.log = True, RunLog(None)
        self.servers: Servers | None = None
        self.permissions: Permissions | None = None
        self._told: dict[str, Tool] = {}
        self._backend: Backend | None = None
        if configs:
            from dflash_mlx.tools import mcp

            # What servers write that is no message would be shown, with a traceback.
            logging.getLogger("mcp").addHandler(logging.NullHandler())
            self.permissions = Permissions()
            self.servers = mcp.Servers(configs)

    def wait(self) -> None:
        """Until the servers run or have failed."""
        if self.servers is not None:
            with Spinner(self.out, "starting the MCP servers"):
                self.servers.wait()

    def close(self) -> None:
        """End the servers."""
        if self.servers is not None:
            self.servers.close()

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """The tools that the model is told of, as templates read them."""
        return [tool.schema for tool in self._told.values()]

    def tell(self, backend: Backend) -> None:
        """Take the tools that a model is told of from now on; none where it calls none."""
        self._told = {}
        self._backend = backend
        if self.servers is not None and self.on and not backend.no_tools_reason():
            self._told = {tool.name: tool for tool in self.servers.tools}

    def summary(self, backend: Backend) -> str:
        """What there is, on one line; empty without servers."""
        if self.servers is None:
            return ""
        running = [server for server in self.servers.all if server.state == "running"]
        tools = format_count(sum(len(server.tools) for server in running), "tool", "tools")
        line = f"{tools} of {', '.join(server.config.name for server in running) or 'no server'}"
        why = backend.no_tools_reason()
        return f"{line}, but this model {why}" if why else f"{line} · /mcp lists them"

    def faults(self) -> list[str]:
        """A sentence for each server that does not run."""
        failed = [one for one in self.servers.all if one.why] if self.servers else []
        return [f"the MCP server '{one.config.name}' does not run: {one.why}." for one in failed]

    # Calls ----------------------------------------------------------------------------------------

    def run(self, call: Call) -> Call:
        """Show a call, ask about it, run it and show its result; it never raises what a tool does.

        Ctrl-C interrupts the call.
        """
        from dflash_mlx.tools.loop import run_call

        tool = self._told.get(call.name)
        self._show(call_line(call) + (f" · {tool.server}" if tool else ""))
        began = time.perf_counter()
        try:
            refused = self._refused(call)
            if refused is not None:
                done = replace(call, result=refused, state="refused")
            else:
                began = time.perf_counter()
                with Spinner(self.out, f"running {call.name}"):
                    done = self._fitted(run_call(self._told, call))
        except KeyboardInterrupt:
            self.out.clear_status()
            done = replace(call, result="interrupted by the user", state="interrupted")
        for line in result_lines(done, stderr_columns()):
            self.out.info(line, "dim")
        self.out.info("")
        seconds = time.perf_counter() - began
        words = {"arguments": done.arguments, "result": done.result}
        self.log.called(done.name, done.state, seconds, **words)
        return done

    def _refused(self, call: Call) -> str | None:
        """Why a call may not run; None where it may, or fails without being run."""
        tool = self._told.get(call.name)
        if tool is None or self.permissions is None:
            return None
        key = key_of(self.configs[tool.server], tool.key)
        if self.permissions.state(key):
            return None
        word = self._asked(call)
        if word is None:
            return "refused: nobody could be asked"
        if word in ("s", "a"):
            try:
                self.permissions.allow(key, always=word == "a")
            except DFlashError as error:
                self.out.error(error.message, error.hint)
        return "refused by the user" if word == "n" else None

    def _asked(self, call: Call) -> str | None:
        """y, s, a or n; None where nobody can be asked. The end of the input is a no."""
        text = call_text(call)
        question = QUESTION + (", v view all of it" if len(text) > MAX_CALL else "")
        while True:
            typed = self.ask(f"{question} › ")
            if typed is None:
                return None
            word = typed.strip().lower()
            word = "n" if not typed else WORDS.get(word, word)
            if word == "v":
                self._show(f"  › {text}")
            elif word in ("y", "s", "a", "n"):
                return word

    def _fitted(self, call: Call) -> Call:
        """The call with at most a quarter of the context as its result; the model is told."""
        kept = call.result if self._backend is None else self._backend.truncate_result(call.result)
        if kept == call.result:
            return call
        size = len(call.result)
        note = f"[cut: the first {len(kept):,} of {size:,} characters]"
        return replace(call, result=f"{kept}\n{note}")

    def _show(self, line: str, style: str = "") -> None:
        self.out.info(wrap_hanging(line, stderr_columns()), style)
