"""Makes the golden cases of MTP heads with experts; needs torch, and no test does.

    pip install torch==2.13.0 transformers==5.24.0
    python tests/golden/mtp_qwen3_next/make.py [FAMILY]

Two random targets by transformers' models, and heads from the published equations around
transformers' own decoder layer, trained for a few seconds on the target's greedy text. A head reads
the hidden state after the target's final norm behind the embedding of the token after it; its own
normed output is fed back; after a verify the pairs of accepted tokens are made again from the
target's hidden states. Nothing is cached: each step reads the whole text.
"""

# pyright: reportMissingImports=false

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import (
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as moe
from transformers.models.qwen3_next import modeling_qwen3_next as following

GOLDEN = Path(__file__).parents[1]
TOKENIZER = GOLDEN / "mtp_qwen35" / "target"
STOP, TOKENS, DEPTHS = 98, 48, (1, 2, 3)
LENGTHS = (3, 12, 25, 40)  # of the prompts
STEPS = 150
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
SIZES: dict[str, Any] = {
    "vocab_size": 104,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "full_attention_interval": 2,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "eos_token_id": STOP,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "rope_parameters": ROPE,
}
FAMILIES = {
    "qwen3_next": (Qwen3NextConfig, Qwen3NextForCausalLM, following, "Qwen3Next"),
    "qwen3_5_moe": (Qwen3_5MoeTextConfig, Qwen3_5MoeForCausalLM, moe, "Qwen3_5Moe"),
}
FOLDERS = {"qwen3_next": "mtp_qwen3_next", "qwen3_5_moe": "mtp_qwen35_moe"}


class Head(nn.Module):
    """One decoder layer with full attention over a token and the hidden state before it."""

    def __init__(self, config: Any, module: Any, name: str):
        super().__init__()
        size = config.hidden_size
        norm = getattr(module, f"{name}RMSNorm")
        self.pre_fc_norm_embedding = norm(size, config.rms_norm_eps)
        self.pre_fc_norm_hidden = norm(size, config.rms_norm_eps)
        self.fc = nn.Linear(2 * size, size, bias=False)
        full = type(config)(**{**config.to_dict(), "layer_types": ["full_attention"] * 4})
        full._attn_implementation = "eager"
        self.layers = nn.ModuleList([getattr(module, f"{name}DecoderLayer")(full, 0)])
        self.norm = norm(size, config.rms_norm_eps)

    def forward(self, embedded: torch.Tensor, hidden: torch.Tensor, rotary: Any) -> torch.Tensor:
        """Embeddings and hidden states [1, S, H] -> normed outputs [1, S, H]."""
        both = (self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden))
        x = self.fc(torch.cat(both, dim=-1))
        rows = x.shape[1]
        places = torch.arange(rows)[None]
        mask = torch.full((rows, rows), -torch.inf).triu(1)[None, None]
        return self.norm(
            self.layers[0](
                x,
                position_embeddings=rotary(x, places),
                attention_mask=mask,
                position_ids=places,
            )
        )


class Pair:
    def __init__(self, model: nn.Module, head: Head):
        self.model = model
        self.head = head
        self.inner: Any = model.model

    def hidden(self, tokens: list[int]) -> torch.Tensor:
        """The hidden states after the final norm, [1, S, H]."""
        return self.inner(input_ids=torch.tensor([tokens]), use_cache=False).last_hidden_state

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.model.lm_head(hidden)

    def outputs(self, tokens: list[int], hidden: torch.Tensor) -> torch.Tensor:
        """The head's normed outputs for S pairs; tokens: those after the hidden states."""
        embedded = self.inner.embed_tokens(torch.tensor([tokens]))
        return self.head(embedded, hidden, self.inner.rotary_emb)


@torch.no_grad()
def greedy(pair: Pair, prompt: list[int]) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < len(prompt) + TOKENS and (len(tokens) == len(prompt) or tokens[-1] != STOP):
        tokens.append(int(pair.logits(pair.hidden(tokens))[0, -1].argmax()))
    return tokens[len(prompt) :]


def train(pair: Pair, texts: list[list[int]]) -> float:
    """Train the head on each text's next tokens but one; returns the last loss."""
    optimizer = torch.optim.Adam(pair.head.parameters(), lr=5e-3)
    states = []
    with torch.no_grad():
        states = [pair.hidden(text) for text in texts]
    loss = torch.tensor(0.0)
    for _ in range(STEPS):
        optimizer.zero_grad()
        losses = []
        for text, hidden in zip(texts, states, strict=True):
            own = pair.outputs(text[1:], hidden[:, :-1])
            again = pair.outputs(text[2:], own[:, :-1])
            for depth, outputs in ((2, own[:, :-1]), (3, again[:, :-1])):
                wanted = torch.tensor(text[depth:])
                losses.append(nn.functional.cross_entropy(pair.logits(outputs)[0], wanted))
        loss = torch.stack(losses).mean()
        loss.backward()
        optimizer.step()
    return loss.item()


