"""Makes this golden case with transformers' own classes; needs torch, and no test needs this.

    pip install torch transformers==5.24.0
    python tests/golden/gemma4_assistant/make.py

Two untrained assistants for the target of `gemma4`: one with a dense head, one whose head scores
the tokens of a few clusters only. For every place of a text, greedily as the target goes on, three
drafts after the token there.
"""

# pyright: reportMissingImports=false

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig
from transformers.models.gemma4_assistant.configuration_gemma4_assistant import (
    Gemma4AssistantConfig,
)
from transformers.models.gemma4_assistant.modeling_gemma4_assistant import (
    Gemma4AssistantForCausalLM,
)

HERE = Path(__file__).parent
TARGET = HERE.parent / "gemma4" / "target"
SETTINGS = json.loads((TARGET / "config.json").read_text())
SHARED = (
    "vocab_size",
    "num_key_value_heads",
    "head_dim",
    "global_head_dim",
    "sliding_window",
    "rope_parameters",
    "max_position_embeddings",
)
DRAFTS, TEXTS, LENGTH, LOGITS_AT = 3, 2, 60, (1, 20, 50)
HEADS = {
    "dense": {},
    "clusters": {
        "use_ordered_embeddings": True,
        "num_centroids": 8,
        "centroid_intermediate_top_k": 3,
    },
}


def make_assistant(head: dict) -> Gemma4AssistantForCausalLM:
    """Four layers of random weights."""
    text = Gemma4TextConfig(
        **{name: SETTINGS[name] for name in SHARED},
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        layer_types=["sliding_attention"] * 3 + ["full_attention"],
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=0,
        num_kv_shared_layers=4,
        use_double_wide_mlp=False,
        enable_moe_block=False,
        final_logit_softcapping=None,
    )
    config = Gemma4AssistantConfig(
        text_config=text, backbone_hidden_size=SETTINGS["hidden_size"], **head
    )
    model = Gemma4AssistantForCausalLM(config).float().eval()
    for name, value in model.named_parameters():
        if "norm" in name:
            value.data = 1 + 0.1 * torch.randn_like(value)
        elif "layer_scalar" in name:
            value.data = torch.ones_like(value)
        else:
            value.data = torch.randn_like(value) * 1.5 / value.shape[-1] ** 0.5
    if model.masked_embedding is not None:
        model.masked_embedding.token_ordering.copy_(torch.randperm(SETTINGS["vocab_size"]))
    return model


@torch.no_grad()
def greedy_text(target: Any) -> torch.Tensor:
    """A random beginning and how the target goes on: [1, LENGTH]."""
    text = torch.randint(0, 96, (1, 5))
    while text.shape[1] < LENGTH:
        text = torch.cat([text, target(text).logits[:, -1:].argmax(-1)], dim=1)
    return text


@torch.no_grad()
def drafts_at(target, assistant, text: torch.Tensor) -> tuple[list[list[int]], list[list[float]]]:
    """Three drafts after text[n], from the first n tokens; for some n the first draft's logits."""
    cache: Any = DynamicCache()  # without a config every layer keeps all rows
    hidden = target.model(text, past_key_values=cache, use_cache=True).last_hidden_state
    kinds = SETTINGS["layer_types"]
    last = {kind: max(n for n, one in enumerate(kinds) if one == kind) for kind in set(kinds)}
    drafts, logits = [], []
    for count in range(1, LENGTH):
        held = {}
        for kind, layer in last.items():
            window = SETTINGS["sliding_window"] - 1 if kind == "sliding_attention" else LENGTH
            rows = slice(max(0, count - window), count)
            held[kind] = (
                cache.layers[layer].keys[:, :, rows],
                cache.layers[layer].values[:, :, rows],
            )
        token, state, found = text[:, count : count + 1], hidden[:, count - 1 : count], []
        for number in range(DRAFTS):
            embedded = target.get_input_embeddings()(token)
            out = assistant(
                inputs_embeds=torch.cat([embedded, state], dim=-1),
                position_ids=torch.tensor([[count]]),
                shared_kv_states=held,
            )
            token, state = out.logits.argmax(-1), out.last_hidden_state
            found.append(int(token))
            if number == 0 and count in LOGITS_AT:
                logits.append([round(float(x), 5) for x in out.logits[0, 0]])
        drafts.append(found)
    return drafts, logits


def as_published(file: Path) -> None:
    """Name the heads' size in full layers as published configs do; this transformers does not."""
    config = json.loads(file.read_text())
    config["text_config"].pop("per_layer_config", None)
    config["text_config"]["global_head_dim"] = SETTINGS["global_head_dim"]
    file.write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    torch.manual_seed(3)
    target = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()
    texts = [greedy_text(target) for _ in range(TEXTS)]
    expected = {"texts": [text[0].tolist() for text in texts], "logits_at": LOGITS_AT}
    for name, head in HEADS.items():
        assistant = make_assistant(head)
        assistant.save_pretrained(HERE / name)
        as_published(HERE / name / "config.json")
        found = [drafts_at(target, assistant, text) for text in texts]
        expected[name] = {"drafts": [f[0] for f in found], "logits": [f[1] for f in found]}
    (HERE / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
