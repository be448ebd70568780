"""The log-probabilities of a completion fit its text: first blanks, characters of many tokens."""

import json
from typing import Any

import pytest
import tiny
from every_api import reply_of
from scripted_pair import speaking
from scripted_server import server_of, tool_tokenizer

from dflash_mlx.chat.detokenizer import token_bytes, token_text

PROMPT = "it is"
TEXTS = ["  so é漢 on", " 👍🏽 yes", "\n\n    x\x00y", "plain"]


def choices_of(text: str, **asked: Any) -> list[Any]:
    """The choice of an answer that says `text`, or those of all its chunks."""
    tokenizer = tool_tokenizer()
    prompt = tokenizer.encode(PROMPT, add_special_tokens=False)
    server = server_of(speaking(text, tokenizer, prompt, strict=False))
    body = {"prompt": PROMPT, "max_tokens": 60, "temperature": 0, "logprobs": 1, **asked}
    reply = reply_of(server, "/v1/completions", body).text
    if not asked.get("stream"):
        return json.loads(reply)["choices"]
    lines = [line.removeprefix("data: ") for line in reply.splitlines() if line]
    return [json.loads(line)["choices"][0] for line in lines if line != "[DONE]"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("asked", [{}, {"stream": True}, {"stream": True, "stop": ["none", "zz"]}])
def test_offsets_are_places_in_the_text(text: str, asked: dict[str, Any]) -> None:
    """In a stream, too, where the start of a stop string is held back."""
    choices = choices_of(text, **asked)
    assert "".join(choice["text"] for choice in choices) == text
    logprobs = [choice["logprobs"] for choice in choices]
    offsets = [offset for one in logprobs for offset in one["text_offset"]]
    tokens = [token for one in logprobs for token in one["tokens"]]
    # A byte tokenizer: each character has as many tokens as bytes, then comes the end.
    expected = [place for place, sign in enumerate(text) for _ in sign.encode()]
    assert offsets == [*expected, len(text)]
    for token, offset in zip(tokens, offsets, strict=True):
        assert token in ("\ufffd", "<|end|>") or text[offset] == token


@pytest.mark.parametrize("tokenizer", [tool_tokenizer(), tiny.sentencepiece_tokenizer(False)])
@pytest.mark.parametrize("text", [*TEXTS, "\ufffd kept"])
def test_bytes_of_tokens_join_to_the_text(text: str, tokenizer: Any) -> None:
    """Also where a character has many tokens: each was told as U+FFFD, three bytes of its own."""
    tokens = tokenizer.encode(text, add_special_tokens=False)
    told = [token_bytes(tokenizer, one, token_text(tokenizer, one)) for one in tokens]
    assert bytes(byte for one in told for byte in one) == text.encode()
