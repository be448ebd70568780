"""The published pairs: what is listed, what runs, and what a machine is offered."""

import tomllib
from dataclasses import replace
from importlib import import_module
from itertools import combinations
from pathlib import Path

import pytest

from dflash_mlx.drafters.dflash.config import parse
from dflash_mlx.drafters.eagle3 import config as eagle
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.files.formats import ASSISTANT, EAGLE3, QWEN3_DSPARK, V1, V2
from dflash_mlx.files.model_types import is_known
from dflash_mlx.hub import registry
from dflash_mlx.hub.kinds import KINDS, LOADED, MTP, TOKEN_BY_TOKEN
from dflash_mlx.hub.registry import Entry, entries, find, pairs_of
from dflash_mlx.hub.resolve import LOOKUP, pair_names

ROOT = Path(__file__).parents[2]
GB = 10**9
EVER = 1 << 60
DRAFTER = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 100,
    "dflash_config": {"mask_token_id": 1, "target_layer_ids": [0]},
}


def test_the_data_file_is_installed():
    """Read from the tree it works; a wheel without it knows no pair."""
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    assert "pairs.toml" in setuptools["package-data"]["dflash_mlx.hub"]


@pytest.fixture
def table(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "measure"))
    return import_module("write_pairs")


def test_the_package_has_the_table(table):
    """pairs.toml is what `write_pairs.py` writes; nobody changes it by hand."""
    assert table.PAIRS.read_text(encoding="utf-8") == table.pairs()


TARGET_KEYS = set(
    "id family gated params active bytes kv state strength good mlx names source unconfirmed note"
    " drafter".split()
)
DRAFTER_KEYS = set("id kind block params bytes kv licence source unconfirmed results note".split())


def test_every_row_of_the_table(table):
    """Ids, kinds and blocks are sound; what is not known is said, and every figure has a source."""
    seen = set()
    for target in table.read_table():
        assert target.keys() <= TARGET_KEYS
        assert target["id"].count("/") == 1
        assert target["source"]
        assert target["drafter"]
        assert "params" in target or "size" in target["unconfirmed"], target["id"]
        assert target["id"] not in seen
        seen.add(target["id"])
        drafters = [drafter["id"] for drafter in target["drafter"]]
        assert len(drafters) == len(set(drafters))
        for drafter in target["drafter"]:
            assert drafter.keys() <= DRAFTER_KEYS
            assert drafter["id"].count("/") == 1
            assert drafter["kind"] in KINDS
            assert "kv" not in drafter or drafter["kind"] == MTP
            assert 2 <= drafter["block"] <= 16
            assert drafter["source"]
            known = "params" in drafter or "bytes" in drafter
            assert known or "size" in drafter["unconfirmed"], drafter["id"]
            for figure, setting, source in drafter.get("results", ()):
                assert figure > 0
                assert setting
                assert source


def test_targets_without_a_drafter(table):
    """They have names, sizes and a version for MLX; they draft with copies, and are not offered."""
    for target in table.undrafted():
        assert target.keys() <= TARGET_KEYS - {"drafter", "strength", "good"}
        assert is_known(target["family"])
        entry = find(f"{target['mlx']['repo']}-{target['mlx']['quants'][0]}")
        assert entry
        assert entry.repos == (entry.target,)
        assert entry.memory_bytes
        assert entry.download_bytes == entry.target_bytes
        names = pair_names(entry.target, None)
        assert (names.draft, names.draft_label) == (None, LOOKUP)
        assert not registry.fits(entry, EVER, EVER)


def test_the_order_is_that_of_published_results(table):
    """Where two drafters have figures of one source and setting, the better one is first."""
    compared = 0
    for target in table.read_table():
        for first, second in combinations(target["drafter"], 2):
            figures = [{(s, src): v for v, s, src in d.get("results", ())} for d in (first, second)]
            shared = figures[0].keys() & figures[1].keys()
            ratios = [figures[0][key] / figures[1][key] for key in shared]
            assert not shared or sum(ratios) / len(ratios) >= 1, (first["id"], second["id"])
            compared += bool(shared)
    assert compared > 10


CONFIGS = {
    "dflash": {**DRAFTER, "architectures": [V1]},
    "dflash2": {**DRAFTER, "architectures": [V2]},
    "eagle3": {**DRAFTER, "architectures": [EAGLE3]},
    "mtp": {"model_type": "qwen3_5_mtp"},
    "muse-assistant": {**DRAFTER, "architectures": [ASSISTANT]},
    "dspark": {**DRAFTER, "architectures": [QWEN3_DSPARK], "markov_rank": 4},
    "deepspec-dflash": {**DRAFTER, "architectures": [QWEN3_DSPARK]},
    "jetspec": {**DRAFTER, "architectures": [V1], "is_causal": True},
    "gemma4-assistant": {"model_type": "gemma4_assistant"},
}


FORMATS = {
    "muse-assistant": "dflash",
    "deepspec-dflash": "dspark",
    "jetspec": "dflash",
    "gemma4-assistant": "gemma4_assistant",
}


