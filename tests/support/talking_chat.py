"""Runs `dflash`; instead of the bundled pair a scripted one calls tools, see tool_talk.py."""

from importlib import import_module

import dflash_mlx

if __name__ == "__main__":
    talk = import_module("tool_talk")
    dflash_mlx.load = lambda *names, **options: talk.talking_pair(talk.says)
    import_module("dflash_mlx.cli.app").main()
