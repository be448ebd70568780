"""Every target family: taps, embedding, head and sizes are what the family's own code computes."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import tiny
from mlx import nn
from mlx_lm.utils import quantize_model

from dflash_mlx.engine.sequence import Sequence as TokenSequence
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import Checkpoint, text_config
from dflash_mlx.models.target import Tap, Target, outline
from dflash_mlx.options import SamplingParams

every_family = pytest.mark.parametrize("family", tiny.FAMILIES)
pytestmark = pytest.mark.every_family
GROUP: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "head_dim": 64,
    "vocab_size": 128,
}


@every_family
def test_taps_are_the_layers_outputs(family: str) -> None:
    """The tap of a layer is what comes out of it: the last one's, normalised, gives the logits."""
    target, tokens = tiny.make_target(family), mx.array([tiny.prompt_of(20)])
    stock = target.model(tokens)
    target.tap(tuple(range(target.layers)))
    for cache in (None, target.make_cache()):
        logits, taps = target.forward(tokens, cache)
        assert tiny.apart(logits, stock) < 1e-5
        assert taps.shape == (1, 20, target.layers * target.hidden_size)
        head = target.head(target.parts.norm(taps[..., -target.hidden_size :]))
        arguments: Any = getattr(target.model, "language_model", target.model)
        arguments = arguments.args
        head = head * getattr(arguments, "output_multiplier", 1.0)
        cap = getattr(arguments, "final_logit_softcapping", None)
        assert tiny.apart(logits, cap * mx.tanh(head / cap) if cap else head) < 1e-5


@every_family
def test_embeddings(family: str) -> None:
    """A block starts from what the target starts from, but for the norm that Muse puts on it."""
    target, ids = tiny.make_target(family), tiny.prompt_of(9)
    seen: list[mx.array] = []

    class First(Tap):
        def __call__(self, x: mx.array, *args: Any, **kwargs: Any) -> Any:
            seen.append(x)
            return super().__call__(x, *args, **kwargs)

    body = tiny.body_of(target)
    body.layers[0] = First(body.layers[0], lambda hidden: None)
    target.model(mx.array([ids]))
    ours = target.embed(mx.array([ids]))
    if family == "muse_glimmer":
        assert tiny.apart(ours, seen[0]) > 0.1
        ours = mx.fast.rms_norm(ours, None, 1e-6)
    assert tiny.apart(ours, seen[0]) < 1e-6
    scale = 32**0.5 if family.startswith("gemma") else 1.0
    assert tiny.apart(target.embed(mx.array(ids)), scale * body.embed_tokens(mx.array(ids))) == 0


@pytest.mark.parametrize("family", ["qwen3_5", "gemma4", "kimi_k25", "muse_glimmer"])
def test_nested_configs(family: str, tmp_path: Path) -> None:
    """What is checked before a target is loaded stands on top, and the outer type stays."""
    folder = tmp_path / family
    folder.mkdir()
    config = tiny.config_of(family)
    if "text_config" not in config:  # Meta's own form
        config = {"model_type": family, "text_config": {**config, "model_type": "other"}}
    else:
        config["text_config"]["model_type"] = "other"
    (folder / "config.json").write_text(json.dumps(config))
    found = outline(Checkpoint.read(folder)).config
    assert found["model_type"] == family
    assert (found["hidden_size"], found["num_hidden_layers"]) == (32, 3)


@pytest.mark.parametrize("family", ["bert", "minimax_m3", "qwen3_5_text"])
def test_what_mlx_lm_does_not_open_is_refused_by_name(family: str, tmp_path: Path) -> None:
    """It is said before any weight is read."""
    config = {**tiny.BASE, "model_type": family}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(DFlashError) as caught:
        Target.load(Checkpoint.read(tmp_path), frozenset())
    assert f"type '{family}'" in caught.value.message


QUANTISED = [
    {"bits": 3, "group_size": 64},
    {"bits": 4, "group_size": 64},
    {"bits": 6, "group_size": 64},
    {"bits": 8, "group_size": 32},
    {"bits": 4, "group_size": 32, "mode": "mxfp4"},
    {"bits": 4, "group_size": 16, "mode": "nvfp4"},
]


