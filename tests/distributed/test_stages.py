"""A target whose layers are shared out over processes says what the whole one says."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ranks import Job, save_family
from sharded_jobs import BUNDLED, FEW, check_equal, sharded
from tiny import ALL as EXHAUSTIVE
from tiny import FAMILIES, GOLDEN, make_target

from dflash_mlx.distributed.shards import stage
from dflash_mlx.errors import DFlashError

TAPS = 6  # tapped layers at most


def check_layers(folder: Path, count: int, jobs: list[Job], **env: str) -> None:
    """Answers are the whole target's, by one sum behind each stage and each tapped layer."""
    found = sharded(folder, count, jobs, FEW, DFLASH_SPLIT="layers", **env)
    for one, job in zip(found, jobs, strict=True):
        assert "refused" not in one, one
        check_equal(one, job, FEW)
        passes = one["packets"][1]
        each, rest = divmod(one["sums"], passes)
        assert not rest
        assert count <= each <= count + TAPS


@pytest.mark.slow
def test_two_ranks_share_the_layers(tmp_path: Path) -> None:
    """Also of families that mlx-lm cannot shard, and of heads that two cannot share."""
    families = ("qwen3", "qwen3_next", "gemma4_text")
    check_layers(tmp_path, 2, [save_family(tmp_path, family) for family in families])


@pytest.mark.slow
def test_a_missed_rewind_is_noticed(tmp_path: Path) -> None:
    """A rank that forgets to take back one verify's rows gives other answers from there on."""
    job = save_family(tmp_path, "qwen3")
    with pytest.raises(AssertionError):
        check_layers(tmp_path, 2, [job], FAULT="misses a rewind")


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
def test_every_family(tmp_path: Path, count: int) -> None:
    """On two ranks all, on three one of each kind."""
    some = ["llama", "qwen3_5", "gpt_oss", "muse_glimmer"]
    if EXHAUSTIVE:
        some = [family for family in FAMILIES if family != "gemma4_unified"]  # shares keys
    jobs = [save_family(tmp_path, family) for family in some] + [BUNDLED]
    check_layers(tmp_path, count, jobs)


@pytest.mark.slow
@pytest.mark.parametrize("split", ["layers", "heads"])
def test_a_head_reads_a_shared_target(split: str, tmp_path: Path) -> None:
    """An MTP head on rank 0 reads the final norm, and has all its heads."""
    job: Job = [str(GOLDEN / "mtp_qwen35" / "target"), "mtp"]
    kinds = ("dflash", "ddtree")
    (found,) = sharded(tmp_path, 2, [job], kinds, DFLASH_SPLIT=split)
    assert "refused" not in found, found
    check_equal(found, job, kinds)


def test_what_cannot_be_shared_out() -> None:
    """More ranks than layers; layers that read the keys of others."""
    group: Any = SimpleNamespace(size=lambda: 9, rank=lambda: 0)
    for family, sentence in (
        ("llama", "layers cannot be shared by 9 ranks"),
        ("gemma4_unified", "the model's last layers read keys of earlier layers"),
    ):
        target = make_target(family)
        with pytest.raises(DFlashError, match=sentence):
            stage(target.model, target.config, group)
        group = SimpleNamespace(size=lambda: 2, rank=lambda: 0)
