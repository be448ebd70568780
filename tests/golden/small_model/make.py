"""Makes this golden case with transformers' assisted generation; needs torch, and no test does.

    pip install torch==2.13.0 transformers==4.53.1
    python tests/golden/small_model/make.py

The target is that of `qwen3_full`. A small Llama of its vocabulary is trained on its greedy text,
for so few steps that it is right about half the time. With it as the assistant transformers answers
beginnings of these texts, greedily and with a constant number of drafts. It drafts before the
target has said a token; the token that a prefill gives is therefore part of its prompt.
(transformers 5.15 takes back too few of the assistant's rows and fails.)
"""

# pyright: reportMissingImports=false, reportPrivateImportUsage=false

import json
import shutil
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.generation import utils
from transformers.generation.candidate_generator import AssistedCandidateGenerator

HERE = Path(__file__).parent
TARGET = HERE.parent / "qwen3_full" / "target"
TEXTS, BEGUN, LENGTH, STEPS, LOSS = 12, 6, 100, 1500, 0.5
DRAFTS, NEW = 5, 64  # drafts of a verify; tokens of an answer, the prefill's included


@torch.no_grad()
def greedy_texts(target: nn.Module) -> torch.Tensor:
    """Random beginnings and how the target goes on: [TEXTS, LENGTH]."""
    text = torch.randint(0, 96, (TEXTS, BEGUN))
    while text.shape[1] < LENGTH:
        text = torch.cat([text, target(text).logits[:, -1:].argmax(-1)], dim=1)
    return text


def train(target: nn.Module, texts: torch.Tensor) -> LlamaForCausalLM:
    """A small model after some steps on what the target chose."""
    config = LlamaConfig(
        vocab_size=target.config.vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=target.config.eos_token_id,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).float()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for step in range(STEPS):
        logits = model(texts[:, :-1]).logits[:, BEGUN - 1 :]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), texts[:, BEGUN:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(step, loss.item())
        if loss.item() < LOSS:
            break
    return model.eval()


class Recorded(AssistedCandidateGenerator):
    """Keeps what an assistant drafts in every round, and how many of them the target takes."""

    drafts: ClassVar[list[list[int]]] = []
    accepted: ClassVar[list[int]] = []

    def get_candidates(self, input_ids, *others, **named):
        found = super().get_candidates(input_ids, *others, **named)
        self.drafts.append(found[0][0, input_ids.shape[1] :].tolist())
        return found

    def update_candidate_strategy(self, input_ids, scores, num_matches):
        self.accepted.append(int(num_matches))
        super().update_candidate_strategy(input_ids, scores, num_matches)


def main() -> None:
    torch.manual_seed(5)
    target = AutoModelForCausalLM.from_pretrained(TARGET).eval()
    texts = greedy_texts(target)
    train(target, texts).save_pretrained(HERE / "draft")
    (HERE / "draft" / "generation_config.json").unlink()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TARGET / name, HERE / "draft" / name)
    assistant = AutoModelForCausalLM.from_pretrained(HERE / "draft").eval()
    assistant.generation_config.num_assistant_tokens = DRAFTS
    assistant.generation_config.num_assistant_tokens_schedule = "constant"
    assistant.generation_config.assistant_confidence_threshold = 0.0
    utils.AssistedCandidateGenerator, answers = Recorded, []
    prompts = [texts[number, :size].tolist() for number, size in enumerate((6, 9, 16, 50))]
    for prompt in prompts:
        Recorded.drafts, Recorded.accepted = [], []
        with torch.no_grad():
            first = int(target(torch.tensor([prompt])).logits[0, -1].argmax())
            begun = torch.tensor([[*prompt, first]])
            options = {"max_new_tokens": NEW - 1, "do_sample": False, "pad_token_id": 0}
            options["attention_mask"] = torch.ones_like(begun)
            said = target.generate(begun, assistant_model=assistant, **options)
            plain = target.generate(begun, **options)
        assert torch.equal(said, plain)
        tokens = said[0, len(prompt) :].tolist()
        answers.append({"tokens": tokens, "accepted": Recorded.accepted, "drafts": Recorded.drafts})
        print(len(tokens), Recorded.accepted)
    expected = {"drafts": DRAFTS, "new": NEW, "prompts": prompts, "answers": answers}
    (HERE / "expected.json").write_text(json.dumps(expected) + "\n")


main()
