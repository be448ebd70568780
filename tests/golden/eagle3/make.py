"""Makes this golden case with the authors' own code; needs torch, and no test needs this.

    pip install torch transformers==4.53.1 accelerate safetensors
    git clone https://github.com/SafeAILab/EAGLE
    PYTHONPATH=EAGLE python tests/golden/eagle3/make.py

A random Llama of eight layers is the target, and a head is trained on its greedy text.
The authors' `EaModel` then answers prompts: by its dynamic tree as published (60 rows, ten wide,
eight deep), and by a chain of five drafts, which is a tree one wide.
"""

# pyright: reportMissingImports=false

import json
import random
import shutil
from collections import Counter
from pathlib import Path

import torch
from eagle.model import ea_model
from eagle.model.cnets import Model
from eagle.model.configs import EConfig
from safetensors.torch import save_file
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

HERE = Path(__file__).parent
VOCAB, DRAFTED, END, LAYERS, HIDDEN = 104, 60, 98, 8, 32
TAPS = (2, LAYERS // 2, LAYERS - 3)  # of transformers' hidden states: what enters these layers
TEXTS, LENGTH, STEPS, AHEAD = 96, 56, 450, 4
NEW, KEPT = 48, 2  # tokens of an answer; verifies of it whose drafts are kept
MODES = {
    "tree": {"total_token": 60, "depth": 7, "top_k": 10},
    "chain": {"total_token": 6, "depth": 4, "top_k": 1},
}


def make_target() -> LlamaForCausalLM:
    """Random weights, wide enough that greedy text does not settle at once."""
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        rms_norm_eps=1e-5,
        max_position_embeddings=4096,
        eos_token_id=END,
        bos_token_id=None,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).float().eval()
    for name, value in model.named_parameters():
        if "norm" in name:
            value.data = 1 + 0.1 * torch.randn_like(value)
        else:
            value.data = torch.randn_like(value) * 1.05 / value.shape[-1] ** 0.5
    model.lm_head.weight.data[END] = -model.lm_head.weight.data.mean(0)  # answers seldom end
    return model


@torch.no_grad()
def greedy_texts(target: LlamaForCausalLM) -> torch.Tensor:
    """Random beginnings and how the target goes on: [TEXTS, LENGTH]."""
    text = torch.randint(0, 96, (TEXTS, 8))
    while text.shape[1] < LENGTH:
        text = torch.cat([text, target(text).logits[:, -1:].argmax(-1)], dim=1)
    return text


def make_head(texts: torch.Tensor) -> tuple[Model, dict]:
    """An untrained head, and its config.json."""
    settings = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "max_position_embeddings": 2048,
        "model_type": "llama",
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 1,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-5,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFTED,
    }
    head = Model(EConfig(**settings)).float()
    used = sorted(token for token, _ in Counter(texts.flatten().tolist()).most_common(DRAFTED))
    head.d2t.copy_(torch.tensor([token - place for place, token in enumerate(used)]))
    head.t2d[used] = True
    return head, settings


def train(head: Model, target: LlamaForCausalLM, texts: torch.Tensor) -> None:
    """Cross-entropy of the token after next, and AHEAD steps on from the head's own features."""
    with torch.no_grad():
        states = target(texts, output_hidden_states=True).hidden_states
    taps = torch.cat([states[number] for number in TAPS], dim=-1)
    head.embed_tokens.weight.data = target.model.embed_tokens.weight.data.clone()
    places = torch.full((VOCAB,), -100)
    places[head.d2t + torch.arange(DRAFTED)] = torch.arange(DRAFTED)
    parameters = [p for p in head.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=3e-3)
    loss_of = nn.CrossEntropyLoss()
    for step in range(STEPS):
        which = torch.randperm(TEXTS)[:16]
        hidden, loss = taps[which], torch.zeros(())
        for ahead in range(AHEAD):
            count = LENGTH - 2 - ahead
            hidden = head(hidden[:, :count], texts[which, 1 + ahead : LENGTH - 1])
            wanted = places[texts[which, 2 + ahead :]]
            loss = loss + loss_of(head.lm_head(head.norm(hidden)).flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(step, float(loss) / AHEAD)


def answers(folder: Path, prompts: list[list[int]], settings: dict) -> list[dict]:
    """What the authors' loop says, and for every verify its drafts and how many were accepted."""
    model = ea_model.EaModel.from_pretrained(
        base_model_path=str(folder / "target"),
        ea_model_path=str(folder / "draft"),
        torch_dtype=torch.float32,
        **settings,
    )
    found: list[dict] = []
    judge = ea_model.evaluate_posterior

    def recorded(logits, candidates, processor):
        best, accepted, chosen = judge(logits, candidates, processor)
        paths = [tuple(t for t in row[1:] if t >= 0) for row in candidates.tolist()]
        nodes = sorted({path[: n + 1] for path in paths for n in range(len(path))})
        found[-1]["accepted"].append(int(accepted))
        if len(found[-1]["drafts"]) < KEPT:
            found[-1]["drafts"].append(nodes)
        return best, accepted, chosen

    ea_model.evaluate_posterior = recorded
    for prompt in prompts:
        found.append({"accepted": [], "drafts": []})
        ids = model.eagenerate(torch.tensor([prompt]), max_new_tokens=NEW)
        found[-1]["tokens"] = ids[0, len(prompt) :].tolist()
    ea_model.evaluate_posterior = judge
    return found


def main() -> None:
    torch.manual_seed(3)
    random.seed(3)
    target = make_target()
    texts = greedy_texts(target)
    head, settings = make_head(texts)
    train(head, target, texts)
    target.save_pretrained(HERE / "target")
    (HERE / "target" / "generation_config.json").unlink()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(HERE.parent / "llama_full" / "target" / name, HERE / "target" / name)
    (HERE / "draft").mkdir(exist_ok=True)
    (HERE / "draft" / "config.json").write_text(json.dumps(settings, indent=1) + "\n")
    weights = {n: v.clone() for n, v in head.state_dict().items() if n != "embed_tokens.weight"}
    save_file(weights, HERE / "draft" / "model.safetensors")
    prompts = [torch.randint(0, 96, (size,)).tolist() for size in (3, 8, 17, 40)]
    expected = {"prompts": prompts, "new": NEW}
    index = HERE / "target" / "model.safetensors.index.json"  # the authors look for the embedding
    index.write_text(json.dumps({"weight_map": {"model.embed_tokens.weight": "model.safetensors"}}))
    for mode, sizes in MODES.items():
        expected[mode] = answers(HERE, prompts, sizes)
        print(mode, [each["accepted"] for each in expected[mode]])
    index.unlink()
    with torch.no_grad():
        plain = target.generate(
            torch.tensor([prompts[1]]), max_new_tokens=NEW, do_sample=False, pad_token_id=0
        )
    expected["plain"] = plain[0, len(prompts[1]) :].tolist()
    (HERE / "expected.json").write_text(json.dumps(expected) + "\n")


main()
