"""The chat page at `/`: static files, which need no key, because they hold no secret.

The page asks the server's own API like any client, with the key that its reader has entered.
Programs that ask for no page get the text at `/` by which clients of Ollama know a server.
"""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

FOLDER = Path(__file__).parent / "page"
SCRIPTS = ("app", "api", "answer", "chats", "highlight", "markdown")
TYPES = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    **{f"{name}.js": "text/javascript; charset=utf-8" for name in SCRIPTS},
}
PATHS = {"/" if name == "index.html" else f"/page/{name}": name for name in TYPES}

# Scripts, styles and requests from this server only; no inline ones, no frames, no forms that
# leave the page. Trusted types forbid all ways to turn a text into HTML (`innerHTML`).
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
RUNNING = "Ollama is running"
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-cache",
    "Vary": "Accept",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def page_routes() -> list[Route]:
    async def send(request: Request) -> Response:
        name = PATHS[request.url.path]
        if name == "index.html" and "text/html" not in request.headers.get("accept", ""):
            return PlainTextResponse(RUNNING, headers={"Vary": "Accept"})
        content = (FOLDER / name).read_bytes()
        return Response(content, headers=HEADERS, media_type=TYPES[name])

    return [Route(path, send) for path in PATHS]