@torch.no_grad()
def rounds(pair: Pair, prompt: list[int], depth: int) -> tuple[list[int], list[int], Any]:
    """The answer, the tokens that each verify committed, and its drafts."""
    tokens = list(prompt)
    tokens.append(int(pair.logits(pair.hidden(tokens))[0, -1].argmax()))
    committed, proposed = [], []
    while len(tokens) < len(prompt) + TOKENS and tokens[-1] != STOP:
        hidden = pair.hidden(tokens[:-1])
        after, drafts = tokens[1:], []
        for _ in range(depth):
            own = pair.outputs(after, hidden)[:, -1:]
            drafts.append(int(pair.logits(own)[0, -1].argmax()))
            after = [*after, drafts[-1]]
            hidden = torch.cat([hidden, own], dim=1)
        said = (
            pair.logits(pair.hidden([*tokens, *drafts]))[0, len(tokens) - 1 :].argmax(-1).tolist()
        )
        kept = next((n for n, draft in enumerate(drafts) if draft != said[n]), depth)
        new = said[: kept + 1]
        if STOP in new:
            new = new[: new.index(STOP) + 1]
        new = new[: len(prompt) + TOKENS - len(tokens)]
        tokens += new
        committed.append(len(new))
        proposed.append(drafts)
    return tokens[len(prompt) :], committed, proposed


def published(family: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors under the names of the original checkpoints: Qwen3-Next has experts one by one."""
    found = {}
    for name, value in tensors.items():
        if family != "qwen3_next" or ".experts." not in name:
            found[name] = value
            continue
        place = name.rpartition(".")[0]
        for number, matrix in enumerate(value):
            if name.endswith("down_proj"):
                found[f"{place}.{number}.down_proj.weight"] = matrix
            else:
                gate, up = matrix.chunk(2)
                found[f"{place}.{number}.gate_proj.weight"] = gate
                found[f"{place}.{number}.up_proj.weight"] = up
    return {name: value.detach().clone().contiguous() for name, value in found.items()}


def make(family: str) -> None:
    """One case: a target with its head, and what is expected of it."""
    config_type, model_type, module, name = FAMILIES[family]
    torch.manual_seed(3)
    config = config_type(**SIZES)
    config._attn_implementation = "eager"
    model = model_type(config).eval()
    head = Head(config, module, name)
    for place, value in [*model.named_parameters(), *head.named_parameters()]:
        if value.ndim > 1 and "conv1d" not in place:
            value.data = 2 * torch.randn_like(value) * value.shape[-1] ** -0.5
        elif "norm" in place:
            value.data = value.data + 0.1 * torch.randn_like(value)
    pair = Pair(model, head)
    prompts = [torch.randint(1, 96, (length,)).tolist() for length in LENGTHS]
    answers = [greedy(pair, prompt) for prompt in prompts]
    model.requires_grad_(False)
    texts = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    print(family, "loss", train(pair, texts), "lengths", [len(answer) for answer in answers])
    depths = {}
    for depth in DEPTHS:
        found = [rounds(pair, prompt, depth) for prompt in prompts]
        assert [answer for answer, _, _ in found] == answers
        depths[str(depth)] = {
            "committed": [c for _, c, _ in found],
            "drafts": [d for *_, d in found],
        }
        print(depth, [sum(c) / len(c) for _, c, _ in found])
    folder = GOLDEN / FOLDERS[family]
    target = folder / "target"
    target.mkdir(parents=True, exist_ok=True)
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(TOKENIZER / file, target / file)
    weights = published(family, dict(model.state_dict()))
    raw: dict[str, Any] = {**SIZES, "model_type": family, "num_nextn_predict_layers": 1}
    if family == "qwen3_next":
        raw |= {key: ROPE[key] for key in ("rope_theta", "partial_rotary_factor")}
        raw["architectures"] = ["Qwen3NextForCausalLM"]
    else:
        inner = {**SIZES, "model_type": "qwen3_5_moe_text", "mtp_num_hidden_layers": 1}
        architectures = ["Qwen3_5MoeForConditionalGeneration"]
        raw = {"architectures": architectures, "model_type": family, "text_config": inner}
        weights = {
            key.replace("model.", "model.language_model.", 1): value
            for key, value in weights.items()
        }
    heads = {f"mtp.{key}": value for key, value in published(family, head.state_dict()).items()}
    save_file({**weights, **heads}, target / "model.safetensors", {"format": "pt"})
    (target / "config.json").write_text(json.dumps(raw, indent=1) + "\n")
    expected = {
        "max_new_tokens": TOKENS,
        "prompts": prompts,
        "greedy_tokens": answers,
        "depths": depths,
    }
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    for family in sys.argv[1:] or FAMILIES:
        make(family)
