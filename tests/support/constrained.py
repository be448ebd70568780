"""Random schemas, and plain decoding under a grammar as the reference for the engine."""

import json
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import llguidance
import mlx.core as mx
import numpy as np
import tiny
from llguidance.hf import from_tokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from mlx_lm import sample_utils
from mlx_lm.generate import generate_step
from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx.constrained.grammar import WHITESPACE
from dflash_mlx.grammar import Grammar
from dflash_mlx.models.target import Target
from dflash_mlx.options import SamplingParams

WORDS = ("name", "age", "city", "colour", "total", "items", "id", "left", "right", "ok")


def random_schema(dice: random.Random, depth: int = 2) -> dict[str, Any]:
    """A schema whose answers are short: every text, list and number has a bound."""
    kinds = ["string", "pattern", "integer", "number", "boolean", "enum", "const", "any"]
    kind = dice.choice([*kinds, *["object", "array"] * (2 * depth)])
    if kind == "object":
        names = dice.sample(WORDS, dice.randint(1, 3))
        return {
            "type": "object",
            "properties": {name: random_schema(dice, depth - 1) for name in names},
            "required": dice.sample(names, dice.randint(1, len(names))),
            "additionalProperties": False,
        }
    if kind == "array":
        least = dice.randint(0, 2)
        items = random_schema(dice, depth - 1)
        return {"type": "array", "items": items, "minItems": least, "maxItems": least + 1}
    low = dice.randint(-20, 20)
    return {
        "string": {"type": "string", "minLength": dice.randint(0, 3), "maxLength": 5},
        "pattern": {"type": "string", "pattern": dice.choice(("^[a-c]{2,4}$", "^(up|down)$"))},
        "integer": {"type": "integer", "minimum": low, "maximum": low + dice.randint(0, 300)},
        "number": {"enum": [low / 4, low, 1e3]},
        "boolean": {"type": ["boolean", "null"]},
        "enum": {"enum": dice.sample(["red", "green", "greenish", "blue", 7, None], 3)},
        "const": {"const": {"kind": "fixed", "of": [1, 2, 3]}},
        "any": {"anyOf": [{"type": "boolean"}, {"const": "neither of them"}]},
    }[kind]


def asked(number: int) -> tuple[Grammar, Callable[[str], bool]]:
    """A random grammar, and a check without llguidance whether a text matches it."""
    dice = random.Random(number)
    if number % 6 == 4:
        word = "".join(dice.sample("abcdef", 3))
        text = f'start: "<" (A | B){{1,3}} ">"\nA: /[{word}]{{2,4}}/\nB: "{word[::-1]}-" /[0-9]/'
        return Grammar("lark", text), lambda said: said[0] == "<" and said[-1] == ">"
    if number % 6 == 5:
        text = rf"(yes|no|it depends), [0-9]{{1,{dice.randint(2, 5)}}}(\.[05])?"
        return Grammar("regex", text), lambda said: said.split(", ")[1].strip(".0123456789") == ""
    schema = random_schema(dice)
    return Grammar.of_schema(schema), lambda said: follows(json.loads(said), schema)


def follows(value: Any, schema: dict[str, Any]) -> bool:
    if "anyOf" in schema:
        return any(follows(value, one) for one in schema["anyOf"])
    if "const" in schema:
        return value == schema["const"]
    if "enum" in schema:
        return value in schema["enum"]
    kind = schema["type"]
    if kind == "object":
        known = schema["properties"]
        return {*schema["required"]} <= {*value} <= {*known} and all(
            follows(one, known[name]) for name, one in value.items()
        )
    if kind == "array":
        few = schema["minItems"] <= len(value) <= schema["maxItems"]
        return few and all(follows(one, schema["items"]) for one in value)
    if kind == "integer":
        return isinstance(value, int) and schema["minimum"] <= value <= schema["maximum"]
    if kind == "string":
        return isinstance(value, str) and len(value) <= schema.get("maxLength", 5)
    return value is None or isinstance(value, bool)


@cache
def trie(target: Target, tokenizer: TokenizerWrapper) -> llguidance.LLTokenizer:
    fast: Any = tokenizer._tokenizer
    return from_tokenizer(fast, n_vocab=target.vocab_size, eos_token=sorted(target.eos_ids))


