"""The drafter that was found best here is taken, on this machine and for this quantisation only."""

import json
import shutil
from importlib import import_module
from types import SimpleNamespace

import pytest

from dflash_mlx import device
from dflash_mlx.hub import choices
from dflash_mlx.hub.choices import Choice
from dflash_mlx.hub.resolve import LOOKUP, MTP, measured_choice, origin_of, pair_names

MEASURED = {"mtp": 1.8, "lookup": 1.2, "none": 1.0}


@pytest.fixture
def target(tmp_path):
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"quantization": {"bits": 4}}))
    return folder


def keep(folder, draft):
    config = json.loads((folder / "config.json").read_text())
    assert choices.keep(str(folder), config, Choice(draft, 1.8, MEASURED, "2026-11-26"))


def test_the_best_one_is_taken_and_d_names_another(target, tmp_path):
    draft = tmp_path / "draft"
    draft.mkdir()
    (draft / "config.json").write_text('{"model_type": "draft"}')
    assert pair_names(target, None).draft_label == LOOKUP
    for name in (str(draft), MTP, LOOKUP):
        keep(target, name)
        assert pair_names(str(target), None).draft_label == name
        reason = "best of 3 compared here on 2026-11-26, 1.80× plain decoding"
        assert origin_of(str(target), name) == reason
        assert origin_of(str(target), "owner/other") == ""
    assert pair_names(target, None).lookup
    assert pair_names(target, "owner/other").draft == "owner/other"
    assert pair_names(target, None, no_draft=True).draft_label is None
    keep(target, str(draft))
    shutil.rmtree(draft)
    assert measured_choice(str(target)) is None, "the drafter is gone"
    assert pair_names(target, None).draft_label == LOOKUP


def test_stats_say_why(target):
    """The chosen one, the best known one, and nothing of one that somebody named."""
    line = import_module("dflash_mlx.cli.backend.local").drafter_line
    keep(target, MTP)
    pair = SimpleNamespace(target_name=str(target), draft_name=MTP, draft_label=MTP)
    assert line(pair) == f"mtp · {origin_of(str(target), MTP)}"
    pair.draft_name = "owner/other"
    assert line(pair) == ""
    known = "z-lab/Qwen3-4B-DFlash-b16"
    pair = SimpleNamespace(target_name="Qwen/Qwen3-4B", draft_name=known, draft_label=known)
    assert line(pair).startswith(f"{known} · the best known for this target")


def test_plain_decoding_can_be_the_best(target):
    keep(target, "")
    names = pair_names(target, None)
    assert (names.draft, names.draft_label) == (None, None)
    assert origin_of(str(target), None).startswith("best of 3")


def test_another_quantisation_or_machine_has_no_choice(target, monkeypatch):
    """Of the same folder, too; what was measured elsewhere says nothing here."""
    keep(target, MTP)
    assert measured_choice(str(target))
    with monkeypatch.context() as patch:
        patch.setattr(device, "device_info", lambda: {"device_name": "another"})
        assert measured_choice(str(target)) is None
    (target / "config.json").write_text(json.dumps({"quantization": {"bits": 8}}))
    assert measured_choice(str(target)) is None


def test_a_damaged_file_is_no_choice(target):
    keep(target, MTP)
    choices.STORE.path.write_text('{"format": 1, "drafters": {"a": {"draft": 1}}}')
    assert measured_choice(str(target)) is None
