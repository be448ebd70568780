# /// script
# requires-python = ">=3.11"
# dependencies = ["torch==2.13.0", "tokenizers", "safetensors", "jinja2", "numpy"]
# ///
"""Train the bundled target from nothing: a deep, narrow Qwen3 of 5.4 M parameters.

    uv run --script train_target.py --out ../../../runs/target
    uv run --script train_target.py --out ../../../runs/more --begin ../../../runs/target --seed 12

Stopped and started again, it goes on from its last checkpoint. With --begin, the first weights are
those of another training. The text of a step depends on the seed and the step alone. PyTorch does
this one job because MLX's CPU backend needs three times as long for a training step, and the result
is the same plain checkpoint.
"""

import argparse
import json
import math
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import torch  # pyright: ignore[reportMissingImports]
from safetensors.torch import load_file, save_file
from sample import Chat
from text import a_chat
from tokenizer import Template, learn, save
from tokenizers import Tokenizer
from torch import distributed, multiprocessing  # pyright: ignore[reportMissingImports]
from torch.nn.functional import cross_entropy  # pyright: ignore[reportMissingImports]
from torch_muon import Muon
from torch_qwen3 import Qwen3, Shape

PROMPT_WEIGHT = 0.01  # most of a prompt cannot be predicted, and its noise drowns the answers
WARM_UP = 50  # steps
SAVE_EVERY = 50
PRINT_EVERY = 10
TRIES = 12  # chats that are drawn for the rest of a row
PROCESSES = 2  # of one thread each: two threads of one process wait for each other too often


