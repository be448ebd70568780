"""Makes this golden case with transformers' model of Meta's drafter; needs torch, and no test does.

    pip install torch==2.13.0 transformers==5.15.0
    python tests/golden/assistant/make.py

Random weights for the target of `qwen3_full`: as published but for the sizes, a window that is
shorter than the prompt, and a vocabulary, which theirs takes from the target. Their model reads the
whole context for every block, by an empty cache, as before a first draft; the head has no factor,
as in their generation.
"""

# pyright: reportMissingImports=false

import copy
import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel
from transformers.cache_utils import DFlashCache

HERE = Path(__file__).parent
TARGET = HERE.parent / "qwen3_full" / "target"
TAPS, BLOCK, MASK, WINDOW = [1, 3, 5], 8, 99, 12
TOKENS, LENGTHS = 40, (5, 11, 33)  # of the text; contexts, shorter than the window and longer


def make_drafter(target: torch.nn.Module) -> MuseGlimmerAssistantModel:
    """Random weights, rounded to what the file holds."""
    config = MuseGlimmerAssistantConfig(
        hidden_size=target.config.hidden_size,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=WINDOW,
        block_size=BLOCK,
        mask_token_id=MASK,
        target_layer_ids=TAPS,
        max_position_embeddings=2048,
    )
    model = MuseGlimmerAssistantModel(config).eval()
    for name, value in model.named_parameters():
        noise = torch.randn_like(value)
        value.data = 1 + 0.1 * noise if "norm" in name else noise * value.shape[-1] ** -0.5
        value.data = value.data.bfloat16().float()
    return model


def main() -> None:
    torch.manual_seed(6)
    target = AutoModelForCausalLM.from_pretrained(TARGET).float().eval()
    drafter = make_drafter(target)
    copy.deepcopy(drafter).bfloat16().save_pretrained(HERE / "draft")  # rounds its rotation, too
    path = HERE / "draft" / "config.json"
    extra = {"vocab_size": target.config.vocab_size}
    path.write_text(json.dumps({**json.loads(path.read_text()), **extra}, indent=1) + "\n")
    tokens = torch.randint(0, 96, (1, TOKENS))
    blocks = []
    with torch.no_grad():
        states = target(tokens, output_hidden_states=True).hidden_states
        taps = torch.cat([states[number + 1] for number in TAPS], dim=-1)
        table = target.get_input_embeddings().weight
        for length in LENGTHS:
            block = torch.tensor([[int(tokens[0, length]), *[MASK] * (BLOCK - 1)]])
            embeds = torch.nn.functional.embedding(block, table)
            cache = DFlashCache(config=drafter.config)
            cache.activate_past_recording()
            cache.set_previous_accepted_tokens(length)
            said = drafter(
                noise_embeds=embeds, context_hidden_states=taps[:, :length], past_key_values=cache
            )
            logits = target.lm_head(said.last_hidden_state)[0, 1:]
            blocks.append([[round(x, 5) for x in row] for row in logits.tolist()])
    expected = {"tokens": tokens[0].tolist(), "lengths": LENGTHS, "logits": blocks}
    (HERE / "expected.json").write_text(json.dumps(expected) + "\n")


main()
