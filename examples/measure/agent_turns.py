"""Counts the tokens of long agent conversations that each request reads again.

    .venv/bin/python examples/measure/agent_turns.py [--scale 1] [--turns 20] [--table]

Plays conversations with the server in this process, and a tiny random target with a long context.
They have the lengths and the order of those of Claude Code and Codex, and words drawn at random: a
large system prompt and tools, a first line that changes in every request, a reminder that is in the
last message only, calls and their results, and thinking that the template drops from earlier turns.
A script gives the target's answers. A conversation is played with a target whose caches can be cut
at any token, and with a hybrid one, which continues at snapshots only.

new: the tokens of what the request adds. again: the other tokens that were read. could: how many of
these belong to a prefix that an earlier request or answer has, so that a cache without limits would
have kept them; the others follow a place where the template or the client has changed the text.
"""

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import dflash_mlx  # noqa: F401  before MLX, whose matrix products on the CPU it makes fast

# isort: split
import httpx
import mlx.core as mx
import numpy as np

from dflash_mlx.chat.reasoning_parser import eos_ids_of
from dflash_mlx.chat.template import DEFAULTS, load_tokenizer
from dflash_mlx.engine.prefix_cache.tree import count_common
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.hub.resolve import bundled
from dflash_mlx.models.packed import SequencePass, SequenceRows
from dflash_mlx.models.target import Target
from dflash_mlx.options import GenerationOptions
from dflash_mlx.pair import Pair
from dflash_mlx.serve.app import Server
from dflash_mlx.serve.protocol import Settings

CACHE = 4 << 30  # bytes; large enough that nothing is evicted
TARGETS: dict[str, dict[str, Any]] = {
    "dense": {"model_type": "qwen3", "num_hidden_layers": 1},
    "hybrid": {
        "model_type": "lfm2",
        "num_hidden_layers": 2,
        "full_attn_idxs": [1],
        "conv_L_cache": 3,
        "conv_bias": False,
        "norm_eps": 1e-6,
        "block_dim": 32,
        "block_ff_dim": 48,
        "block_multiple_of": 8,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": True,
    },
}
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 1 << 17,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}


def make_target(family: str, vocab_size: int, ends: frozenset[int]) -> Target:
    """A tiny target with MLX's random weights."""
    config = {**SHAPE, **TARGETS[family], "vocab_size": vocab_size}
    module = import_module(f"mlx_lm.models.{config['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(config))
    mx.eval(model.parameters())
    return Target(model, Checkpoint(Path(family), config), ends)


# Answers by a script


@dataclass
class Script:
    """What the target generates. says: the text of the next answer. prompts: of all requests."""

    says: str = ""
    tokens: list[int] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)


def scripted_pair(family: str, script: Script) -> Pair:
    """A pair whose target answers each chat as the script says."""
    tokenizer = load_tokenizer(Checkpoint.read(bundled("target")))
    target = make_target(family, len(tokenizer.get_vocab()), eos_ids_of(tokenizer))
    read_honestly = target.read

    def read(parts: Sequence[SequenceRows], **options: Any) -> list[SequencePass]:
        starts = [part.cache.offset for part in parts]
        passes = []
        for start, part, done in zip(starts, parts, read_honestly(parts, **options), strict=True):
            rows = len(done.logits)
            after = script.tokens[start + 1 : start + 1 + part.tokens.size][-rows:]
            logits = 20.0 * (mx.array(after)[:, None] == mx.arange(target.vocab_size))
            passes.append(SequencePass(0 * done.logits + logits, done.taps))
        return passes

    class ScriptedPair(Pair):
        """Writes the script of each answer after its prompt."""

        def chat_tokens(self, messages: Any, options: GenerationOptions = DEFAULTS) -> list[int]:
            ids = super().chat_tokens(messages, options)
            script.prompts.append(ids)
            script.tokens = [*ids, *self.encode(script.says), *target.eos_ids, *[0] * 8]
            return ids

    target.read = read  # type: ignore[method-assign]
    return ScriptedPair.of(target, None, tokenizer, family, None)


# Conversations


@dataclass(frozen=True, slots=True)
class Agent:
    """The lengths of an agent's conversation, in tokens.

    steps: calls per question. header: a first line of the system prompt that changes. reminder:
    at the end of the last message only. keeps_thinking: whether the client sends it back.
    """

    path: str
    system: int
    tools: int
    first: int
    question: int
    result: int
    thinking: int
    text: int
    steps: int = 4
    header: bool = False
    reminder: int = 0
    keeps_thinking: bool = True


AGENTS = {
    "Claude Code": Agent(
        "/v1/messages", 3000, 14_000, 1500, 60, 900, 150, 60, header=True, reminder=150
    ),
    "Codex": Agent("/v1/responses", 5000, 4000, 700, 60, 700, 200, 60),
    "Codex without reasoning": Agent(
        "/v1/responses", 5000, 4000, 700, 60, 700, 200, 60, keeps_thinking=False
    ),
}


@dataclass(frozen=True, slots=True)
class Turn:
    """The tokens of one request: its prompt, what was kept, what is new, what could be kept."""

    prompt: int
    kept: int
    new: int
    could: int

    @property
    def again(self) -> int:
        return max(0, self.prompt - self.kept - self.new)


