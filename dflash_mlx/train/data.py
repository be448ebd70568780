"""Reading and tokenizing of the training prompts, a JSONL file of prompts and chats."""

import hashlib
import json
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx.chat.template import Template
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import read_prompt_lines
from dflash_mlx.models.target import Target
from dflash_mlx.options import GenerationOptions

FORMAT_HINT = (
    'each line is a JSON string, {"prompt": "..."} or {"messages": [...]}, '
    'optionally with "think": true or false and "tools": [...]'
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A chat that ends before the assistant's answer.

    `think` None is the template's default. `reference` is the answer in the file, empty if there is
    none. It only saves time: the target verifies it, and generates from the first difference.
    `tools`: JSON schemas of functions, as chat templates take them.
    """

    messages: tuple[dict[str, Any], ...]
    think: bool | None
    line: int
    reference: str = ""
    tools: tuple[dict[str, Any], ...] = ()

    @property
    def digest(self) -> bytes:
        """A stable hash of the messages, `think`, and the tools if there are any."""
        parts = [self.messages, self.think, *([self.tools] if self.tools else [])]
        text = json.dumps(parts, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).digest()


def read_prompts(path: Path) -> list[Prompt]:
    """All prompts of a JSONL file. Raises DFlashError for the first invalid line."""
    return read_prompt_lines(path, FORMAT_HINT, parse_prompt)


def parse_prompt(value: dict[str, Any], number: int) -> Prompt | None:
    """The prompt of one line. A last message of the assistant is the reference answer."""
    messages = value.get("messages")
    if messages is None:
        messages = [{"role": "user", "content": value.get("prompt")}]
    think = value.get("think")
    tools = [] if value.get("tools") is None else value["tools"]
    if not isinstance(messages, list) or not all(map(is_message, messages)):
        return None
    reference = ""
    if messages and messages[-1]["role"] == "assistant":
        reference = messages[-1].get("content") or ""
        messages = messages[:-1]
    if not messages or not isinstance(think, bool | None) or not isinstance(tools, list):
        return None
    if not all(isinstance(tool, dict) for tool in tools):
        return None
    return Prompt(tuple(messages), think, number, reference, tuple(tools))


def is_message(value: Any) -> bool:
    """Whether a JSON value is a chat message with non-empty text, or with tool calls."""
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        return False
    content = value.get("content")
    if value.get("tool_calls"):
        return content is None or isinstance(content, str)
    return isinstance(content, str) and bool(content.strip())


def split(prompts: list[Prompt], share: float) -> tuple[list[Prompt], list[Prompt]]:
    """Split prompts into training and held-out ones by their hash; equal prompts stay together."""
    limit = round(share * 2**32)
    held_out = [int.from_bytes(p.digest[:4], "big") < limit for p in prompts]
    train = [p for p, out in zip(prompts, held_out, strict=True) if not out]
    return train, [p for p, out in zip(prompts, held_out, strict=True) if out]


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """Token ids of a prompt with the generation prompt, and of the reference answer."""

    tokens: list[int]
    reference: list[int]


def tokenize(
    target: Target, tokenizer: TokenizerWrapper, prompts: list[Prompt]
) -> list[TokenizedPrompt]:
    """Token ids of the prompts and of their reference answers.

    Raises DFlashError for a prompt that the target's chat template cannot write, and for one that
    leaves no room for an answer in the target's context.
    """
    encoded = []
    template = Template(tokenizer, target.path.name)
    for prompt in prompts:
        try:
            options = GenerationOptions(think=prompt.think, tools=prompt.tools or ())
            text = template.write(list(prompt.messages), options)
        except DFlashError as error:
            raise DFlashError(f"line {prompt.line}: {error.message}", hint=error.hint) from error
        tokens = template.encode(text)
        if len(tokens) >= target.context_length:
            raise DFlashError(
                f"the prompt in line {prompt.line} has {len(tokens)} tokens, the target's context"
                f" holds {target.context_length}.",
                hint="shorten the prompt or leave the line out",
            )
        reference: list[int] = []
        if prompt.reference:
            answer = without_overlap(text, prompt.reference)
            reference = tokenizer.encode(answer, add_special_tokens=False)
            reference.append(tokenizer.eos_token_id)
        encoded.append(TokenizedPrompt(tokens, reference))
    return encoded


def without_overlap(prompt: str, answer: str) -> str:
    """The answer without its start that the template has written already, such as <think>."""
    overlaps = (n for n in range(len(answer), 0, -1) if prompt.endswith(answer[:n]))
    return answer[next(overlaps, 0) :]


# The sequences and anchors of each training step, as indices.


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """A prompt and the target's answer; the answer starts at `answer`."""

    tokens: tuple[int, ...]
    answer: int

    @property
    def key(self) -> str:
        """A hash of the tokens, which depends on nothing else."""
        return hashlib.sha256(np.array(self.tokens, dtype="<i4").tobytes()).hexdigest()[:32]

    @property
    def anchors(self) -> range:
        """The valid anchors, as in SpecForge: positions of answer tokens with a next token."""
        return range(self.answer, len(self.tokens) - 1)


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Blocks of sequences that are computed together, each sequence's context once.

    rows: n indices into the batch; anchors: positions [n, m], -1 for padding.
    """

    rows: tuple[int, ...]
    anchors: np.ndarray

    def slices(self, chunk: int) -> list[np.ndarray]:
        """The anchors in slices of at most `chunk` blocks (at least one per sequence)."""
        count, width = self.anchors.shape
        parts = -(-width // max(1, chunk // count))
        return np.array_split(self.anchors, parts, axis=1)


def epoch_batches(count: int, size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """The batches of an epoch: at most `size` sequence numbers each, in random order.

    Lengths are mixed in a batch; `rectangles` groups similar ones.
    """
    order = np.random.default_rng([seed, epoch]).permutation(count)
    return [order[i : i + size] for i in range(0, count, size)]


def sample_anchors(
    sequences: list[TrainingSequence], count: int, seed: int, step: int
) -> list[np.ndarray]:
    """At most `count` anchors of each sequence, sorted; drawn uniformly without replacement."""
    rng = np.random.default_rng([seed, step, 1])
    drawn = []
    for sequence in sequences:
        valid = np.array(sequence.anchors)
        drawn.append(np.sort(rng.choice(valid, min(count, len(valid)), replace=False)))
    return drawn


def rectangles(anchors: list[np.ndarray], chunk: int) -> list[Rectangle]:
    """Group the blocks of a batch; sequences with a similar number of blocks share a rectangle.

    A rectangle has at most `chunk` blocks, padding included, or else a single sequence.
    """
    rows = [row for row, positions in enumerate(anchors) if len(positions)]
    parts = []
    for group in groups([len(anchors[row]) for row in rows], chunk):
        chosen = tuple(rows[n] for n in group)
        parts.append(Rectangle(chosen, padded([anchors[row] for row in chosen], -1)))
    return parts


def groups(sizes: Sequence[int], limit: int) -> Generator[list[int]]:
    """The numbers of items of similar size, the largest first.

    A group, padded to its largest item, has at most the size `limit`, or else a single item.
    """
    order = sorted(range(len(sizes)), key=lambda number: -sizes[number])
    while order:
        count = max(1, limit // sizes[order[0]])
        yield order[:count]
        order = order[count:]


# Sequences as arrays


def padded(rows: Sequence[Sequence[int] | np.ndarray], filler: int = 0) -> np.ndarray:
    """Rows of different lengths as int32 [n, L], filled up at the end."""
    grid = np.full((len(rows), max(map(len, rows))), filler, dtype=np.int32)
    for line, row in enumerate(rows):
        grid[line, : len(row)] = row
    return grid


@dataclass(frozen=True, slots=True)
class Text:
    """n sequences that are learned from, padded: taps [n, S, K * Ht], tokens [n, L], lengths [n].

    The taps end before the last anchor at the earliest.
    """

    taps: mx.array
    tokens: mx.array
    lengths: mx.array

    def rows(self, rows: mx.array) -> "Text":
        return Text(self.taps[rows], self.tokens[rows], self.lengths[rows])

    def tokens_at(self, positions: mx.array) -> mx.array:
        """The tokens at positions [n, ...]; those of padding are any."""
        at = mx.clip(positions, 0, self.tokens.shape[1] - 1).reshape(len(positions), -1)
        return mx.take_along_axis(self.tokens, at, axis=1).reshape(positions.shape)

    def labels(self, anchors: mx.array, count: int) -> tuple[mx.array, mx.array]:
        """The `count` tokens after each anchor [n, m], and whether they count: [n, m, count] both.

        The anchor -1 is padding. Tokens after the end of a sequence do not count.
        """
        positions = anchors[..., None] + mx.arange(1, count + 1)
        counts = (anchors[..., None] >= 0) & (positions < self.lengths[:, None, None])
        return self.tokens_at(positions), counts
