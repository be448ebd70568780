"""A server of OpenAI's API that streams like vLLM, SGLang or llama-server, with planted faults.

`python tests/support/openai_server.py PORTFILE` runs it. The prompt selects the answer or fault.
"""

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

KEY = "sk-secret-41"
USAGE = {"prompt_tokens": 21, "completion_tokens": 7, "total_tokens": 28}
TIMINGS = {
    "cache_n": 5, "prompt_n": 16, "prompt_ms": 80.0, "predicted_n": 7, "predicted_ms": 50.0,
    "predicted_per_second": 140.0, "draft_n": 10, "draft_n_accepted": 4,
}  # fmt: skip


@dataclass
class Behaviour:
    """How the server answers.

    kind: `owned_by` of its models. says: the answer; empty repeats the prompt. fault: an HTTP
    status, or the place where a stream breaks off. bodies: the requests so far. gone: number of
    clients that disconnected during a stream. moved_to: the address that a GET is sent on to.
    asked: number of GETs.
    """

    kind: str = "vllm"
    models: tuple[str, ...] = ("m",)
    fault: str = ""
    key: str | None = None
    pause: float = 0.0
    says: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    gone: threading.Event = field(default_factory=threading.Event)
    url: str = ""
    moved_to: str = ""
    asked: int = 0


def chunks(how: Behaviour, body: dict[str, Any]) -> Iterator[str]:
    """The lines of a stream in the style of this kind of server."""

    def chunk(
        delta: dict[str, Any] | None = None, end: str | None = None, index: int = 0, **more: Any
    ) -> str:
        choices = [] if delta is None else [{"index": index, "delta": delta, "finish_reason": end}]
        head = {"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": choices}
        return f"data: {json.dumps({**head, **more})}\n\n"

    thinks = "reasoning_content" if how.kind in ("sglang", "llamacpp") else "reasoning"
    prompt = body["messages"][-1]["content"]
    count = body.get("n", 1) if how.kind == "vllm" else 1  # the others ignore it
    yield chunk({"role": "assistant", "content": "" if how.kind == "vllm" else None})
    if "think" in prompt:
        yield chunk({thinks: "\nLet me "})
        yield chunk({thinks: "see."})
    if body.get("tools") and body["messages"][-1]["role"] == "user":
        call = {"index": 0, "id": "call_1", "type": "function"}
        yield chunk({"tool_calls": [{**call, "function": {"name": "weather", "arguments": ""}}]})
        for part in ('{"city": ', '"Brno"}'):
            yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": part}}]})
        yield chunk({}, "tool_calls")
    else:
        for number, word in enumerate((how.says or f"You said: {prompt}").split(" ")):
            yield ": a sign of life\r\n\r\n" if number == 1 else ""
            for index in range(count):
                mark = f"{index + 1}) " if count > 1 and not number else ""
                yield chunk({"content": f"{' ' if number else ''}{mark}{word}"}, index=index)
            if how.fault == "cut" and number == 2:
                return
            if how.fault == "rubbish" and number == 2:
                yield "data: <html>\n\n"
            if how.fault == "error event" and number == 2:
                yield 'data: {"error": {"message": "out of memory", "code": 500}}\n\n'
        told = {"timings": TIMINGS} if how.kind == "llamacpp" else {}
        for index in range(count):
            yield chunk({}, "length" if body.get("max_tokens") == 3 else "stop", index, **told)
    if how.fault != "no usage":
        details = {"prompt_tokens_details": {"cached_tokens": 4}} if how.kind == "vllm" else {}
        yield chunk(usage={**USAGE, **details})
    yield "data: [DONE]\n\n"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    how: Behaviour

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self.how.asked += 1
        if self.how.moved_to:
            self.send_response(307)
            self.send_header("Location", f"{self.how.moved_to}/models")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        data = [{"id": name, "owned_by": self.how.kind} for name in self.how.models]
        if self.how.kind == "vllm":
            data = [{**one, "max_model_len": 4096} for one in data]
        self.answer(json.dumps({"object": "list", "data": data}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.how.bodies.append(body)
        if self.path != "/v1/chat/completions":
            return self.problem(404, "Not Found")
        if self.how.fault == "hang up":
            self.close_connection = True
            return None
        if self.how.fault.isdecimal():
            return self.problem(int(self.how.fault), f"because of {self.how.fault} {KEY}")
        if "silence" in body["messages"][-1]["content"]:
            self.rfile.read(1)  # until the client goes
            self.how.gone.set()
            return None
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for line in filter(None, chunks(self.how, body)):
                data = line.encode()
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                self.wfile.flush()
                if "stall" in body["messages"][-1]["content"]:
                    self.rfile.read(1)  # until the client goes
                    self.how.gone.set()
                    return None
                time.sleep(self.how.pause)
            if self.how.fault != "cut":
                self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.how.gone.set()
        self.close_connection = True
        return None

    def answer(self, text: str) -> None:
        """Send a whole answer if the API key is right."""
        given = self.headers.get("Authorization")
        if self.how.key and given != f"Bearer {self.how.key}":
            return self.problem(401, f"Incorrect API key provided: {given}")
        if self.how.fault == "no endpoint":
            text = "<html>a printer</html>"
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())
        return None

    def problem(self, status: int, message: str) -> None:
        text = json.dumps({"error": {"message": message, "type": "x", "code": status}})
        self.send_response(status)
        self.send_header("Retry-After", "7")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


@contextmanager
def openai_server(**how: Any) -> Iterator[Behaviour]:
    """Run a server on a free port; yields its behaviour, which may be changed meanwhile."""
    behaviour = Behaviour(**how)
    handler = type("Bound", (Handler,), {"how": behaviour})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    behaviour.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield behaviour
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


if __name__ == "__main__":
    with openai_server(kind=sys.argv[2] if len(sys.argv) > 2 else "vllm", pause=0.15) as found:
        Path(sys.argv[1]).write_text(found.url)
        threading.Event().wait()
