"""Prompts, answers and the mask token: what a drafter is trained on."""

import json
from dataclasses import replace

import numpy as np
import pytest
import tiny
from tiny import GOLDEN, plain

from dflash_mlx.drafters.dflash.load import load
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.models.target import Target
from dflash_mlx.train import answers
from dflash_mlx.train.answers import answer_all
from dflash_mlx.train.data import (
    TrainingSequence,
    epoch_batches,
    parse_prompt,
    read_prompts,
    rectangles,
    sample_anchors,
    split,
    tokenize,
    without_overlap,
)
from dflash_mlx.train.new_drafter import choose_mask_token, layer_ids
from dflash_mlx.train.settings import AnswerSettings

SETTINGS = AnswerSettings(max_tokens=12, answer_batch=2)


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny.load_target(GOLDEN / "qwen3_full" / "target")


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def questions(target, path, prompts):
    return tokenize(target, tiny.tokenizer(), read_prompts(write(path, prompts)))


def test_three_kinds_of_lines(tmp_path):
    """Guards the format: strings, prompts, chats; a last assistant message is not the prompt."""
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    lines = ["hi", {"prompt": "hi", "think": True}, {"messages": chat, "think": False}]
    bare, prompt, messages = read_prompts(write(tmp_path / "p.jsonl", lines))
    assert bare.messages == ({"role": "user", "content": "hi"},)
    assert (bare.think, prompt.think, messages.think) == (None, True, False)
    assert messages.messages == (chat[0],)
    assert messages.reference == "b"


def test_lines_with_tools(tmp_path, target):
    """Tools are part of the prompt: in its hash, and refused where the template has no place."""
    tool = {"type": "function", "function": {"name": "now", "parameters": {}}}
    call = {"type": "function", "function": {"name": "now", "arguments": {}}}
    chat = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "12:00"},
    ]
    path = write(tmp_path / "p.jsonl", [{"messages": chat}, {"messages": chat, "tools": [tool]}])
    without, given = read_prompts(path)
    assert given.messages == without.messages == tuple(chat)
    assert given.tools == (tool,)
    assert given.digest != without.digest
    with pytest.raises(DFlashError, match=r"line 1: .*does not call tools"):
        questions(target, path, [{"prompt": "a", "tools": [tool]}])


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "3",
        "{}",
        '""',
        '{"prompt": 3}',
        '{"prompt": "a", "think": "yes"}',
        '{"messages": []}',
        '{"messages": "hi"}',
        '{"messages": [{"role": "user"}]}',
        '{"messages": [{"role": "assistant", "content": "b"}]}',
        '{"prompt": "a", "tools": "now"}',
        '{"prompt": "a", "tools": {}}',
        '{"prompt": "a", "tools": ["now"]}',
    ],
)
def test_a_bad_line_is_named(tmp_path, line):
    """Guards against a traceback: the message says which line, the hint says the format."""
    path = tmp_path / "p.jsonl"
    path.write_text(f'"fine"\n\n{line}\n')
    with pytest.raises(DFlashError, match="line 3") as caught:
        read_prompts(path)
    assert "messages" in caught.value.hint


@pytest.mark.parametrize("content", [None, b"", b"\n \n", b"\xff\xfe"])
def test_no_prompts(tmp_path, content):
    """Guards missing, empty and binary files."""
    path = tmp_path / "p.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DFlashError) as caught:
        read_prompts(path)
    assert caught.value.hint


def test_a_prompt_longer_than_the_context(tmp_path, target):
    """Guards against a prompt that the target cannot read."""
    with pytest.raises(DFlashError, match="line 2 has"):
        questions(target, tmp_path / "p.jsonl", ["a", "a" * 5000])


def test_a_prompt_that_the_template_cannot_write(tmp_path, target):
    """A switch that is not known is not left out; the line is named."""
    lines = ["a", {"prompt": "a", "think": True}]
    with pytest.raises(DFlashError, match=r"line 2: .* no switch for thinking"):
        questions(target, tmp_path / "p.jsonl", lines)


