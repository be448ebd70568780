"""Log-probabilities in the shapes of OpenAI's two completion APIs."""

from collections.abc import Sequence
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx.types import TokenLogprob

LEAST = -9999.0  # JSON has no infinity; OpenAI's own word for it


def chat_logprobs(
    tokenizer: TokenizerWrapper, found: Sequence[TokenLogprob]
) -> list[dict[str, Any]]:
    """`choices[].logprobs.content` of a chat completion."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        text = tokenizer.decode([token])
        return {"token": text, "logprob": max(logprob, LEAST), "bytes": list(text.encode())}

    return [
        entry(one.token, one.logprob) | {"top_logprobs": [entry(*pair) for pair in one.top]}
        for one in found
    ]


def text_logprobs(
    tokenizer: TokenizerWrapper, found: Sequence[TokenLogprob], offset: int
) -> dict[str, Any]:
    """`choices[].logprobs` of a text completion; `offset`: characters before these tokens."""
    texts = [tokenizer.decode([one.token]) for one in found]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [max(one.logprob, LEAST) for one in found],
        "top_logprobs": [
            {tokenizer.decode([token]): max(logprob, LEAST) for token, logprob in one.top}
            for one in found
        ],
        "text_offset": offsets,
    }
