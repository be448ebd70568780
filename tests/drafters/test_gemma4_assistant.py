"""Gemma 4 assistants: the golden reference, exactness, what they read, what is refused."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from assistants import GOLDEN, HEADS, TARGET, random_assistant

from dflash_mlx.drafters.chain import Chains
from dflash_mlx.drafters.gemma4_assistant.drafter import AssistantCache
from dflash_mlx.drafters.load import check_drafter, load_drafter
from dflash_mlx.engine.sequence import Sequence
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.pair import Pair, load

EXPECTED: dict[str, Any] = json.loads((GOLDEN / "expected.json").read_text())


def check_golden(pair: Pair, head: str) -> None:
    """Drafts at every place of the texts, read in pieces, and the logits at some."""
    drafter: Any = pair.drafter
    for number, text in enumerate(EXPECTED["texts"]):
        sequence = Sequence(pair.target, drafter)
        dice = random.Random(number)
        logits = []
        for count, wanted in enumerate(EXPECTED[head]["drafts"][number], 1):
            missing = text[len(sequence.tokens) : count]
            if count not in EXPECTED["logits_at"] and dice.random() < 0.4:
                continue
            sequence.read(missing, chunk=dice.randint(1, 3))
            cache: Any = sequence.draft_caches[0]
            tokens, rows = Chains(drafter, [cache], [text[count]], 3).greedy
            assert np.array(tokens[:, 0]).tolist() == wanted, count
            if count in EXPECTED["logits_at"]:
                logits.append(np.array(rows[0, 0]))
        assert np.abs(np.array(logits) - np.array(EXPECTED[head]["logits"][number])).max() < 1e-3


def golden_pair(head: str) -> Pair:
    return load(TARGET, GOLDEN / head, cache_ram=0)


@pytest.mark.parametrize("head", HEADS)
def test_drafts_of_the_reference(head: str) -> None:
    """Which is transformers' own class, with a dense head and with one of clusters."""
    check_golden(golden_pair(head), head)


def test_a_fork_reads_its_own_caches() -> None:
    """And goes on by itself; a cut leaves nothing to draft from until a token is read."""
    target = tiny.make_target("gemma4_text")
    source = random_assistant(target)
    sequence = Sequence(target, source)
    sequence.read(tiny.prompt_of(30))
    twin = sequence.fork()
    ours, theirs = (one.draft_caches[0] for one in (sequence, twin))
    assert isinstance(ours, AssistantCache)
    assert isinstance(theirs, AssistantCache)
    assert theirs.target is twin.target_cache is not sequence.target_cache
    first = np.array(Chains(source, [ours, theirs], [7, 7], 3).greedy[0]).T.tolist()
    assert first[0] == first[1]
    twin.read([1, 2, 3])
    again = np.array(Chains(source, [ours, theirs], [7, 7], 3).greedy[0]).T.tolist()
    assert again[0] == first[0]
    assert again[1] != first[0]
    twin.rewind(32)
    assert source.preview(theirs, 7, 4) == ()
    twin.read([3])
    assert source.preview(theirs, 7, 4) is None


def saved(folder: Path, **changes: Any) -> Checkpoint:
    folder.mkdir()
    config = json.loads((GOLDEN / "dense" / "config.json").read_text())
    inner = {**config["text_config"], **changes.pop("text_config", {})}
    (folder / "config.json").write_text(json.dumps({**config, **changes, "text_config": inner}))
    weights = (GOLDEN / "dense" / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights)
    return Checkpoint.read(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backbone_hidden_size": 32}, "'post_projection.weight' is"),
        ({"text_config": {"global_head_dim": 64}}, "is .*, its config says"),
        ({"use_ordered_embeddings": True, "num_centroids": 8}, "has no tensor 'masked_embedding"),
        ({"tie_word_embeddings": False}, "has a head of its own"),
        ({"text_config": {"layer_types": None, "num_hidden_layers": "x"}}, "cannot be used"),
    ],
)
def test_a_config_of_other_weights(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Is refused before a weight is read."""
    with pytest.raises(DFlashError, match=message) as caught:
        check_drafter(saved(tmp_path / "draft", **changes), Checkpoint.read(TARGET))
    assert caught.value.hint


def test_another_target_is_refused(tmp_path: Path) -> None:
    """Of another family, or of other sizes; as a target by itself it is refused, too."""
    mine = Checkpoint.read(GOLDEN / "dense")
    for target, message in (
        (tiny.GOLDEN / "qwen3_full" / "target", "is an assistant of Gemma 4"),
        (None, "expects a target with hidden size 64"),
    ):
        theirs = Checkpoint(Path("tiny"), tiny.config_of("gemma4_text"))
        with pytest.raises(DFlashError, match=message) as caught:
            check_drafter(mine, theirs if target is None else Checkpoint.read(target))
        assert caught.value.hint
    with pytest.raises(DFlashError, match="is a drafter"):
        load(GOLDEN / "dense")


def test_quantised_keys_are_refused() -> None:
    """No assistant reads them."""
    target = tiny.make_target("gemma4_text kv8")
    with pytest.raises(DFlashError, match="not with a quantised KV cache") as caught:
        load_drafter(Checkpoint.read(GOLDEN / "dense"), target, tiny.tokenizer())
    assert caught.value.hint