def test_split_keeps_equal_prompts_together():
    """Guards the held-out set: by hash, so a prompt is never on both sides, in any order."""
    numbered = (parse_prompt({"prompt": f"prompt {n % 50}"}, n) for n in range(200))
    prompts = [prompt for prompt in numbered if prompt]
    train, val = split(prompts, 0.3)
    assert len(train) + len(val) == 200
    assert 20 < len(val) < 120
    assert not {p.digest for p in train} & {p.digest for p in val}
    assert split(prompts[::-1], 0.3)[1] == val[::-1]


@pytest.mark.parametrize("rows", [2048, 3])
def test_answers_are_the_targets_own(tmp_path, target, monkeypatch, rows):
    """Guards lossless regeneration, with a right, a wrong and no answer, in few passes and many."""
    texts = ["ab", "what", "x y z"]
    asked = questions(target, tmp_path / "p.jsonl", texts)
    wanted = [plain(target, q.tokens, 12, target.eos_ids) for q in asked]
    right = tiny.tokenizer().decode(wanted[1][:5])
    lines = [
        texts[0],
        *({"messages": [{"role": "user", "content": t}, {"role": "assistant", "content": a}]}
          for t, a in ((texts[1], right), (texts[2], "no"))),
    ]  # fmt: skip
    asked = questions(target, tmp_path / "q.jsonl", lines)
    seen = []
    monkeypatch.setattr(answers, "MAX_PASS_TOKENS", rows)
    got = answer_all(target, asked, SETTINGS, tmp_path / "a.jsonl", seen.append)
    assert got == wanted
    assert [event.done for event in seen] == [0, 0, 1, 2, 3], "Ctrl-C is seen between given ones"


def test_answers_survive_a_kill(tmp_path, target):
    """Guards the cache file: a torn last line is made again, whole lines are not."""
    asked = questions(target, tmp_path / "p.jsonl", ["ab", "cd", "ef"])
    path, seen = tmp_path / "a.jsonl", []
    first = answer_all(target, asked, SETTINGS, path, seen.append)
    whole = path.read_bytes()
    path.write_bytes(b'{"key": "b", "tok\n' + whole[:-4])  # a full disk has spoilt the first line
    assert answer_all(target, asked, SETTINGS, path, seen.append) == first
    assert len(seen) == 4
    assert sorted(path.read_bytes().splitlines()[1:]) == sorted(whole.splitlines())
    answer_all(target, asked, AnswerSettings(max_tokens=3), path, seen.append)
    assert len(seen) == 7  # other settings, other answers


def test_a_seed_makes_no_greedy_answer_anew(tmp_path, target):
    """Guards hours of answers: at temperature 0 the seed changes none; above it, all."""
    asked = questions(target, tmp_path / "p.jsonl", ["ab", "cd"])
    path, seen = tmp_path / "a.jsonl", []
    answer_all(target, asked[:1], replace(SETTINGS, seed=3), path, seen.append)
    assert len(seen) == 1
    answer_all(target, asked[:1], replace(SETTINGS, seed=4), path, seen.append)
    assert len(seen) == 1
    drawn = [
        answer_all(target, asked, replace(SETTINGS, temperature=1.0, seed=seed), path, seen.append)
        for seed in (3, 4, 3)
    ]
    assert drawn[0] == drawn[2] != drawn[1]
    assert len(seen) == 5


def test_drafts_change_no_answer(tmp_path, target):
    """Guards answers that a drafter helps to make: they are the target's, greedy and drawn."""
    case = GOLDEN / "qwen3_full"
    asked = questions(target, tmp_path / "p.jsonl", ["ab", "what", "x y z"])
    twin = tiny.load_target(target.path)
    drafter = load(Checkpoint.read(case / "draft"), twin)
    for temperature in (0.0, 1.0):
        settings = replace(SETTINGS, temperature=temperature, seed=5)
        one, other = tmp_path / f"{temperature}a", tmp_path / f"{temperature}b"
        wanted = answer_all(target, asked, settings, one, print)
        assert answer_all(twin, asked, settings, other, print, drafter=drafter) == wanted


