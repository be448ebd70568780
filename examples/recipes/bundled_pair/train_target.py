# /// script
# requires-python = ">=3.11"
# dependencies = ["torch==2.13.0", "transformers>=5.15", "numpy"]
# ///
"""Train the bundled target from nothing: a deep, narrow Qwen3 of 4.9 M parameters.

PyTorch does this one job because MLX's CPU backend needs three times as long for a training step
and the result is the same plain checkpoint. The drafter is trained by `dflash train`, in MLX.
"""

import argparse
import copy
import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from text import WEIGHTS, chats
from tokenizer import learn, save
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy  # pyright: ignore[reportMissingImports]
from transformers import Qwen3Config, Qwen3ForCausalLM

PROMPT_WEIGHT = 0.1


def encoded(
    tokenizer: Tokenizer, seed: int, weights: Sequence[int] = WEIGHTS
) -> Iterator[tuple[int, float]]:
    """An endless stream of (token, loss weight) over whole chats."""
    start, end = tokenizer.token_to_id("<|im_start|>"), tokenizer.token_to_id("<|im_end|>")
    newline = tokenizer.encode("\n").ids
    for messages, thinking in chats(seed, weights):
        for number, message in enumerate(messages):
            last = number == len(messages) - 1
            content, said = message["content"], message["role"] == "assistant"
            if thinking and said and not last:
                content = content.split("</think>")[-1].lstrip("\n")
            taught = said and (last or not thinking)
            head = [start, *tokenizer.encode(message["role"]).ids, *newline]
            if said and thinking and last:
                opening = tokenizer.encode("<think>\n").ids
                head += opening
                content = content.removeprefix("<think>\n")
            for token in head:
                yield token, PROMPT_WEIGHT
            for token in [*tokenizer.encode(content).ids, end]:
                yield token, 1.0 if taught else PROMPT_WEIGHT
            for token in newline:
                yield token, PROMPT_WEIGHT


def rows(stream: Iterator[tuple[int, float]], length: int, count: int) -> Iterator[torch.Tensor]:
    """Batches of `count` rows, each with `length` + 1 pairs (token, weight)."""
    while True:
        flat = np.array([next(stream) for _ in range(count * (length + 1))], dtype=np.float32)
        yield torch.from_numpy(flat).view(count, length + 1, 2)


def optimizers(model: Qwen3ForCausalLM, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for embedding and norms."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    return [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def rate_at(step: int, level: int, fall: int) -> float:
    """The share of the full rate: 80 warm-up steps, constant to `level`, 0 after `fall` more."""
    warm = (step + 1) / 80 if level else 1.0
    return min(1.0, warm, (level + fall - step) / fall if fall else 1.0)


def export(model: Qwen3ForCausalLM, folder: Path) -> None:
    """Write the weights in bfloat16, with a config that older readers understand, too."""
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["rope_theta"] = config["rope_parameters"]["rope_theta"]
    path.write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/target"))
    parser.add_argument("--init", type=Path, help="go on from this folder's weights")
    parser.add_argument("--level", type=int, default=2500, help="steps at the full rate")
    parser.add_argument("--fall", type=int, default=1000, help="steps with a falling rate")
    parser.add_argument("--long", type=int, default=150, help="last steps, on rows of 2,048 tokens")
    parser.add_argument("--mix", type=int, nargs=4, default=WEIGHTS, help="shares of the families")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens in a step")
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(args.seed)

    known = args.init and Tokenizer.from_file(str(args.init / "tokenizer.json"))
    tokenizer = known or learn()
    save(tokenizer, args.out)
    config = Qwen3Config(
        vocab_size=1024,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=12,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id("<|im_end|>"),
        pad_token_id=tokenizer.token_to_id("<|endoftext|>"),
    )
    model = Qwen3ForCausalLM(config)
    if args.init:
        model.load_state_dict(Qwen3ForCausalLM.from_pretrained(args.init).state_dict())
    steppers = optimizers(model, args.rate)
    short = rows(encoded(tokenizer, args.seed, args.mix), 256, args.tokens // 256)
    long = rows(encoded(tokenizer, args.seed + 1, args.mix), 2048, max(1, args.tokens // 2048))
    log = (args.out / "log.jsonl").open("w")
    began, seen, steps = time.monotonic(), 0, args.level + args.fall
    for step in range(steps):
        batch = next(long if step >= steps - args.long else short)
        tokens, weights = batch[..., 0].long(), batch[:, 1:, 1]
        logits = model(tokens[:, :-1]).logits
        each = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        loss = (each * weights.flatten()).sum() / weights.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for stepper in steppers:
            for group in stepper.param_groups:
                group["lr"] = args.rate * rate_at(step, args.level, args.fall)
            stepper.step()
            stepper.zero_grad()
        seen += weights.numel()
        if (step + 1) % 50 == 0:
            taught = weights.flatten() == 1.0
            line = {
                "step": step + 1,
                "tokens": seen,
                "answer_loss": round(each[taught].mean().item(), 4),
                "seconds": round(time.monotonic() - began, 1),
            }
            print(json.dumps(line), flush=True)
            log.write(json.dumps(line) + "\n")
            if not math.isfinite(line["answer_loss"]):
                raise SystemExit("the loss is not finite: lower --rate")
        if (step + 1) % 500 == 0 or step + 1 == steps:
            export(model, args.out)
    log.close()


if __name__ == "__main__":
    main()
