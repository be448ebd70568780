"""Makes this golden case with transformers; needs torch, and no test needs this.

    pip install torch transformers
    python tests/golden/qwen3_embedding/make.py

A tiny Qwen3 with random weights takes the place of Qwen3-Embedding: saved without its head, as the
published ones are, beside a tokenizer that ends each text with a token of its own. The embeddings
are computed as the model's card does: padded on the left, the last hidden state of the last token,
normalised.
"""

# pyright: reportMissingImports=false

import json
import shutil
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import Qwen3Config, Qwen3Model

HERE = Path(__file__).parent
TOKENIZER = HERE.parent / "qwen3_full" / "target"
END = "<|endoftext|>"
TEXTS = (
    "a",
    "",
    "The sea is blue.",
    "What is the capital of Chile?",
    "One, two, three, four, five, six, seven, eight, nine, ten. " * 4,
    "x" * 150,
)
SHORTER = (1, 7, 24)  # dimensions


def make_model() -> Qwen3Model:
    """Random weights, in float32."""
    config = Qwen3Config(
        vocab_size=104,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        rope_theta=1e6,  # type: ignore[call-arg]
        tie_word_embeddings=False,
    )
    model = Qwen3Model(config).float().eval()
    for name, value in model.named_parameters():
        if "norm" in name:
            value.data = 1 + 0.2 * torch.randn_like(value)
        else:
            value.data = torch.randn_like(value) / value.shape[-1] ** 0.5
    return model


def save_files(folder: Path) -> Tokenizer:
    """The tokenizer and the files of sentence-transformers; returns the tokenizer."""
    tokenizer = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    number = tokenizer.token_to_id(END)
    assert number is not None
    tokenizer.post_processor = TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, number)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    shutil.copy(TOKENIZER / "tokenizer_config.json", folder)
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_lasttoken": True}
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling) + "\n")
    return tokenizer


@torch.no_grad()
def embed(model: Qwen3Model, rows: list[list[int]], dimensions: int = 32) -> list[list[float]]:
    """Normalised embeddings of token ids, all in one batch padded on the left."""
    length = max(map(len, rows))
    ids = torch.tensor([[0] * (length - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (length - len(row)) + [1] * len(row) for row in rows])
    last = model(input_ids=ids, attention_mask=mask).last_hidden_state[:, -1, :dimensions]
    return torch.nn.functional.normalize(last, dim=1).tolist()


def main() -> None:
    torch.manual_seed(3)
    folder = HERE / "model"
    shutil.rmtree(folder, ignore_errors=True)
    model = make_model()
    model.save_pretrained(folder)
    tokenizer = save_files(folder)
    rows = [tokenizer.encode(text).ids for text in TEXTS]
    expected = {
        "texts": TEXTS,
        "tokens": rows,
        "embeddings": embed(model, rows),
        "shorter": {size: embed(model, rows, size) for size in SHORTER},
    }
    (HERE / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