@dataclass
class Conversation:
    """Plays one agent's conversation with a server of a pair."""

    agent: Agent
    pair: Pair
    script: Script
    scale: float
    dice: Random = field(default_factory=lambda: Random(1))
    history: list[dict[str, Any]] = field(default_factory=list)

    def words(self, tokens: int) -> str:
        """Random words, about as many tokens at this scale."""
        words = ["".join(self.dice.choices("aeinorst", k=4)) for _ in range(1 + tokens)]
        ids = self.pair.tokenizer.encode(" ".join(words), add_special_tokens=False)
        return self.pair.tokenizer.decode(ids[: max(1, int(tokens * self.scale))]).strip()

    async def play(self, turns: int) -> list[Turn]:
        settings = Settings(("m",), options=GenerationOptions(mode="baseline"))
        server = Server(self.pair, settings)
        self.pair.engine.prefix_cache.limit = CACHE
        transport = httpx.ASGITransport(app=server.app)
        system, tools = self.words(self.agent.system), self.tools()
        found: list[Turn] = []
        read: list[np.ndarray] = []  # prompts with their answers
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for number in range(turns):
                added = self.add_question(number)
                ends = number % (self.agent.steps + 1) == self.agent.steps
                self.script.says = self.answer(ends)
                body = self.body(system, tools, number)
                reply = await client.post(self.agent.path, json=body, timeout=None)
                assert reply.status_code == 200, reply.text
                prompt = self.script.prompts[-1]
                could = max((count_common(np.array(prompt), other) for other in read), default=0)
                timings = reply.json()["timings"]
                new = len(self.pair.encode(added)) if number else len(prompt)
                kept = timings["cache_n"]
                found.append(Turn(len(prompt), kept, new, max(0, could - kept)))
                read.append(np.array([*prompt, *self.pair.encode(self.script.says)]))
                self.add_answer(reply.json())
        return found

    def tools(self) -> list[dict[str, Any]]:
        """Sixteen tools; the first one is called."""
        schema = {"type": "object", "properties": {"path": {"type": "string"}}}
        key = "input_schema" if self.agent.path == "/v1/messages" else "parameters"
        kind = {} if self.agent.path == "/v1/messages" else {"type": "function"}
        names = ["read", *(f"tool_{number}" for number in range(15))]
        about = self.agent.tools // len(names)
        return [
            {**kind, "name": name, "description": self.words(about), key: schema} for name in names
        ]

    def answer(self, ends: bool) -> str:
        """The text that the model generates: thinking, a text, and a call unless the turn ends."""
        call = json.dumps({"name": "read", "arguments": {"path": self.words(8)}})
        calls = "" if ends else f"\n<tool_call>\n{call}\n</tool_call>"
        thinking = f"<think>\n{self.words(self.agent.thinking)}\n</think>\n\n"
        return f"{thinking}{self.words(self.agent.text)}{calls}"

    def add_question(self, number: int) -> str:
        """Add the user's question, or the result of the last call; returns its text."""
        agent = self.agent
        is_question = number % (agent.steps + 1) == 0
        tokens = agent.question if is_question else agent.result
        text = self.words(tokens if number else tokens + agent.first)
        if agent.path == "/v1/messages":
            block: dict[str, Any] = {"type": "text", "text": text}
            if not is_question:
                call = self.history[-1]["content"][-1]["id"]
                block = {"type": "tool_result", "tool_use_id": call, "content": text}
            self.history.append({"role": "user", "content": [block]})
        elif is_question:
            self.history.append({"role": "user", "content": text})
        else:
            call = self.history[-1]["call_id"]
            item = {"type": "function_call_output", "call_id": call, "output": text}
            self.history.append(item)
        return text

    def add_answer(self, reply: dict[str, Any]) -> None:
        if self.agent.path == "/v1/messages":
            self.history.append({"role": "assistant", "content": reply["content"]})
            return
        for item in reply["output"]:
            if self.agent.keeps_thinking or item["type"] != "reasoning":
                self.history.append(item)

    def body(self, system: str, tools: list[Any], number: int) -> dict[str, Any]:
        """The request of a turn."""
        body: dict[str, Any] = {"model": "m", "tools": tools}
        if self.agent.path == "/v1/responses":
            return {**body, "instructions": system, "input": self.history}
        blocks = [{"type": "text", "text": system}]
        if self.agent.header:
            line = f"x-anthropic-billing-header: cch={number:05};"
            blocks = [{"type": "text", "text": line}, *blocks]
        *earlier, last = self.history
        reminder = f"<system-reminder>{self.words(self.agent.reminder)}</system-reminder>"
        content = [*last["content"], {"type": "text", "text": reminder}]
        messages = [*earlier, {**last, "content": content}]
        return {**body, "max_tokens": 4096, "system": blocks, "messages": messages}


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--scale", type=float, default=1.0, help="of all lengths")
    options.add_argument("--turns", type=int, default=20)
    options.add_argument("--table", action="store_true", help="the table of the guide alone")
    given = options.parse_args()
    rows = []
    for family in TARGETS:
        for name, agent in AGENTS.items():
            script = Script()
            played = Conversation(agent, scripted_pair(family, script), script, given.scale)
            turns = asyncio.run(played.play(given.turns))
            if not given.table:
                print(f"{name}, {family}")
                print(f"{'turn':>5}{'prompt':>8}{'kept':>8}{'new':>8}{'again':>8}{'could':>8}")
                for number, turn in enumerate(turns, start=1):
                    numbers = (turn.prompt, turn.kept, turn.new, turn.again, turn.could)
                    print(f"{number:5}" + "".join(f"{one:8}" for one in numbers))
            later = turns[1:]
            sums = [
                sum(turn.prompt for turn in later),
                sum(turn.kept for turn in later),
                sum(turn.again for turn in later),
                sum(turn.could for turn in later),
            ]
            rows.append((name, family, *sums))
    print("\n| conversation | target | prompts | kept | read again | of that, could be kept |")
    print("|---|---|---:|---:|---:|---:|")
    for name, family, *sums in rows:
        print(f"| {name} | {family} | " + " | ".join(f"{one:,}" for one in sums) + " |")


if __name__ == "__main__":
    main()
