"""Tokenizers of model folders: every stop token that the files name, and code of their own."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny

import dflash_mlx
from dflash_mlx import api
from dflash_mlx.chat.template import Template, eos_token_ids_of, load_tokenizer
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.hub import cache as hub_cache

# A tokenizer as Kimi's: the vocabulary in tiktoken.model, the rest in Python.
CODE = '''
from pathlib import Path

from transformers import PreTrainedTokenizer

from .words import words_of


class Words(PreTrainedTokenizer):
    """Whole words."""

    vocab_files_names = {"vocab_file": "tiktoken.model"}

    def __init__(self, vocab_file, **options):
        self.words = words_of(vocab_file)
        super().__init__(**options)
        Path(vocab_file).with_name("was_run").touch()

    @property
    def vocab_size(self):
        return len(self.words)

    def get_vocab(self):
        return {word: number for number, word in enumerate(self.words)}

    def _tokenize(self, text, **options):
        return text.split()

    def _convert_token_to_id(self, token):
        return self.words.index(token) if token in self.words else 0

    def _convert_id_to_token(self, number):
        return self.words[number % len(self.words)]

    def apply_chat_template(
        self, conversation, add_generation_prompt=False, thinking=True, tokenize=True, **options
    ):
        text = " ".join(m["content"] for m in conversation)
        return text + (" <think>" if add_generation_prompt and thinking else "")
'''
HELPER = "def words_of(path):\n    return open(path, encoding='utf-8').read().split()\n"
WORDS = "zero one two three four five six <think> </think> end"


def write(path: Path, value: Any) -> None:
    path.write_text(value if isinstance(value, str) else json.dumps(value), "utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A target with the golden tokenizer, whose own end is 98, and no generation_config.json."""
    shutil.copytree(tiny.GOLDEN / "qwen35_hybrid" / "target", tmp_path / "target")
    (tmp_path / "target" / "generation_config.json").unlink()
    return tmp_path / "target"


def settle(folder: Path, generation: Any = None, **top: Any) -> None:
    if generation is not None:
        write(folder / "generation_config.json", generation)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    write(folder / "config.json", {**config, **top})


@pytest.mark.parametrize(
    ("generation", "top", "ids"),
    [
        (None, {"eos_token_id": None}, [98]),  # in text_config
        (None, {"eos_token_id": 5}, [5, 98]),
        ({"eos_token_id": 7}, {"eos_token_id": [5, 6]}, [5, 6, 7, 98]),
        ({"eos_token_id": [7, 0]}, {}, [0, 7, 98]),
        ({"eos_token_id": None}, {"text_config": None, "eos_token_id": None}, []),
        ({"temperature": 1.0}, {"text_config": {}, "eos_token_id": None}, []),
        ({"eos_token_id": []}, {"eos_token_id": 0}, [0, 98]),
    ],
)
def test_eos_token_ids(folder: Path, generation: Any, top: dict[str, Any], ids: list[int]) -> None:
    """What the files name counts together; mlx-lm lets one take the place of the other."""
    settle(folder, generation, **top)
    assert eos_token_ids_of(Checkpoint.read(folder)) == ids


@pytest.mark.parametrize(
    ("generation", "top", "word"),
    [
        ("{ not", {}, "not valid JSON"),
        ([1, 2], {}, "does not hold an object"),
        ({"eos_token_id": "98"}, {}, "generation_config.json"),
        ({"eos_token_id": [98, None]}, {}, "generation_config.json"),
        ({"eos_token_id": True}, {}, "eos_token_id: True"),
        (None, {"eos_token_id": {"a": 1}}, "config.json"),
    ],
)
def test_damaged_files_are_named(
    folder: Path, generation: Any, top: dict[str, Any], word: str
) -> None:
    """mlx-lm would go on without the stop tokens of a file that it cannot read."""
    settle(folder, generation, **top)
    with pytest.raises(DFlashError, match=word) as caught:
        tiny.load_target(folder)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("others", "wanted"),
    [
        ({}, "json"),
        ({"tokenizer_config.json": {"chat_template": "config"}}, "config"),
        (
            {
                "tokenizer_config.json": {
                    "chat_template": [{"name": "default", "template": "named"}]
                }
            },
            "named",
        ),
        ({"chat_template.jinja": "jinja"}, "jinja"),
    ],
)
def test_chat_template_json(folder: Path, others: dict[str, Any], wanted: str) -> None:
    """Older models with an encoder have their template there, where transformers' tokenizer does
    not look; a template in another file goes first, as before."""
    write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    write(folder / "chat_template.json", {"chat_template": "json {{ messages[0].content }}"})
    for name, content in others.items():
        write(folder / name, content)
    checkpoint = Checkpoint.read(folder)
    template = Template(load_tokenizer(checkpoint), "one")
    written = template.write([{"role": "user", "content": "ask"}])
    assert written == ("json ask" if wanted == "json" else wanted)
    assert checkpoint.chat_template.split()[0] == wanted
    write(folder / "chat_template.json", "{")
    if wanted == "json":
        with pytest.raises(DFlashError, match=r"chat_template.json' is not valid JSON"):
            load_tokenizer(Checkpoint.read(folder))


