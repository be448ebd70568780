"""The network of a Gemma 4 assistant: layers without keys and values of their own.

    x = pre_projection([embedding of the last token, hidden state before it])
    y = norm(layers(x)); the logits of the draft are head(y)
    hidden state of the next draft = post_projection(y)

The embedding is the target's. The first hidden state is the target's, after its final norm; the
next ones are the assistant's own. Each layer attends to the target's newest keys and values of its
type. All drafts of a block have the place of the last token. The layers are mlx-lm's. Parameter
names are those of the checkpoints.
"""

from collections.abc import Mapping

import mlx.core as mx
from mlx import nn
from mlx_lm.models.gemma4_text import DecoderLayer

from .config import AssistantConfig

KeysValues = tuple[mx.array, mx.array]  # [1, Hkv, T, D] each


class Body(nn.Module):
    def __init__(self, config: AssistantConfig):
        super().__init__()
        text = config.text
        self.embed_tokens = nn.Embedding(text.vocab_size, text.hidden_size)
        self.layers = [DecoderLayer(text, number) for number in range(text.num_hidden_layers)]
        self.norm = nn.RMSNorm(text.hidden_size, eps=text.rms_norm_eps)


class MaskedEmbedding(nn.Module):
    """A head that computes the logits of the tokens in the likeliest clusters only."""

    def __init__(self, config: AssistantConfig):
        super().__init__()
        vocab = config.text.vocab_size
        self.centroids = nn.Linear(config.text.hidden_size, config.clusters, bias=False)
        self.token_ordering = mx.zeros((vocab,), mx.int32)  # cluster by cluster
        self._taken = config.taken

    def __call__(self, hidden: mx.array, embedding: nn.Embedding) -> mx.array:
        """Hidden state [1, H] and the embedding, which is the head -> logits [1, V].

        Tokens of other clusters get one less than the least of the computed logits.
        """
        scores = self.centroids(hidden)[0]
        clusters = mx.argpartition(scores, kth=-self._taken)[-self._taken :]
        tokens = self.token_ordering.reshape(len(scores), -1)[clusters].reshape(-1)
        found = embedding(tokens) @ hidden[0]
        logits = mx.broadcast_to(mx.min(found) - 1, self.token_ordering.shape)
        return mx.put_along_axis(logits, tokens, found, axis=0)[None]


class Assistant(nn.Module):
    def __init__(self, config: AssistantConfig):
        super().__init__()
        self.config = config
        hidden = config.text.hidden_size
        width = config.backbone_hidden_size
        self.model = Body(config)
        self.pre_projection = nn.Linear(2 * width, hidden, bias=False)
        self.post_projection = nn.Linear(hidden, width, bias=False)
        if config.clusters:
            self.masked_embedding = MaskedEmbedding(config)

    def __call__(
        self,
        embedding: mx.array,
        before: mx.array,
        seen: Mapping[str, KeysValues],
        position: int,
    ) -> tuple[mx.array, mx.array]:
        """One draft from a token's embedding and the hidden state before it, [1, 1, Ht] each.

        `seen` are the target's keys and values by type of layer. Returns the hidden state
        [1, 1, Ht] for the next draft and the logits [1, V] of this one.
        """
        x = self.pre_projection(mx.concatenate([embedding, before], axis=-1))
        for layer in self.model.layers:
            x, _, _ = layer(x, shared_kv=seen[layer.layer_type], offset=position)
        x = self.model.norm(x)
        return self.post_projection(x), self._logits(x[0])

    def _logits(self, hidden: mx.array) -> mx.array:
        embedding = self.model.embed_tokens
        if "masked_embedding" in self:
            return self.masked_embedding(hidden, embedding)
        return embedding.as_linear(hidden)
