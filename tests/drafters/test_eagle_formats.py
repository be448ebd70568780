"""EAGLE-3 checkpoints in every published layout, and what is said of those that do not fit."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import tiny
from bench_records import schedule_of

from dflash_mlx.bench.sources import Source, parse_sources
from dflash_mlx.drafters.eagle3.config import parse
from dflash_mlx.drafters.eagle3.drafter import EagleDrafter
from dflash_mlx.drafters.eagle3.load import plain_name
from dflash_mlx.drafters.weights import read_safetensors, used
from dflash_mlx.engine.sequence import Sequence
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.options import SamplingParams
from dflash_mlx.pair import Pair, load

GOLDEN = tiny.GOLDEN / "eagle3"
CONFIG = json.loads((GOLDEN / "draft" / "config.json").read_text())
IDS = "eagle_aux_hidden_state_layer_ids"
Tensors = dict[str, mx.array]


@pytest.fixture(scope="module")
def golden() -> Pair:
    return load(GOLDEN / "target", GOLDEN / "draft", cache_ram=0)


@pytest.fixture(scope="module")
def tensors() -> Tensors:
    return used(read_safetensors(Checkpoint.read(GOLDEN / "draft")), plain_name)


def save(folder: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    return folder


def angelslim(tensors: Tensors, pair: Pair) -> tuple[dict[str, Any], Tensors]:
    """Safetensors, and the map back."""
    found = {**tensors, "t2d": mx.zeros((tiny.VOCAB,), dtype=mx.bool_)}
    return {**CONFIG, "architectures": ["LlamaForCausalLM"], "rope_scaling": None}, found


def specforge(tensors: Tensors, pair: Pair) -> tuple[dict[str, Any], Tensors]:
    """An own embedding, and the layers by their outputs."""
    embedding = pair.target.embed(mx.arange(tiny.VOCAB))
    config = {**CONFIG, "draft_model": "x", "eagle_config": {IDS: [1, 3, 4]}}
    return config, {**tensors, "embed_tokens.weight": embedding}


def nvidia(tensors: Tensors, pair: Pair) -> tuple[dict[str, Any], Tensors]:
    """The layers by what enters them; another prefix."""
    named = {IDS: [2, 4, 5], "use_aux_hidden_state": True, "use_mtp_layernorm": False}
    return {**CONFIG, "eagle_config": named}, {f"model.{k}": v for k, v in tensors.items()}


def speculators(tensors: Tensors, pair: Pair) -> tuple[dict[str, Any], Tensors]:
    """The `speculators` format of RedHatAI: the layer has a number, the target's norm is there."""
    layer = {k: v for k, v in CONFIG.items() if k not in ("architectures", "draft_vocab_size")}
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {"algorithm": "eagle3"},
        "draft_vocab_size": CONFIG["draft_vocab_size"],
        "norm_before_residual": False,
        "target_hidden_size": None,
        "transformer_layer_config": layer,
        IDS: [2, 4, 5],
    }
    found = {name.replace("midlayer.", "layers.0."): value for name, value in tensors.items()}
    return config, {**found, "verifier_norm.weight": mx.ones((32,))}


@pytest.mark.parametrize("layout", [angelslim, specforge, nvidia, speculators])
def test_layouts(layout: Any, golden: Pair, tensors: Tensors, tmp_path: Path) -> None:
    """The authors' head in another layout drafts what it drafts: their accepted counts."""
    pair = tiny.with_drafter(golden, save(tmp_path, *layout(tensors, golden)))
    assert isinstance(pair.drafter, EagleDrafter)
    assert pair.drafter.taps == (1, 3, 4)
    expected = json.loads((GOLDEN / "expected.json").read_text())
    blocks = tiny.start(
        Sequence(pair.target, pair.drafter),
        expected["prompts"][1],
        SamplingParams(),
        block_size=6,
        max_tokens=30,
    )
    accepted = [block.accepted for block in blocks][1:-1]
    assert accepted == expected["chain"][1]["accepted"][: len(accepted)]
    assert sum(accepted) > 5


def test_other_sizes_of_the_published_configs() -> None:
    """Qwen's norms of heads, a target that is wider than its head, more layers."""
    layer = {**CONFIG, "model_type": "qwen3", "head_dim": 24}
    raw = {
        "speculators_model_type": "eagle3",
        "transformer_layer_config": layer,
        "norm_before_residual": True,
        "target_hidden_size": 48,
        "fc_norm": True,
        IDS: [3, 5, 8, 12],
    }
    config = parse(raw)
    assert (config.qk_norm, config.norm_before_residual, config.fc_norm) == (True, True, True)
    assert (config.head_dim, config.target_hidden_size) == (24, 48)
    assert config.taps(12) == (2, 4, 7, 11)
    assert parse(CONFIG).taps(36) == (1, 17, 32)
    last = {**CONFIG, "eagle_config": {IDS: [24, 30, 36], "norm_before_fc": True}}
    assert parse(last).taps(36) == (23, 29, 35)
    assert parse(last).norm_before_fc


