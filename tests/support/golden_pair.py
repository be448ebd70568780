"""The golden pair as command line options, and its reference answers."""

import json
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden" / "qwen3_full"
PAIR = ["-m", str(GOLDEN / "target"), "-d", str(GOLDEN / "draft")]
EXPECTED = json.loads((GOLDEN / "expected.json").read_text("utf-8"))
SPECIAL = {97: "<|im_start|>", 99: "<|mask|>", 100: "<think>", 101: "</think>"}
RAW = ["--raw", EXPECTED["prompt_texts"][0]]
CHAT = EXPECTED["prompt_messages"][1][0]["content"]


def text_of(tokens):
    """Decode with the golden vocabulary: newline, then ASCII from the space on."""
    known = {0: "\n", **{i: chr(31 + i) for i in range(1, 96)}, **SPECIAL}
    return "".join(known.get(token, f"<|reserved_{token - 102}|>") for token in tokens)


def said(case):
    return text_of(token for token in EXPECTED["greedy_tokens"][case] if token != 98)