def test_what_drafts_is_what_the_loader_takes():
    """The loaders take the kinds that the registry says run; another one is no key of it."""
    assert CONFIGS.keys() == LOADED.keys()
    assert LOADED.keys() <= {entry.kind for entry in entries()} - {""} <= KINDS.keys()
    for kind, raw in CONFIGS.items():
        checkpoint = Checkpoint(Path("draft"), raw)
        assert checkpoint.format == FORMATS.get(kind, kind)
        if kind in ("dflash", "dflash2", "muse-assistant"):
            assert parse(raw).mask_token_id == 1
        if kind == "eagle3":
            assert eagle.parse(raw).taps(12) == (1, 5, 8)


def test_quantisations_follow_their_target():
    """With its drafter, and smaller than it; the copy in 16 bits is as big."""
    whole = find("Qwen/Qwen3-8B")
    assert whole
    assert whole.target_bytes
    forms = {quant: find(f"mlx-community/Qwen3-8B-{quant}") for quant in ("4bit", "8bit", "bf16")}
    sizes = []
    for quant, entry in forms.items():
        assert entry
        assert (entry.draft, entry.block, entry.quant) == (whole.draft, whole.block, quant)
        assert entry.estimated
        sizes.append(entry.target_bytes)
    assert sizes[0] < sizes[1] < sizes[2] == whole.target_bytes
    assert sizes[0] == pytest.approx(whole.target_bytes * 4.5 / 16)


def test_find():
    """The case of an id does not matter; the first drafter that is loaded counts."""
    entry = find("qwen/qwen3-4b")
    assert entry
    assert entry.target == "Qwen/Qwen3-4B"
    assert registry.drafter_of("Qwen/Qwen3-4B") == "z-lab/Qwen3-4B-DFlash-b16"
    assert registry.drafter_of("meta-models/Muse-Glimmer-30B") == "z-lab/Muse-Glimmer-30B-DFlash2"
    assert find("owner/other") is registry.drafter_of("owner/other") is None
    assert pairs_of("owner/other") == ()
    for best in registry.best_known():
        pairs = pairs_of(best.target)
        before = pairs[: pairs.index(best)]
        assert not any(pair.supported for pair in before if best.supported)
        assert best.supported or best == pairs[0]


def test_the_head_of_a_conversion():
    """mlx-lm's conversions leave it out: the registry names who split it. Originals have it."""
    names = pair_names("mlx-community/Qwen3.6-27B-4bit", MTP)
    assert names.draft == names.draft_label == "mlx-community/Qwen3.6-27B-MTP-bf16"
    for target in ("Qwen/Qwen3.6-27B", "owner/other", "mlx-community/Qwen3.5-27B-4bit"):
        names = pair_names(target, MTP)
        assert (names.draft, names.draft_label, names.own_head) == (target, MTP, True)
    original = "Qwen/Qwen3-Next-80B-A3B-Instruct"
    for draft in (MTP, None):
        names = pair_names("mlx-community/Qwen3-Next-80B-A3B-Instruct-4bit", draft)
        assert names.draft == names.draft_label == f"{original}#mtp"


def test_a_head_is_taken_where_it_is_the_best_known():
    """The target's own; nothing else is downloaded."""
    names = pair_names("Qwen/Qwen3-Next-80B-A3B-Instruct", None)
    assert names.own_head
    entry = find(str(names.target))
    assert entry
    assert entry.download_bytes == entry.target_bytes


def test_a_listed_pair_that_does_not_run_says_why():
    """Not "no drafter is known": the pair and the reason are named. The target alone may run."""
    entry = next(entry for entry in entries() if not is_known(entry.family))
    with pytest.raises(DFlashError, match=f"'{entry.target}' and '{entry.draft}'.*not supported"):
        pair_names(entry.target, None)
    assert pair_names(entry.target, None, no_draft=True).draft is None


def test_a_target_whose_drafters_are_not_loaded_runs_with_copies(monkeypatch):
    monkeypatch.setattr(registry, "LOADED", {})
    registry.best_known.cache_clear()
    names = pair_names("Qwen/Qwen3-4B", None)
    assert (names.draft, names.draft_label) == (None, LOOKUP)
    registry.best_known.cache_clear()


def test_lacks_names_the_family_or_the_drafter():
    entry = find("Qwen/Qwen3-4B")
    assert entry
    assert entry.lacks == ""
    assert "'new'" in replace(entry, family="new").lacks
    assert "kind Domino" in replace(entry, kind="domino").lacks


def fits(entry: Entry, memory: int, disk: int) -> bool:
    """What `suits` promises of its answer."""
    assert entry.memory_bytes
    assert entry.download_bytes
    small = entry.memory_bytes < 0.75 * memory and entry.download_bytes < disk
    small = small and bool(entry.draft)
    return small and entry.supported and not entry.gated and entry.kind not in TOKEN_BY_TOKEN


@pytest.mark.parametrize("memory", [5, 6, 11, 16, 22, 26, 36, 48, 72, 96, 144, 384])
def test_what_suits_a_machine(memory):
    """It fits, and no larger target would; a larger machine is never offered less."""
    found = registry.best_pair(memory * GB)
    candidates = [
        e for e in registry.best_known() if e.download_bytes and fits(e, memory * GB, EVER)
    ]
    if found is None:
        assert not candidates
        return
    assert found in candidates
    assert found.params == max(entry.params or 0 for entry in candidates)
    more = registry.best_pair(2 * memory * GB)
    assert more
    assert (more.params, more.target_bytes) >= (found.params, found.target_bytes)
