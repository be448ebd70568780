"""Learn the tokenizer of the bundled pair: a byte-level BPE of 1,024 entries."""

import json
import re
from pathlib import Path
from random import Random

from jinja2.sandbox import ImmutableSandboxedEnvironment
from sample import Chat
from text import a_chat
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 1024
CONTEXT = 4096
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>")
MARKS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
TEMPLATE = Path(__file__).with_name("chat_template.jinja")


class Template:
    """The chat template, rendered as transformers renders it."""

    def __init__(self) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        self._template = environment.from_string(TEMPLATE.read_text())

    def render(self, chat: Chat) -> str:
        """A whole chat with its answers."""
        return self._template.render(messages=chat.messages, tools=list(chat.tools) or None)


def learn(chats_read: int = 20_000, seed: int = 1) -> Tokenizer:
    """Learn the merges; digits stay single tokens, so that sums are computed digit by digit."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(MARKS),
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rng, template = Random(seed), Template()
    marks = re.compile("|".join(re.escape(mark) for mark in SPECIAL + MARKS))
    texts = (marks.sub("\n", template.render(a_chat(rng))) for _ in range(chats_read))
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKS])
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the files that transformers and mlx-lm read."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE.read_text(),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
