"""The token that a chat template writes after an assistant's text ends an answer, too."""

import json
from pathlib import Path

import pytest
import templates
import tiny
from templates import CHATML, GLM, GPT_OSS, HARMONY_MARKS, PHI

from dflash_mlx.chat.template import Template, eos_token_ids_of, load_tokenizer
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.hub.resolve import bundled

ANSWERS = "{% for m in messages %}{% if m.role == 'assistant' %}"
REST = "{% else %}<|user|>{{ m.content }}{% endif %}{% endfor %}"
THOUGHT = "{% if m.thinking %}<|begin|>{{ m.thinking }}<|end|>{% endif %}"
MARKS = ("<|user|>", "<|assistant|>", "<|end|>", "<|return|>", "<|close|>", "<|begin|>", "\n\n")
# What a template writes for an answer, and the end that it shows.
ENDS = {
    "the end": ("<|assistant|>{{ m.content }}<|end|>", "<|end|>"),
    "and a line break": ("<|assistant|>\n{{ m.content }}<|end|>\n", "<|end|>"),
    "the end of a part and of all": ("{{ m.content }}<|return|><|end|>", "<|return|>"),
    "nothing": ("<|assistant|>{{ m.content }}", ""),
    "text": ("<|assistant|>{{ m.content }} ###", ""),
    "a line break": ("<|assistant|>{{ m.content }}\n<|end|>", ""),
    "a line break that is an added token": ("<|assistant|>{{ m.content }}\n\n", ""),
    "a tag": ("{{ m.content }}<|close|>answer<|end|>", ""),
    "another one in the last answer": (
        "{{ m.content }}{{ '<|return|>' if loop.last else '<|end|>' }}",
        "",
    ),
    "only in the last answer": ("{{ m.content }}{{ '<|end|>' if loop.last else '' }}", ""),
    "the end of thinking, too": (THOUGHT + "<|begin|>{{ m.content }}<|end|>", ""),
    "other text": ("{{ m.content | upper }}<|end|>", ""),
    "refused": ("{{ raise_exception('no answers') }}", ""),
    "refused with thinking": (
        "{% if m.thinking %}{{ raise_exception('no') }}{% endif %}{{ m.content }}<|end|>",
        "<|end|>",
    ),
}


@pytest.mark.parametrize("case", ENDS)
def test_the_token_after_an_answer(case: str) -> None:
    """Only a token that ends every answer, at once and as a whole; in doubt none."""
    answer, end = ENDS[case]
    tokenizer = tiny.byte_tokenizer("<|stop|>", MARKS, ANSWERS + answer + REST)
    assert Template(tokenizer, case).end_of_turn() == end


@pytest.mark.parametrize(
    ("template", "end"),
    [
        (PHI, "<|end|>"),  # with <|stop|> behind it, which ends the chat
        (CHATML, "<|im_end|>"),
        (CHATML + "<|im_start|>assistant\n", "<|im_end|>"),  # a generation prompt without asking
        ("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>", ""),
        (GLM, "<|stop|>"),
        (None, ""),
    ],
)
def test_whole_templates(template: str | None, end: str) -> None:
    """What begins the next message is no end, also where a template always writes it."""
    marks = (*MARKS, "<|im_start|>", "<|im_end|>")
    assert Template(tiny.byte_tokenizer("<|stop|>", marks, template), "one").end_of_turn() == end


def folder_of(tmp_path: Path, template: str, marks: tuple[str, ...]) -> Checkpoint:
    """A model's folder whose files name only <|stop|> as its end."""
    tiny.byte_tokenizer("<|stop|>", marks, template)._tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 256}))
    return Checkpoint.read(tmp_path)


def test_ends_of_a_loaded_tokenizer(tmp_path: Path) -> None:
    """The configs of fine-tunes name <|endoftext|>, and their chats end with <|im_end|>."""
    marks = ("<|im_start|>", "<|im_end|>")
    assert load_tokenizer(folder_of(tmp_path, CHATML, marks)).eos_token_ids == {256, 258}


def test_the_end_of_a_message_that_goes_on(tmp_path: Path) -> None:
    """gpt-oss ends its thinking with <|end|>, which its template writes after the text as well."""
    checkpoint = folder_of(tmp_path, GPT_OSS, HARMONY_MARKS)
    assert templates.template_of("gpt_oss").end_of_turn() == "<|end|>"
    assert load_tokenizer(checkpoint).eos_token_ids == {256}


def test_known_tokenizers_keep_their_ends() -> None:
    """The bundled target, and those of the golden cases."""
    folders = [bundled("target"), *sorted(tiny.GOLDEN.glob("*/target"))]
    folders = [folder for folder in folders if (folder / "tokenizer.json").exists()]
    assert len(folders) > 5
    for folder in folders:
        checkpoint = Checkpoint.read(folder)
        assert load_tokenizer(checkpoint).eos_token_ids == {*eos_token_ids_of(checkpoint)}