def mixed(path: str, module: nn.Module) -> Any:
    """A recipe that leaves some modules out and gives others more bits."""
    if not hasattr(module, "to_quantized") or "layers.0" in path:
        return False
    return {"bits": 8, "group_size": 32} if "embed" in path or "head" in path else True


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    "settings", [*QUANTISED, None], ids=lambda s: f"{s.get('mode', s['bits'])}" if s else "mixed"
)
def test_quantised_targets(settings: dict[str, Any] | None, tied: bool, tmp_path: Path) -> None:
    """As mlx-lm saves and loads them: embedding, head and answers are the quantised model's."""
    config = tiny.config_of("qwen3", **GROUP, tie_word_embeddings=tied)
    target = tiny.make_target("qwen3", **GROUP, tie_word_embeddings=tied)
    recipe: Any = {} if settings else {"quant_predicate": mixed}
    wanted = settings or {"bits": 4, "group_size": 64}
    options = {"group_size": wanted["group_size"], "bits": wanted["bits"]}
    mode = wanted.get("mode", "affine")
    model, config = quantize_model(target.model, config, **options, mode=mode, **recipe)
    tiny.save_model(tmp_path / "q", model, config)
    for file in (tiny.GOLDEN / "qwen3_full" / "target").glob("tokenizer*"):
        (tmp_path / "q" / file.name).write_bytes(file.read_bytes())
    loaded = tiny.load_target(tmp_path / "q")
    assert isinstance(tiny.body_of(loaded).embed_tokens, nn.QuantizedEmbedding)
    ids = mx.array(tiny.prompt_of(9))
    table = tiny.body_of(loaded).embed_tokens(mx.arange(GROUP["vocab_size"]))
    assert tiny.apart(loaded.embed(ids).astype(mx.float32), table[ids].astype(mx.float32)) == 0
    loaded.tap((0, 2))
    logits, taps = loaded.forward(ids[None], loaded.make_cache())
    last = tiny.body_of(loaded).norm(taps[..., GROUP["hidden_size"] :])
    assert tiny.apart(loaded.head(last).astype(mx.float32), logits.astype(mx.float32)) < 1e-3
    assert loaded.head(last).shape == (1, 9, GROUP["vocab_size"])
    prompt = tiny.prompt_of(12)
    answer = tiny.plain(loaded, prompt, 8, margin=0)
    drafter = tiny.scripted_drafter([*prompt, *answer], vocab=GROUP["vocab_size"])
    said = tiny.joined(tiny.speculate(loaded, drafter, prompt, block_size=4, max_tokens=8))
    assert said == answer


@pytest.mark.parametrize("family", ["qwen3_5_moe", "gemma4_text", "gpt_oss", "lfm2_moe"])
def test_quantised_families(family: str, tmp_path: Path) -> None:
    """With a family's own recipe; a recurrent layer's tape works on quantised projections."""
    sizes: dict[str, Any] = {
        **GROUP,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
    }
    sizes |= {"linear_key_head_dim": 32, "linear_value_head_dim": 32, "global_head_dim": 64}
    target = tiny.make_target(family, **sizes)
    config = tiny.config_of(family, **sizes)
    model, config = quantize_model(target.model, config, group_size=64, bits=8)
    prompt = tiny.prompt_of(20)
    answer = tiny.plain(target, prompt, 12, margin=0)
    drafter = tiny.scripted_drafter(
        [*prompt, *answer[:5], *answer[4:]], vocab=GROUP["vocab_size"], strict=False
    )
    assert "quantization" in config
    assert model is target.model
    said = tiny.joined(tiny.speculate(target, drafter, prompt, block_size=4, max_tokens=12))
    assert said == answer


def test_configs_that_lack_something() -> None:
    """A text_config that is no object is left alone; a context of null sets no limit."""
    config = {"model_type": "gemma4", "text_config": "?"}
    assert text_config(config) == config
    assert tiny.make_target("llama", max_position_embeddings=None).context_length == 1 << 20


def test_a_pass_is_computed_while_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """In rounds; a pass by itself evaluates nothing, since the ledger traces it."""
    target = tiny.make_target("qwen3")
    drafter = tiny.random_drafter(target)
    target.parts.layers[-1] = Tap(target.parts.layers[-1], lambda _: events.append("last layer"))
    events: list[str] = []
    honest = mx.async_eval

    def begun(*arrays: Any) -> None:
        events.append("begun")
        honest(*arrays)

    monkeypatch.setattr(mx, "async_eval", begun)
    target.forward(mx.array([[1, 2]]), target.make_cache())
    assert events == ["last layer"]
    sequence = TokenSequence(target, drafter)
    for _ in tiny.start(sequence, tiny.prompt_of(5), SamplingParams(), max_tokens=9):
        events.append("committed")
    drafted, second = events[events.index("committed") :][1:3]
    assert drafted == "begun"  # the draft
    assert second == "begun"