def without(name: str) -> Callable[[dict[str, Any], Tensors], None]:
    return lambda config, tensors: tensors.__delitem__(name) and None


def with_config(**changes: Any) -> Callable[[dict[str, Any], Tensors], None]:
    return lambda config, tensors: config.update(changes)


def with_tensor(name: str, value: mx.array) -> Callable[[dict[str, Any], Tensors], None]:
    return lambda config, tensors: tensors.update({name: value})


FAULTS = [
    (with_config(target_hidden_size=48), "expects a target with hidden size 48, '.*' has 32"),
    (with_config(vocab_size=105), "expects a target with vocabulary 105, '.*' has 104"),
    (with_config(eagle_config={IDS: [2, 4, 9]}), r"layers \[1, 3, 8\], '.*' has 8"),
    (with_config(eagle_config={IDS: "2"}), f"wrong '{IDS}: 2'"),
    (with_config(num_hidden_layers=2), "'num_hidden_layers: 2' is not supported"),
    (with_config(eagle_config={"use_last_layernorm": False}), "'use_last_layernorm: False'"),
    (with_config(architectures=["Eagle3DeepseekV2ForCausalLM"]), "of the kind 'Eagle3Deepseek"),
    (with_config(draft_vocab_size=200), "wrong 'draft_vocab_size: 200'"),
    (with_config(hidden_size=None), "has no 'hidden_size'"),
    (without("d2t"), "has no tensor 'd2t'"),
    (without("lm_head.weight"), "has no tensor 'lm_head.weight'"),
    (with_tensor("fc.bias", mx.zeros((32,))), "has an unknown 'fc.bias'"),
    (with_tensor("fc.weight", mx.zeros((32, 64))), r"'fc.weight' is \[32, 64\]"),
    (with_tensor("d2t", mx.zeros((60,), dtype=mx.int64) + 70), "does not lead into"),
]


@pytest.mark.parametrize(("fault", "message"), FAULTS)
def test_what_does_not_fit_is_said(
    fault: Any, message: str, golden: Pair, tensors: Tensors, tmp_path: Path
) -> None:
    """Before a weight is read; the pair that was loaded goes on."""
    config, found = dict(CONFIG), dict(tensors)
    fault(config, found)
    with pytest.raises(DFlashError, match=message):
        tiny.with_drafter(golden, save(tmp_path, config, found))


@pytest.mark.parametrize("part", ["target", "draft"])
def test_a_file_of_pytorch_is_refused_by_name(part: str, golden: Pair, tmp_path: Path) -> None:
    """A target, and a head as SafeAILab publishes it; the file stays as it is."""
    folder = shutil.copytree(GOLDEN / part, tmp_path / part)
    file = (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    kept = file.read_bytes()
    with pytest.raises(DFlashError, match=r"PyTorch file \('pytorch_model\.bin'\), which"):
        load(folder) if part == "target" else tiny.with_drafter(golden, folder)
    assert file.read_bytes() == kept


def test_a_head_cannot_answer(golden: Pair) -> None:
    with pytest.raises(DFlashError, match="is a drafter, not a model"):
        load(GOLDEN / "draft", cache_ram=0)


def test_as_a_source_of_a_comparison(golden: Pair) -> None:
    """`eagle3:ID` is what it is called."""
    (source,) = parse_sources("eagle3:a/b")
    assert (source.label, source.draft) == ("eagle3:a/b", "a/b")
    source.check(golden)
    (tree,) = parse_sources("eagle3-60:a/b")
    assert (tree.label, tree.draft) == ("eagle3-60:a/b", "a/b")
    modes = [source.schedule(schedule_of()).modes[1], tree.schedule(schedule_of()).modes[1]]
    assert [mode.label for mode in modes] == ["dflash", "ddtree:59"]
    for text in ("eagle3-1:a/b", "eagle3-9999:a/b", "model-60:a/b", "eagle3-60"):
        with pytest.raises(UsageError):
            parse_sources(text)
    for source in (Source("dflash"), Source("dflash", "a/b"), Source("model", "a/b")):
        with pytest.raises(DFlashError, match="is an EAGLE-3 head") as caught:
            source.check(golden)
        assert caught.value.hint == f"write eagle3:{source.draft or golden.draft_name}"
