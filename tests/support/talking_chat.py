"""Runs `dflash`; instead of the bundled pair a scripted one calls tools, see tool_talk.py."""

from importlib import import_module
from typing import Any

if __name__ == "__main__":
    talk = import_module("tool_talk")
    backend: Any = import_module("dflash_mlx.cli.backend.open")
    backend.load_pair = lambda *_: (talk.talking_pair(talk.says), 0.0)
    import_module("dflash_mlx.cli.app").main()