def test_every_stop_token_ends_an_answer(folder: Path) -> None:
    """Both ids of generation_config.json, that of text_config, and the tokenizer's."""
    prompt = tiny.prompt_of(10)
    whole = tiny.plain(tiny.load_target(folder), prompt, 24, margin=0)
    first, second = whole[6], next(t for t in whole[7:] if t != whole[6] and t not in whole[:7])
    for stops, end in (([second], second), ([second, first], first), ([first, second], first)):
        settle(folder, {"eos_token_id": stops})
        pair = dflash_mlx.load(folder, no_draft=True)
        assert pair.target.eos_ids == {98, *stops}
        result = api.generate(pair, prompt, mode="baseline", max_tokens=24)
        assert result.tokens == whole[: whole.index(end) + 1]
        assert result.finish_reason == "stop"


@pytest.fixture
def own(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The target with a tokenizer of two Python files; what transformers copies goes with it."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    write(folder / "tokenization_words.py", CODE)
    write(folder / "words.py", HELPER)
    write(folder / "tiktoken.model", WORDS)
    auto = {"AutoTokenizer": ["tokenization_words.Words", None]}
    config = {"tokenizer_class": "Words", "auto_map": auto, "eos_token": "end"}
    write(folder / "tokenizer_config.json", config)
    cache = str(tmp_path / "modules")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", cache)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked on the terminal"))
    yield folder
    for name in [name for name in sys.modules if name.startswith("transformers_modules")]:
        del sys.modules[name]


def test_code_runs_only_when_it_is_allowed_to(own: Path) -> None:
    """The refusal names the files and the way; nothing is asked on the terminal."""
    trusts: list[dict[str, Any]] = [{}, {"trust_remote_code": False}]
    for trust in trusts:
        with pytest.raises(DFlashError, match=r"\(tokenization_words.py\)") as caught:
            dflash_mlx.load(own, no_draft=True, **trust)
        assert "--trust-remote-code" in caught.value.hint
    assert not (own / "was_run").exists()
    pair = dflash_mlx.load(own, no_draft=True, trust_remote_code=True)
    assert (own / "was_run").exists()
    assert pair.encode("one two") == [1, 2]
    assert pair.target.eos_ids == {9, 98}
    assert pair.template.think_switch == "thinking"
    result = api.generate(pair, "three four", mode="baseline", max_tokens=3, think=True)
    assert result.stats.prompt_tokens == 3
    assert result.text == ""
    assert result.thinking


def test_a_tokenizer_that_needs_no_code(own: Path) -> None:
    """Where tokenizer.json says the same as the code, the code is not needed, and not run."""
    shutil.copy(tiny.GOLDEN / "qwen3_full" / "target" / "tokenizer.json", own)
    assert load_tokenizer(Checkpoint.read(own)).vocab_size == tiny.tokenizer().vocab_size
    write(own / "tokenizer.json", "{")
    with pytest.raises(DFlashError, match="Python code of its own"):
        load_tokenizer(Checkpoint.read(own))
    assert not (own / "was_run").exists()


def test_code_in_the_hubs_cache(own: Path) -> None:
    """There every file is a link to one that is named by its hash, in another folder."""
    blobs = own.parent / "blobs"
    blobs.mkdir()
    for number, file in enumerate(sorted(own.iterdir())):
        file.rename(blobs / f"{number:040x}")
        file.symlink_to(blobs / f"{number:040x}")
    assert load_tokenizer(Checkpoint.read(own), trust_remote_code=True).encode("one two") == [1, 2]


@pytest.mark.parametrize(
    ("code", "words", "hint"),
    [
        (f"import no_such_package_at_all\n{CODE}", "no_such_package_at_all", "install"),
        ("raise RuntimeError('not today')", "not today", ""),
    ],
)
def test_code_that_fails(own: Path, code: str, words: str, hint: str) -> None:
    """Its words are passed on; a package that is missing is to be installed."""
    write(own / "tokenization_words.py", code)
    with pytest.raises(DFlashError, match=words) as caught:
        load_tokenizer(Checkpoint.read(own), trust_remote_code=True)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("config", "files"),
    [
        ({}, []),
        ({"auto_map": None}, []),
        ({"auto_map": {"AutoModel": "modeling.Model"}}, []),
        ({"auto_map": {"AutoTokenizer": ["slow.A", None]}}, ["slow.py"]),
        ({"auto_map": {"AutoTokenizer": ["slow.A", "fast.B"]}}, ["fast.py", "slow.py"]),
        ({"auto_map": ["slow.A", None]}, ["slow.py"]),
        ({"auto_map": {"AutoTokenizer": "slow.A"}}, ["slow.py"]),
        ({"auto_map": {"AutoTokenizer": ["a/b--slow.A", None]}}, ["a/b/slow.py"]),
    ],
)
def test_the_files_of_a_tokenizer(config: dict[str, Any], files: list[str], tmp_path: Path) -> None:
    """All forms that `auto_map` has had; another repository's file is named with it."""
    write(tmp_path / "tokenizer_config.json", config)
    assert Checkpoint(tmp_path, {}).tokenizer_code == files


def test_a_model_without_its_code_is_not_whole(own: Path) -> None:
    """Older downloads left Python files out: they are fetched when they are missed."""
    assert hub_cache.first_missing_file(own) == ""
    (own / "tokenization_words.py").unlink()
    assert hub_cache.first_missing_file(own) == "tokenization_words.py"
    write(own / "tokenizer_config.json", "{")
    assert hub_cache.first_missing_file(own) == "tokenizer_config.json"


def test_model_code_is_never_run(folder: Path) -> None:
    """mlx-lm would take a model's own class when it is trusted."""
    settle(folder, model_file="model.py")
    write(folder / "model.py", "raise SystemExit")
    with pytest.raises(DFlashError, match="its own model code"):
        dflash_mlx.load(folder, no_draft=True, trust_remote_code=True)