@dataclass(frozen=True, slots=True)
class Plan:
    """How long the training is.

    The rate is level for `level` of `steps` and then falls to nothing. Rows have 1,024 tokens, and
    in every fourth step 256, without tools. In the last `long` of the steps, one of eight has rows
    of 2,048 or 4,096. Short rows cost less, because attention does.
    """

    steps: int
    level: float = 0.3
    long: float = 0.6
    tokens: int = 8192

    def rate(self, step: int) -> float:
        """The share of the full rate."""
        falling = (self.steps - step) / (self.steps * (1 - self.level))
        return min(1.0, (step + 1) / WARM_UP, falling)

    def length(self, step: int) -> int:
        """The tokens in a row of this step."""
        if step % 8 == 0 and step >= self.steps * (1 - self.long):
            return (2048, 4096)[step // 8 % 2]
        return 256 if step % 4 == 1 else 1024


class Encoder:
    """Chats as tokens, each with the weight of its loss."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._template = Template()
        ids = tokenizer.get_vocab()
        self._start, self._end, self._think = ids["<|im_start|>"], ids["<|im_end|>"], ids["<think>"]
        self._header = [self._start, *tokenizer.encode("assistant\n").ids]

    def encode(self, chat: Chat) -> tuple[list[int], list[float]]:
        """The tokens and weights of a chat. Only the assistant's text has a full weight."""
        ids = self._tokenizer.encode(self._template.render(chat)).ids
        weights = [PROMPT_WEIGHT] * len(ids)
        for place, token in enumerate(ids):
            begin = place + len(self._header)
            if token != self._start or ids[place:begin] != self._header:
                continue
            thinks = ids[begin] == self._think
            if thinks:  # the prompt has it if thinking is on, and no answer may begin with it
                weights[begin : begin + 2] = [0.0, 0.0]
                begin += 2
            elif chat.thinking:
                continue  # an earlier answer, without its thinking
            end = ids.index(self._end, begin) + 1
            weights[begin:end] = [1.0] * (end - begin)
        return ids, weights

    def row(self, rng: Random, length: int) -> tuple[list[int], list[float]]:
        """Whole chats, one after the other, in a row of `length`; what is left over is padding."""
        row: list[int] = []
        weights: list[float] = []
        tries = 0
        while tries < TRIES and len(row) < length - 32:
            ids, each = self.encode(a_chat(rng, tools=length > 256))
            if len(row) + len(ids) > length:
                tries += 1
                continue
            row += ids
            weights += each
        rest = length - len(row)
        return [*row, *[0] * rest], [*weights, *[0.0] * rest]

    def batch(
        self, seed: int, step: int, plan: Plan, rank: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The tokens and weights [B, S] of a process in one step."""
        rng, length = Random(f"{seed} {step} {rank}"), plan.length(step)
        rows = [self.row(rng, length) for _ in range(max(1, plan.tokens // PROCESSES // length))]
        ids, weights = zip(*rows, strict=True)
        return torch.tensor(ids), torch.tensor(weights)


def optimizers(model: Qwen3, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for embedding and norms."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    return [
        Muon(matrices, rate),
        torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def export(model: Qwen3, shape: Shape, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the checkpoint: weights in bfloat16, config, tokenizer."""
    weights = {name: value.to(torch.bfloat16) for name, value in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    ids = tokenizer.get_vocab()
    end, pad = ids["<|im_end|>"], ids["<|endoftext|>"]
    config = json.dumps(shape.config(end, pad), indent=2)
    (folder / "config.json").write_text(config + "\n")
    settings = {"bos_token_id": None, "eos_token_id": [end], "pad_token_id": pad}
    (folder / "generation_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def keep(path: Path, state: dict[str, object]) -> None:
    """Replace the checkpoint; the old one is whole until the new one is."""
    part = path.with_suffix(".part")
    torch.save(state, part)
    os.replace(part, path)


def share_gradients(model: Qwen3) -> None:
    """Replace the gradients by their mean over all processes."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    distributed.all_reduce(flat)
    parts = (flat / PROCESSES).split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


class Log:
    """Prints the mean losses of each PRINT_EVERY steps, and writes them to a file."""

    def __init__(self, path: Path):
        self._path = path
        self._all: list[float] = []
        self._answers: list[torch.Tensor] = []

    def add(self, loss: float, answers: torch.Tensor) -> None:
        """Add a step's loss, and the loss of each token of its answers."""
        self._all.append(loss)
        self._answers.append(answers)

    def write(self, step: int, tokens: int, seconds: float) -> None:
        """Write the means and begin anew. Raises SystemExit if they are not finite."""
        line = {
            "step": step,
            "tokens": tokens,
            "answer_loss": round(torch.cat(self._answers).mean().item(), 4),
            "loss": round(sum(self._all) / len(self._all), 4),
            "seconds": round(seconds),
        }
        print(json.dumps(line), flush=True)
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        if not math.isfinite(line["loss"]):
            raise SystemExit("the loss is not finite: lower --rate")
        self._all.clear()
        self._answers.clear()


def train(rank: int, args: argparse.Namespace, meeting: str) -> None:
    """One of the processes that train together; the first one writes."""
    distributed.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=PROCESSES)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(args.seed)
    tokenizer = Tokenizer.from_file(str(args.out / "tokenizer.json"))
    plan, shape, encoder = Plan(args.steps), Shape(), Encoder(tokenizer)
    model = Qwen3(shape)
    if args.compile:
        for layer in model.model.layers:
            layer.compile(dynamic=True)
    steppers = optimizers(model, args.rate)
    checkpoint, first, seconds = args.out / "checkpoint.pt", 0, 0.0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        for stepper, values in zip(steppers, state["steppers"], strict=True):
            stepper.load_state_dict(values)
        first, seconds = state["step"], state["seconds"]
    elif args.begin:
        model.load_state_dict(load_file(args.begin / "model.safetensors"))
    began = time.monotonic() - seconds
    log = Log(args.out / "log.jsonl")
    for step in range(first, args.steps):
        tokens, weights = encoder.batch(args.seed, step, plan, rank)
        weights = weights[:, 1:].flatten()
        counted = weights > 0
        with torch.autocast("cpu", torch.bfloat16):
            hidden = model(tokens[:, :-1])
        logits = model.logits(hidden.flatten(0, 1)[counted].float())
        each = cross_entropy(logits, tokens[:, 1:].flatten()[counted], reduction="none")
        weights = weights[counted]
        loss = (each * weights).sum() / weights.sum()
        loss.backward()
        share_gradients(model)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for stepper in steppers:
            for group in stepper.param_groups:
                group["lr"] = args.rate * plan.rate(step)
            stepper.step()
            stepper.zero_grad(set_to_none=False)
        if rank:
            continue
        log.add(loss.item(), each.detach()[weights == 1.0])
        done = step + 1
        if done % PRINT_EVERY == 0:
            log.write(done, done * plan.tokens, time.monotonic() - began)
        if done % SAVE_EVERY == 0 or done == args.steps:
            export(model, shape, tokenizer, args.out)
            state = {
                "model": model.state_dict(),
                "steppers": [stepper.state_dict() for stepper in steppers],
                "step": done,
                "seconds": time.monotonic() - began,
            }
            keep(checkpoint, state)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--begin", type=Path, help="the folder whose weights are the first ones")
    parser.add_argument("--compile", action="store_true", help="faster; needs a C++ compiler")
    parser.add_argument("--steps", type=int, default=2_600)
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=11)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.begin:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(args.begin / name, args.out)
    elif not (args.out / "tokenizer.json").exists():
        save(learn(), args.out)
    with TemporaryDirectory() as folder:
        multiprocessing.spawn(train, (args, f"{folder}/meeting"), PROCESSES)


if __name__ == "__main__":
    main()
