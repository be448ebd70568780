"""Makes the golden case of DSpark drafters in PyTorch; needs torch, and no test does.

    pip install torch==2.13.0 safetensors
    python tests/golden/dspark/make.py

Written from the published equations (arXiv 2607.05147, and the layers of DeepSpec, `speculators`,
SpecForge, JetSpec, Qwen3 and Gemma 4), without a cache: every block reads its whole context.
"""

# pyright: reportMissingImports=false

import math
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch.nn.functional import gelu, silu

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "support"))

from dspark_cases import (  # noqa: E402
    ACCEPTED,
    ANCHORS,
    CASES,
    DIM,
    HIDDEN,
    LENGTHS,
    MASK,
    PROPOSALS,
    VOCAB,
    WINDOW,
    Case,
    prompt_of,
    taps_of,
)

torch.set_num_threads(1)
STEP = 7  # one of so many logits is kept
Tensors = dict[str, torch.Tensor]


def norm(x: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
    normed = x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6)
    return normed if weight is None else normed * weight


class Drafter:
    """One case, with the tensors that it shares with its target."""

    def __init__(self, case: Case):
        self.case = case
        own = {name: torch.from_numpy(value) for name, value in case.tensors.items()}
        self.at: Tensors = {name.removeprefix("logit_head."): own[name] for name in own}
        shared = load_file(HERE.parent / case.target / "target" / "model.safetensors")
        table = shared["model.embed_tokens.weight"].float()
        self.at.setdefault("embed_tokens.weight", table)
        self.at.setdefault("lm_head.weight", table)
        self.gemma = case.name == "gemma4"

    def turned(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Heads [n, S, d] with their places rotated in."""
        half = DIM // 2
        theta, pairs = (1e6, half // 4) if self.gemma else (1e4, half)
        rates = torch.zeros(half)
        rates[:pairs] = theta ** (-torch.arange(pairs) * 2 / DIM)
        angles = places[:, None] * rates
        cos, sin = torch.cos(angles), torch.sin(angles)
        if self.case.name == "liquid":
            first, second = x[..., 0::2], x[..., 1::2]
            both = first * cos - second * sin, second * cos + first * sin
            return torch.stack(both, dim=-1).flatten(-2)
        first, second = x[..., :half], x[..., half:]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def layer(self, n: int, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """Rows x [T, H] of a block that follow context vectors [S, H]."""
        at = {
            name.removeprefix(f"layers.{n}.").removesuffix(".weight"): value
            for name, value in self.at.items()
        }
        read = norm(x, at["input_layernorm"])
        rows = torch.cat([context, read])
        start, count = len(context), len(x)
        places = torch.arange(len(rows)).float()

        def heads(x: torch.Tensor, name: str) -> torch.Tensor:
            return (x @ at[f"self_attn.{name}"].T).reshape(len(x), -1, DIM).transpose(0, 1)

        queries = norm(heads(read, "q_proj"), at["self_attn.q_norm"])
        keys = norm(heads(rows, "k_proj"), at["self_attn.k_norm"])
        values = heads(rows, "k_proj" if self.gemma else "v_proj")
        values = norm(values) if self.gemma else values
        queries, keys = self.turned(queries, places[start:]), self.turned(keys, places)
        scores = queries @ keys.transpose(-1, -2) * (1 if self.gemma else DIM**-0.5)
        distance = places[start:, None] - places
        if self.case.causal[n]:
            scores = scores.masked_fill(distance < 0, -torch.inf)
        if "speculators" in self.case.name and n == 0:
            scores = scores.masked_fill(distance >= WINDOW, -torch.inf)
        mixed = (scores.softmax(-1) @ values).transpose(0, 1).reshape(count, -1)
        mixed = mixed @ at["self_attn.o_proj"].T
        smooth = self.gemma or self.case.name == "speculators_masks"
        act = (lambda x: gelu(x, approximate="tanh")) if smooth else silu

        def mlp(x: torch.Tensor) -> torch.Tensor:
            return (act(x @ at["mlp.gate_proj"].T) * (x @ at["mlp.up_proj"].T)) @ at[
                "mlp.down_proj"
            ].T

        if not self.gemma:
            x = x + mixed
            return x + mlp(norm(x, at["post_attention_layernorm"]))
        x = x + norm(mixed, at["post_attention_layernorm"])
        inner = mlp(norm(x, at["pre_feedforward_layernorm"]))
        return (x + norm(inner, at["post_feedforward_layernorm"])) * at["layer_scalar"]

    def draft(self, taps: torch.Tensor, anchor: int) -> tuple[list[int], np.ndarray, np.ndarray]:
        """The greedy drafts after an anchor, their logits [γ, V] and their confidence [γ]."""
        at = self.at
        context = norm(taps @ at["fc.weight"].T, at["hidden_norm.weight"])
        rows = PROPOSALS + (not self.case.from_anchor)
        x = at["embed_tokens.weight"][[anchor, *[MASK] * (rows - 1)]]
        x = x * math.sqrt(HIDDEN) if self.gemma else x
        for n in (0, 1):
            x = self.layer(n, x, context)
        hidden = norm(x, at["norm.weight"])[-PROPOSALS:]
        logits = hidden @ at["lm_head.weight"].T
        logits = 3 * torch.tanh(logits / 3) if self.gemma else logits
        ids = torch.arange(len(logits[0])) + at.get("d2t", 0)
        tokens, kept, sure, state = [], [], [], torch.zeros(8)
        for h, row in zip(hidden, logits, strict=True):
            before = tokens[-1] if tokens else anchor
            e = at["markov_head.markov_w1.weight"][before] if self.case.kind else None
            if self.case.kind == "vanilla":
                row = row + at["markov_head.markov_w2.weight"] @ e
            if self.case.kind == "gated":
                inputs = at["markov_head.gate_proj.weight"] @ torch.cat([h, e])
                gate = torch.sigmoid(inputs + at["markov_head.gate_proj.bias"])
                row = row + at["markov_head.markov_w2.weight"] @ (gate * e)
            if self.case.kind == "rnn":
                joint = at["markov_head.joint_proj.weight"] @ torch.cat([state, e, h])
                forget, new, out = (joint + at["markov_head.joint_proj.bias"]).chunk(3)
                forget = torch.sigmoid(forget)
                state = forget * state + (1 - forget) * torch.tanh(new)
                row = row + at["markov_head.markov_w2.weight"] @ torch.tanh(out)
            whole = torch.full((VOCAB,), -torch.inf)
            whole[ids] = row
            best = whole.topk(2)
            assert best.values[0] - best.values[1] > 2e-4, "two tokens are as likely"
            tokens.append(int(best.indices[0]))
            kept.append(whole.numpy())
            if "confidence_head.proj.weight" in at:
                reads = (
                    torch.cat([h, e]) if at["confidence_head.proj.weight"].shape[1] > HIDDEN else h
                )
                said = at["confidence_head.proj.weight"][0] @ reads
                sure.append(float(torch.sigmoid(said + at["confidence_head.proj.bias"][0])))
            else:
                sure.append(float(whole.softmax(-1).max()))
        return tokens, np.array(kept), np.array(sure, np.float32)


def main() -> None:
    """Write what is expected of each case, after each prompt, of each block."""
    found: dict[str, list[np.ndarray]] = {}
    for case in CASES:
        drafter = Drafter(case)
        for length in LENGTHS:
            read = prompt_of(length)
            for number, anchor in enumerate(ANCHORS):
                taps = torch.from_numpy(taps_of(0, read))
                tokens, logits, sure = drafter.draft(taps, anchor)
                for what, value in (
                    ("tokens", np.array(tokens, np.uint8)),
                    ("logits", logits[:, ::STEP].astype(np.float32)),
                    ("confidence", sure),
                ):
                    found.setdefault(f"{case.name} {what}", []).append(value)
                if number < len(ACCEPTED):
                    read = [*read, anchor, *tokens[: ACCEPTED[number]]]
    arrays = {name: np.array(values) for name, values in found.items()}
    np.savez_compressed(HERE / "expected.npz", **arrays)  # type: ignore[arg-type]


main()
