"""Drives headless Chromium through its DevTools pipe, without another package."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
FLAGS = ("--headless=new", "--remote-debugging-pipe", "--no-first-run", "--hide-scrollbars")
LEFT = "Inspected target navigated or closed"  # the error of a page that was left
KEY_CODES = {"Enter": 13, "Escape": 27, "ArrowUp": 38, "Tab": 9}


def find_browser() -> str | None:
    """The program of Chromium or Chrome; DFLASH_BROWSER names another."""
    found = (shutil.which(name) for name in (os.environ.get("DFLASH_BROWSER", ""), *NAMES))
    return next((path for path in found if path), None)


class PageLeft(AssertionError):
    """The page was left while it computed."""


class Browser:
    """A running browser. Commands go to its file descriptor 3, replies come from its 4."""

    def __init__(self, program: str, folder: Path):
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        flags = [*FLAGS, f"--user-data-dir={folder}"]
        if os.getuid() == 0:
            flags.append("--no-sandbox")

        def place_pipes() -> None:
            high = [os.dup(to_read), os.dup(to_write)]  # neither may be overwritten
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self._process = subprocess.Popen(
            [program, *flags, "about:blank"],
            preexec_fn=place_pipes,
            pass_fds=(3, 4),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._held = b""
        self._last = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its result. AssertionError if it fails."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._next()
            if reply.get("id") == self._last:
                if reply.get("error", {}).get("message") == LEFT:
                    raise PageLeft(method)
                assert "error" not in reply, (method, reply["error"])
                return reply["result"]
            self.events.append(reply)

    def _next(self, seconds: float = 60) -> dict[str, Any]:
        while b"\0" not in self._held:
            assert select.select([self._read], [], [], seconds)[0], "the browser does not answer"
            part = os.read(self._read, 1 << 20)
            assert part, "the browser has ended"
            self._held += part
        message, _, self._held = self._held.partition(b"\0")
        return json.loads(message)

    def close(self) -> None:
        self.call("Browser.close")
        self._process.wait(20)
        os.close(self._write)
        os.close(self._read)

    @contextmanager
    def tab(self, *, width: int = 1000, height: int = 800, dark: bool = False) -> Iterator["Tab"]:
        """A tab with storage of its own; AssertionError at the end if its page had errors."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        tab = Tab(self, attached["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.call(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        tab.call("Emulation.setEmulatedMedia", features=[scheme])
        tab.resize(width, height)
        yield tab
        self.call("Target.disposeBrowserContext", browserContextId=context)
        problems = tab.problems()
        assert not problems, problems


class Tab:
    """One page. JavaScript expressions may be promises."""

    def __init__(self, browser: Browser, session: str):
        self._browser = browser
        self._session = session
        self.expected: tuple[str, ...] = ()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def events(self, method: str) -> list[dict[str, Any]]:
        return [
            event["params"]
            for event in self._browser.events
            if event["method"] == method and event.get("sessionId") == self._session
        ]

    def problems(self) -> list[str]:
        """Exceptions and messages of the console, but for those with one of `expected`."""
        told = [str(event["exceptionDetails"]) for event in self.events("Runtime.exceptionThrown")]
        for event in self.events("Log.entryAdded"):
            told.append(f"{event['entry']['text']} {event['entry'].get('url', '')}")
        return [text for text in told if not any(part in text for part in self.expected)]

    def requests(self) -> list[str]:
        return [event["request"]["url"] for event in self.events("Network.requestWillBeSent")]

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 500,
        )  # fmt: skip

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def reload(self) -> None:
        self.js("window.isOld = true")
        self.call("Page.reload")
        self.wait("!window.isOld && document.readyState === 'complete'")

    def js(self, expression: str) -> Any:
        found = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True,
            userGesture=True,
        )  # fmt: skip
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, expression: str, seconds: float = 60) -> Any:
        """Wait until an expression is true; AssertionError after `seconds`."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with suppress(PageLeft):  # while a new page comes
                if value := self.js(expression):
                    return value
            time.sleep(0.02)
        raise AssertionError(f"never true: {expression}")

    def text(self, selector: str) -> str:
        return self.js(f"document.querySelector({json.dumps(selector)}).innerText")

    def click(self, selector: str) -> None:
        box = self.js(f"""((element) => {{
            element.scrollIntoView({{ block: 'center' }});
            const {{ x, y, width, height }} = element.getBoundingClientRect();
            return [x + width / 2, y + height / 2];
        }})(document.querySelector({json.dumps(selector)}))""")
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left",
                clickCount=1,
            )  # fmt: skip

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        code = KEY_CODES.get(key, ord(key[0].upper()))
        common: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": code}
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        self.call("Input.dispatchKeyEvent", **down, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def shoot(self, path: Path) -> None:
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))