def source(grammar: Grammar) -> str:
    make = llguidance.LLMatcher
    if grammar.kind == "lark":
        return make.grammar_from_lark(grammar.text)
    if grammar.kind == "regex":
        return make.grammar_from_regex(grammar.text)
    return make.grammar_from_json_schema(grammar.text, defaults={"whitespace_pattern": WHITESPACE})


class Plain:
    """Plain decoding with stock mlx-lm; a logits processor masks what the grammar forbids.

    The matcher reads the whole text again for each token. `thinks`: (start, end) tokens of thinking
    that may come first, also followed by line breaks; with `inside` the prompt has opened it.
    `least`: the smallest gap so far between the two best logits.
    """

    def __init__(
        self,
        target: Target,
        grammar: Grammar,
        thinks: tuple[int, int] | None = None,
        inside: bool = False,
        tokenizer: TokenizerWrapper | None = None,
    ):
        self.tokenizer = tokenizer or tiny.tokenizer()
        self.target, self.source = target, source(grammar)
        self.thinks, self.inside, self.least = thinks, inside, np.inf
        encode = self.tokenizer.encode
        self.breaks = {ids[0] for s in ("\n", "\n\n") if len(ids := encode(s)) == 1}

    def state(self, said: list[int]) -> tuple[np.ndarray, bool]:
        """The mask of allowed next tokens, bool [V], and whether the answer is complete."""
        ends = sorted(self.target.eos_ids)
        free = np.ones(self.target.vocab_size, dtype=bool)
        free[ends] = False
        extra: set[int] = set()
        if self.thinks is not None:
            start, end = self.thinks
            if self.inside or said[:1] == [start]:
                if end not in said:
                    return free, False
                said = said[said.index(end) + 1 :]
                extra = self.breaks
                if said[:1] and said[0] in extra and not self.follow(said)[2]:
                    said, extra = said[1:], set()
            elif not said:
                extra = {start}
        mask, whole, _ = self.follow(said)
        if not said:
            mask[list(extra)] = True
        return mask, whole

    def follow(self, text: list[int]) -> tuple[np.ndarray, bool, bool]:
        """The mask after `text`, whether the match is complete, and whether `text` is valid."""
        matcher = llguidance.LLMatcher(trie(self.target, self.tokenizer), self.source, log_level=0)
        legal = not text or matcher.consume_tokens(text)
        bits = allocate_token_bitmask(1, self.target.vocab_size)
        fill_next_token_bitmask(matcher, bits)
        mask = np.unpackbits(bits.view(np.uint8), bitorder="little")[: self.target.vocab_size]
        return mask.astype(bool), matcher.is_stopped(), legal

    def answer(
        self, prompt: list[int], max_tokens: int, params: SamplingParams | None = None
    ) -> list[int]:
        params = params or SamplingParams()

        def masked(tokens: mx.array, logits: mx.array) -> mx.array:
            said: list[int] = tokens.tolist()[len(prompt) :]  # type: ignore[index]
            allowed, _ = self.state(said)
            if not set(said) & self.target.eos_ids:
                logits = mx.where(mx.array(allowed)[None], logits, -mx.inf)
            best = np.sort(np.array(logits.astype(mx.float32))[0])[-2:]
            self.least = min(self.least, float(best[1] - best[0]))
            return logits

        sampler = sample_utils.make_sampler(
            params.temperature, params.top_p, params.min_p, 1, params.top_k
        )
        processors = [
            masked,
            *sample_utils.make_logits_processors(
                repetition_penalty=params.repetition_penalty,
                presence_penalty=params.presence_penalty,
                frequency_penalty=params.frequency_penalty,
            ),
        ]
        if params.seed is not None:
            mx.random.seed(params.seed)
        model: Any = self.target.model
        found: list[int] = []
        for token, _ in generate_step(
            mx.array(prompt),
            model,
            max_tokens=max_tokens,
            sampler=sampler,
            logits_processors=processors,
        ):
            found.append(int(token))
            if found[-1] in self.target.eos_ids or self.state(found)[1]:
                break
        return found
