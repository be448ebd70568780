"""The line that the server writes for each answer."""

from typing import Any

import httpx
from serving import serving

from dflash_mlx.pair import Pair

HEADER = "id={}. You answer in one sentence."
LONG = " ".join(f"{number} plus 7" for number in range(150))


def test_it_says_why_a_long_prompt_was_read_anew(pair: Pair) -> None:
    """Guards the reason for slow agents: a header that changes in every request."""
    with serving(pair, log_prompts=True) as served:
        lines = [ask(served, number, end) for number, end in ((1, ""), (1, "Go on."), (2, ""))]
    first, continued, changed = lines
    assert "differs_at" not in first
    assert "differs_at" not in continued
    assert continued["prompt"] - continued["cached"] < 100
    assert changed["differs_at"] == changed["cached"]
    assert changed["prompt"] - changed["cached"] > 512
    assert "id=2" in changed["differs_near"]


def ask(served: Any, number: int, end: str) -> dict[str, Any]:
    """Send a chat whose header has this number, and return the line of its answer."""
    after = len(served.lines)
    messages = [
        {"role": "system", "content": HEADER.format(number)},
        {"role": "user", "content": LONG},
    ]
    if end:
        messages += [{"role": "assistant", "content": "7"}, {"role": "user", "content": end}]
    body = {"messages": messages, "max_tokens": 2}
    reply = httpx.post(served.url + "/v1/chat/completions", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    return served.wait_for_answer(after)
