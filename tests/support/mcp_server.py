"""A tiny MCP server: hand-written JSON-RPC on standard input, or with --http on a port it prints.

It supports the handshake of 2025-06-18 and three tools only. It writes the messages it gets to the
file that MCP_SERVER_LOG names.
"""

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"name": "weather", "description": "what it is like", "inputSchema": CITY},
    {"name": "sleep", "description": "waits", "inputSchema": {"type": "object"}},
    {"name": "end", "description": "ends the server", "inputSchema": {"type": "object"}},
]
HEADER = "X-Key"


def result_of(method: str, given: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        return {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "tiny", "version": "1"},
        }
    if method == "tools/list":  # two pages
        page = 0 if given.get("cursor") is None else 1
        more = {} if page else {"nextCursor": "2"}
        return {"tools": TOOLS[2:] if page else TOOLS[:2], **more}
    if method != "tools/call":
        return None
    city = given.get("arguments", {}).get("city", "")
    if given["name"] == "end":
        os._exit(3)
    if given["name"] == "sleep":
        time.sleep(60)
    if not city:
        return {"content": [{"type": "text", "text": "no city given"}], "isError": True}
    lines = "\n".join(f"{city} {hour}:00 rain" for hour in range(24))
    return {"content": [{"type": "text", "text": lines}]}


def answer(message: dict[str, Any]) -> dict[str, Any] | None:
    """The answer to a message; None for a notification."""
    if path := os.environ.get("MCP_SERVER_LOG"):
        with open(path, "a", encoding="utf-8") as log:
            log.write(json.dumps(message) + "\n")
    if "id" not in message:
        return None
    result = result_of(message["method"], message.get("params") or {})
    error = {"code": -32601, "message": "Method not found"}
    found = {"error": error} if result is None else {"result": result}
    return {"jsonrpc": "2.0", "id": message["id"], **found}


class Handler(BaseHTTPRequestHandler):
    """Streamable HTTP without streams: answers each POST with JSON; requires the key."""

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers.get(HEADER) != "secret":
            return self._send(401, None)
        found = answer(message)
        return self._send(202 if found is None else 200, found)

    def do_GET(self) -> None:
        """Refuse to open a stream."""
        self._send(405, None)

    do_DELETE = do_GET

    def _send(self, status: int, body: Any) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""


if __name__ == "__main__":
    if sys.argv[1:] == ["--http"]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        print(server.server_port, flush=True)
        server.serve_forever()
    for line in sys.stdin:
        if (found := answer(json.loads(line))) is not None:
            print(json.dumps(found), flush=True)
