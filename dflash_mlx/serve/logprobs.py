"""Log-probabilities in the forms of OpenAI's two completion APIs."""

from collections.abc import Sequence
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper
from transformers.convert_slow_tokenizer import bytes_to_unicode

from dflash_mlx.chat.detokenizer import REPLACEMENT, Detokenizer, token_text
from dflash_mlx.types import TokenLogprob

MIN_LOGPROB = -9999.0  # as in OpenAI's API, because JSON has no infinity


def chat_logprobs(
    tokenizer: TokenizerWrapper, logprobs: Sequence[TokenLogprob]
) -> list[dict[str, Any]]:
    """`choices[].logprobs.content` of a chat completion."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        text = token_text(tokenizer, token)
        own = token_bytes(tokenizer, token, text)
        return {"token": text, "logprob": max(logprob, MIN_LOGPROB), "bytes": own}

    return [
        entry(position.token, position.logprob)
        | {"top_logprobs": [entry(token, logprob) for token, logprob in position.top]}
        for position in logprobs
    ]


def token_bytes(tokenizer: TokenizerWrapper, token: int, text: str) -> list[int]:
    """Those of its text; of a part of a character its own, if its name tells them."""
    if REPLACEMENT in text:
        name = tokenizer.convert_ids_to_tokens(token)
        if name.startswith("<0x"):  # as in SentencePiece
            return [int(name[1:5], 16)]
        values = {sign: byte for byte, sign in bytes_to_unicode().items()}
        if values.keys() >= {*name}:
            return [values[sign] for sign in name]
    return [*text.encode()]


def text_logprobs(
    tokenizer: TokenizerWrapper, logprobs: Sequence[TokenLogprob], detokenizer: Detokenizer
) -> dict[str, Any]:
    """`choices[].logprobs` of a text completion; `detokenizer`: has read the tokens before these.

    The tokens of one character have the same offset.
    """
    offsets = []
    for position in logprobs:
        offsets.append(detokenizer.length)
        detokenizer.add(position.token)
    return {
        "tokens": [token_text(tokenizer, position.token) for position in logprobs],
        "token_logprobs": [max(position.logprob, MIN_LOGPROB) for position in logprobs],
        "top_logprobs": [
            {
                token_text(tokenizer, token): max(logprob, MIN_LOGPROB)
                for token, logprob in position.top
            }
            for position in logprobs
        ],
        "text_offset": offsets,
    }