def test_the_template_may_open_the_answer():
    """Guards thinking: a <think> tag that stands in the prompt is not said twice."""
    assert without_overlap("assistant\n<think>\n", "<think>\nhm") == "hm"
    assert without_overlap("assistant\n", "sure") == "sure"


def test_the_mask_token(target, monkeypatch):
    """Guards the choice: by name, reserved, a row without a token; none that anything needs."""
    tokenizer = tiny.tokenizer()
    assert choose_mask_token(target, tokenizer, {1, 2}) == 99
    assert choose_mask_token(target, tokenizer, {99}) == 102
    assert choose_mask_token(target, tokenizer, {99}, 103) == 103
    for taken in (98, 104, 5):
        with pytest.raises(DFlashError, match="not a free token"):
            choose_mask_token(target, tokenizer, {5}, taken)
    with pytest.raises(DFlashError, match="no token"):
        choose_mask_token(target, tokenizer, range(104))
    with monkeypatch.context() as patch:  # SmolLM2's first token is unk and end of text
        patch.setattr(type(tokenizer._tokenizer), "unk_token_id", 99, raising=False)
        assert choose_mask_token(target, tokenizer, {1}) == 102
        with pytest.raises(DFlashError, match="not a free token"):
            choose_mask_token(target, tokenizer, {1}, 99)
    monkeypatch.setattr(target, "vocab_size", 110)  # more rows than tokens, as Qwen3 has
    assert choose_mask_token(target, tokenizer, {99, 102, 103}) == 104


def test_layer_ids():
    """Guards the reference's rule, also for targets too small for it."""
    assert layer_ids(36, "5") == (1, 9, 17, 25, 33)
    assert layer_ids(12, "5") == (1, 3, 5, 7, 9)
    for layers in range(1, 8):
        ids = layer_ids(layers, "5")
        assert list(ids) == sorted(set(ids))
        assert 0 <= ids[0] <= ids[-1] < layers
    assert layer_ids(8, "5,2") == (5, 2)
    for wrong in ("0", "0,8", "1,1"):
        with pytest.raises(UsageError):
            layer_ids(8, wrong)


def test_anchors_are_answer_tokens_with_a_successor():
    """Guards 'an anchor is a token that the target generated', and drawing without replacement."""
    sequences = [TrainingSequence(tuple(range(20)), 15), TrainingSequence((1, 2, 3), 2)]
    drawn = sample_anchors(sequences, 99, seed=0, step=0)
    assert [d.tolist() for d in drawn] == [[15, 16, 17, 18], []]
    few = [tuple(sample_anchors(sequences[:1], 2, 0, step)[0]) for step in range(20)]
    assert len(set(few)) > 2
    assert all(a < b for a, b in few)


def test_rectangles_cover_each_anchor_once():
    """Guards the slices: no block lost, none twice, none over the limit."""
    anchors = [np.arange(3, 3 + n) for n in (0, 1, 7, 20, 5, 9)]
    found = [
        (row, int(at))
        for part in rectangles(anchors, 8)
        for grid in part.slices(8)
        for row, line in zip(part.rows, grid, strict=True)
        for at in line
        if at >= 0
    ]
    assert sorted(found) == [(row, int(a)) for row, line in enumerate(anchors) for a in line]
    assert all(grid.size <= 8 for part in rectangles(anchors, 8) for grid in part.slices(8))


def test_epoch_order_follows_from_the_seed():
    """Guards resuming: the order needs no more than seed and epoch, and every row comes once."""
    first = epoch_batches(103, 4, 5, 0)
    assert [b.tolist() for b in first] == [b.tolist() for b in epoch_batches(103, 4, 5, 0)]
    assert [b.tolist() for b in first] != [b.tolist() for b in epoch_batches(103, 4, 5, 1)]
    assert sorted(np.concatenate(first)) == list(range(103))
