"""OpenAI's `POST /v1/completions`: continues a text, without a chat template.

https://platform.openai.com/docs/api-reference/completions
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any

from dflash_mlx.answer import Answer
from dflash_mlx.chat.detokenizer import Detokenizer, token_text
from dflash_mlx.pair import Pair
from dflash_mlx.types import Block, TokenLogprob

from .answer_request import AnswerRequest
from .body import answer_range, grammar_of
from .fields import COMPLETIONS
from .openai_chat import OpenAIBody, OpenAIWriter
from .protocol import Settings, wrong
from .writer import MIN_LOGPROB


class CompletionBody(OpenAIBody):
    prompt: str | list[Any]
    best_of: int | None = None
    logprobs: Annotated[int, answer_range("logprobs")] | None = None


def to_request(body: CompletionBody, pair: Pair, settings: Settings) -> AnswerRequest:
    choices = 1 if body.n is None else body.n
    if body.best_of is not None and body.best_of != choices:
        raise wrong("best_of", "is not supported: all answers are sent")
    options = replace(
        body.options(settings.options),
        logprobs=body.logprobs,
        grammar=grammar_of(body, body.response_format),
        raw=True,
        think=None,  # without a chat template there is nothing to switch
        reasoning_effort=None,
    )
    return AnswerRequest(
        prompt=read_prompt(body.prompt),
        options=options,
        choices=choices,
        return_progress=bool(body.return_progress),
    )


def read_prompt(prompt: str | list[Any]) -> str | list[int]:
    """A text or token ids, which may also be the only item of a list."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, list) and not all(type(token) is int for token in prompt):
        raise wrong("prompt", "must be a text or a list of token ids: one a request")
    if not prompt:
        raise wrong("prompt", "is empty")
    return prompt


class CompletionWriter(OpenAIWriter):
    path = COMPLETIONS
    body_model = CompletionBody
    to_request = staticmethod(to_request)
    ids = "cmpl"
    kinds = ("text_completion", "text_completion")

    def __init__(self, *given: Any):
        super().__init__(*given)
        self._read: dict[int, Detokenizer] = {}  # of each choice, for the offsets of its tokens

    def choice(self, index: int, answer: Answer | Block) -> dict[str, Any]:
        return {
            "index": index,
            "text": answer.text,
            "logprobs": self._logprobs(index, answer.logprobs),
            "finish_reason": answer.finish_reason or None,
        }

    def block(self, index: int, block: Block) -> Iterator[bytes]:
        if block.text or block.logprobs or block.finish_reason:
            extras = self.last_extras() if block.finish_reason else {}
            yield self.chunk([self.choice(index, block)], **extras)

    def _logprobs(self, index: int, logprobs: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        """The tokens of one character have the same offset."""
        if self.request.options.logprobs is None:
            return None
        tokenizer = self.runner.pair.tokenizer
        if index not in self._read:
            self._read[index] = Detokenizer(tokenizer, self.choices[index].prompted.before)
        offsets = []
        for position in logprobs:
            offsets.append(self._read[index].length)
            self._read[index].add(position.token)
        return {
            "tokens": [token_text(tokenizer, position.token) for position in logprobs],
            "token_logprobs": [max(position.logprob, MIN_LOGPROB) for position in logprobs],
            "top_logprobs": [
                {token_text(tokenizer, token): max(each, MIN_LOGPROB) for token, each in one.top}
                for one in logprobs
            ],
            "text_offset": offsets,
        }
