"""The Markov head that DSpark adds to a DFlash drafter, and blocks that are drafted with it.

DSpark (arXiv 2607.05147): one pass of the drafter gives every position of a block its logits. The
Markov head, of a low rank, then adds what follows from the token before; so drafts are chosen one
after another, but only this head runs for each.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx import nn

from dflash_mlx.drafters.chain import ChainSource, Choose
from dflash_mlx.drafters.network import DraftNetwork

from .config import DraftConfig, DSpark


class MarkovHead(nn.Module):
    """What the token before adds to a position's logits.

    vanilla: W2 e, where e = W1[token] has the head's rank. gated: W2 (g * e), where the gate
    g = sigmoid(G [h, e]) reads the position's hidden state h. rnn: W2 tanh(o), where [f, c, o] =
    J [s, e, h], and the state s, at first 0, becomes f s + (1 - f) c with f = sigmoid(f) and
    c = tanh(c). Parameter names are those of DeepSpec.
    """

    def __init__(self, heads: DSpark, config: DraftConfig):
        super().__init__()
        rank = heads.markov_rank
        self.kind = heads.markov_head
        self.markov_w1 = nn.Embedding(config.vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, config.drafted, bias=False)
        if self.kind == "gated":
            self.gate_proj = nn.Linear(config.hidden_size + rank, rank)
        elif self.kind == "rnn":
            self.joint_proj = nn.Linear(2 * rank + config.hidden_size, 3 * rank)

    def __call__(
        self, before: mx.array, hidden: mx.array, state: mx.array | None
    ) -> tuple[mx.array, mx.array | None]:
        """Tokens [B] before a position, its hidden states [B, H] and the state [B, r] or None.

        Returns the summands of its logits [B, Vd], and the state for the next position.
        """
        embedded = self.markov_w1(before)
        if self.kind == "gated":
            gate = mx.sigmoid(self.gate_proj(mx.concatenate([hidden, embedded], axis=-1)))
            embedded = gate * embedded
        elif self.kind == "rnn":
            state = mx.zeros_like(embedded) if state is None else state
            joint = self.joint_proj(mx.concatenate([state, embedded, hidden], axis=-1))
            forget, new, out = mx.split(joint, 3, axis=-1)
            forget = mx.sigmoid(forget)
            state = forget * state + (1 - forget) * mx.tanh(new)
            embedded = mx.tanh(out)
        return self.markov_w2(embedded), state


class Walks(ChainSource):
    """B blocks of one pass, whose drafts are chosen position by position.

    logits [B, γ, Vd] before the Markov head, and hidden [B, γ, H] after the final norm. `model` has
    the head, if there is one.
    """

    def __init__(self, model: DraftNetwork, logits: mx.array, hidden: mx.array):
        self._model = model
        self._logits = logits
        self._hidden = hidden

    def chains(
        self, caches: Sequence[Any], anchors: Sequence[int], count: int, choose: Choose
    ) -> tuple[mx.array, mx.array]:
        """Their logits have the target's vocabulary. Nothing more is read from the caches."""
        head = self._model.get("markov_head")
        before = mx.array([*anchors])
        state = None
        tokens = list[mx.array]()
        rows = list[mx.array]()
        for place in range(count):
            logits = self._logits[:, place]
            if head is not None:
                more, state = head(before, self._hidden[:, place], state)
                logits = logits + more.astype(logits.dtype)
            rows.append(self._model.spread(logits))
            before = choose(rows[-1])
            tokens.append(before)
        return mx.stack(tokens), mx.stack(rows)
