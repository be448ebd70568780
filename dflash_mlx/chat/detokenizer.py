"""Tokens to text, one token at a time, with the tokenizer's own `decode`.

mlx-lm's streaming detokenizers drop spaces at the start of an answer that `decode` keeps, and write
a NUL as another character.
"""

from collections.abc import Sequence

from mlx_lm.tokenizer_utils import TokenizerWrapper

REPLACEMENT = "\ufffd"  # what `decode` writes for bytes that are no whole character


class Detokenizer:
    """Its pieces join to what `decode` makes of all tokens at once.

    length: the characters of all pieces. before: tokens that the first one goes on from. Without
    them, a tokenizer whose `decode` drops the first space of a text (Llama 2, Mistral, Phi-3) drops
    it here.

    Only invalid bytes right after byte tokens of a whole character come out otherwise: `decode`
    replaces that character, too, which is shown already.
    """

    def __init__(self, tokenizer: TokenizerWrapper, before: Sequence[int] = ()):
        self._tokenizer = tokenizer
        self.length = 0
        self._start_after([*before])

    def add(self, token: int) -> str:
        """The new text; empty as long as a character is incomplete."""
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens)
        if text == self._shown or text.endswith(REPLACEMENT):
            return ""
        return self._take(text)

    def finish(self) -> str:
        return self._take(self._tokenizer.decode(self._tokens))

    def _take(self, text: str) -> str:
        held = self._tokens[self._count :]
        is_longer = text.startswith(self._shown)
        new = text[len(self._shown) :] if is_longer else self._tokenizer.decode(held)
        self._start_after(held)
        self.length += len(new)
        return new

    def _start_after(self, tokens: list[int]) -> None:
        """Decode from these tokens on, whose text is shown."""
        self._tokens = tokens
        self._count = len(tokens)
        self._shown = self._tokenizer.decode(tokens)


def token_text(tokenizer: TokenizerWrapper, token: int) -> str:
    """The text of a token inside of a text, with its leading space."""
    return tokenizer.decode([token, token])[len(tokenizer.decode([token])) :]


def token_bytes(tokenizer: TokenizerWrapper, token: int, text: str) -> list[int]:
    """Those of its `token_text`; of a part of a character its own, if its name tells them."""
    if REPLACEMENT in text:
        name = tokenizer.convert_ids_to_tokens(token)
        if name.startswith("<0x"):  # as in SentencePiece
            return [int(name[1:5], 16)]
        from transformers.convert_slow_tokenizer import bytes_to_unicode  # slow to import

        values = {sign: byte for byte, sign in bytes_to_unicode().items()}
        if values.keys() >= {*name}:
            return [values[sign] for sign in name]
    return [*text.encode()]
