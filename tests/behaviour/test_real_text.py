"""Text of pretrained models' tokenizers: streamed, it is what the tokens decode to."""

import argparse
import inspect
import json
import textwrap
from collections.abc import Iterator
from random import Random

import pytest
from real_models import MARKS, MODELS, installed

from dflash_mlx.chat.reasoning_parser import IncrementalDetokenizer
from dflash_mlx.chat.template import load_tokenizer
from dflash_mlx.files.checkpoint import Checkpoint

pytestmark = MARKS

TOKENS = 20_000
LANGUAGES = {
    "German": "Übermäßig große Fußgängerbrücken heißen hier »Stege«. Größe zählt nicht.",
    "French": "L'été, où l'on mange des crêpes, s'achève déjà. Garçon, ça coûte combien ? 12,50 €…",
    "Russian": "Съешь ещё этих мягких французских булок, да выпей же чаю. Цена — 1 250 ₽.",
    "Arabic": "مرحبًا بكم في المكتبة. تُفتح الأبواب الساعة التاسعة صباحًا، وتُغلق في السادسة مساءً.",
    "Hindi": "पुस्तकालय सुबह नौ बजे खुलता है। बच्चे स्कूल के बाद यहाँ पढ़ने आते हैं और क्षितिज देखते हैं।",
    "Chinese": "图书馆每天早上九点开门,星期日除外。孩子们放学后来这里看书,龘靐齉爩也认得。",
    "Japanese": "図書館は毎朝九時に開きます。ジョギングの後、カフェで「抹茶ラテ」を飲みました。",
    "Korean": "도서관은 매일 아침 아홉 시에 문을 엽니다. 아이들은 방과 후에 책을 읽으러 옵니다.",
}
SIGNS = "👩‍👩‍👧 🇩🇪 👍🏽 ☕️ e\u0301 \u200f ∑∞≤ ½ ﬁ \u3000 𓀀𓂀 🏴󠁧󠁢󠁳󠁣󠁴󠁿"


def texts(random: Random) -> Iterator[str]:
    """Lines of code, and between them parts of all languages' sentences and signs."""
    code = [inspect.getsource(module) for module in (argparse, textwrap, json.decoder, inspect)]
    for lines in zip(*(source.splitlines(keepends=True) for source in code), strict=False):
        yield "".join(lines)
        for sentence in LANGUAGES.values():
            start = random.randrange(len(sentence) - 10)
            part = sentence[start : start + random.randint(10, 40)]
            yield part + random.choice(SIGNS.split(" ")) + random.choice(("\n", "\n\n\t", " ", ""))


@pytest.mark.parametrize("model", MODELS)
def test_streamed_text_is_the_decoded(model: str) -> None:
    """In the blocks of tokens that verify passes commit, no character is shown half or twice."""
    tokenizer = load_tokenizer(Checkpoint.read(installed(model)))
    random, given = Random(0), list[int]()
    for text in texts(random):
        given += tokenizer.encode(text, add_special_tokens=False)
    assert len(given) >= TOKENS
    del given[TOKENS:]
    detokenizer, pieces, at = IncrementalDetokenizer(tokenizer, []), list[str](), 0
    while at < TOKENS:
        size = random.randint(1, 16)
        pieces.append(detokenizer.add_tokens(given[at : at + size]).text)
        assert "\ufffd" not in pieces[-1]
        at += size
    pieces.append(detokenizer.finish().text)
    assert "".join(pieces) == tokenizer.decode(given)
