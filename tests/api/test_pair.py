"""What is loaded, what is refused, and in which words."""

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import tiny
from checkpoint_edits import edit_config, edit_weights, refused
from lossless import assert_lossless
from mlx_lm import stream_generate
from mlx_lm.utils import load as stock_load

from dflash_mlx import api
from dflash_mlx.drafters.dflash.config import default_layer_ids, parse
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.hub import resolve as hub
from dflash_mlx.options import SamplingParams
from dflash_mlx.pair import load
from dflash_mlx.session import Session

GB = 10**9


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    return tiny.save_pair(tmp_path, tiny.draft_settings)


def test_a_pair_from_folders(folders: Any) -> None:
    """A target and a drafter load, under the names that they were given, and are lossless."""
    pair = load(*folders)
    assert (pair.target_name, pair.draft_name) == tuple(map(str, folders))
    assert pair.drafter is not None
    assert pair.drafter.config.block_size == 8
    assert pair.target.eos_ids == {98}
    assert_lossless(pair)


@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_drafter(bits: int) -> None:
    """A drafter in 4 or 8 bits is smaller and still lossless; 8 bits lose little."""
    folder = tiny.GOLDEN / "qwen3_full"
    pair = load(folder / "target", folder / "draft", draft_bits=bits)
    assert pair.drafter is not None
    assert "scales" in pair.drafter.model["fc"]
    expected = tiny.expected("qwen3_full")
    result = api.generate(pair, expected["prompts"][1], max_tokens=64)
    assert result.tokens == expected["greedy_tokens"][1][:64]
    assert result.stats.acceptance_length > (3.5 if bits == 8 else 1.5)


def test_missing_things(folders: Any, tmp_path: Path) -> None:
    """A folder, a config, weights or a tokenizer that is not there is named."""
    target, draft = folders
    refused("no folder", tmp_path / "nowhere", draft)
    refused("no folder", target, tmp_path / "nowhere")
    refused("no folder", "./nowhere", draft)
    refused("no model or folder", "word", draft)
    refused("a server's address", "http://mac:8080/v1", draft)
    (tmp_path / "model.gguf").touch()
    refused("a GGUF file", tmp_path / "model.gguf", draft)
    (tmp_path / "empty").mkdir()
    refused(r"no config\.json", tmp_path / "empty", draft)
    refused(r"no config\.json", target, tmp_path / "empty")
    for folder in folders:
        weights = folder / "model.safetensors"
        weights.rename(folder / "away")
        refused("no weights", *folders)
        (folder / "away").rename(weights)
    (target / "tokenizer.json").rename(target / "away")
    refused("no tokenizer", *folders)


def test_bad_arguments(folders: Any) -> None:
    """Contradictions and values out of range are the caller's faults: UsageError."""
    for options in ({"draft_bits": 3}, {"no_draft": True}):
        with pytest.raises(UsageError) as caught:
            load(*folders, **options)
        assert caught.value.hint


@pytest.mark.parametrize("number", [0, 1], ids=["target", "draft"])
def test_damaged_files(folders: Any, number: int) -> None:
    """Truncated or empty weights and a broken config.json are found before anything is loaded."""
    folder = folders[number]
    weights, config = folder / "model.safetensors", folder / "config.json"
    whole = weights.read_bytes()
    for damaged in (
        whole[: len(whole) // 2],
        whole[:-1],
        whole[:100],
        whole[:4],
        b"",
        b"\xff" * 64,
        b"\x02" + b"\0" * 7 + b"[]",
        b"<html>not found</html>",
    ):
        weights.write_bytes(damaged)
        refused("damaged or incomplete", *folders)
    weights.write_bytes(whole)
    text = config.read_text()
    for broken in (text[: len(text) // 2], "", "\xff\xfe"):
        config.write_bytes(broken.encode("latin-1"))
        refused("not valid JSON", *folders)
    config.write_text("[1]")
    refused("not hold an object", *folders)
    config.write_text(text)
    assert_lossless(load(*folders))


def test_damaged_tokenizer(folders: Any) -> None:
    """A tokenizer file that is cut, or is none, is reported as a target that cannot be loaded."""
    file = folders[0] / "tokenizer.json"
    for text in (file.read_text()[:500], "{}", "[]"):
        file.write_text(text)
        refused("cannot be loaded", *folders)


def test_mixed_up_roles(folders: Any) -> None:
    """A drafter given as the target, and unknown types are refused."""
    target, draft = folders
    refused("is a drafter, not", draft, draft)
    edit_config(target, model_type="bert")
    refused("'bert', an encoder", target, draft)
    edit_config(target, model_type=None)
    refused("names no type of model", target, draft)
    edit_config(target, model_type="qwen3", vocab_size=None)
    refused("does not describe a model of its type", target, draft)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 48}, "hidden size 48"),
        ({"vocab_size": 105}, "vocabulary 105"),
        ({"num_target_layers": 4}, "layer count 4"),
        ({"dflash_config": {"target_layer_ids": [0, 3]}}, "reads the hidden states of the layers"),
        ({"dflash_config": {"target_layer_ids": [-1, 2]}}, "reads the hidden states of the layers"),
        ({"dflash_config": {"mask_token_id": 104}}, "mask token 104"),
        ({"dflash_config": {"target_layer_ids": [0]}}, r"'fc\.weight' is"),
        ({"num_hidden_layers": 3}, "no tensor"),
        ({"num_hidden_layers": 1}, r"unknown 'layers\.1"),
        ({"attention_bias": True}, r"no tensor 'layers\.0\.self_attn\.\w_proj\.bias'"),
        ({"intermediate_size": 64}, "its config says"),
    ],
)
def test_drafters_of_another_target(folders: Any, changes: dict, message: str) -> None:
    """A drafter that does not fit its target, or its own weights, is refused by what differs."""
    edit_config(folders[1], **changes)
    refused(message, *folders)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dflash_config": {"gru_hidden_dim": 8}}, "unknown 'gru_hidden_dim'"),
        ({"dflash_config": {"sample_from_anchor": 1}}, "wrong 'sample_from_anchor: 1'"),
        ({"sample_from_anchor": "yes"}, "wrong 'sample_from_anchor: yes'"),
        ({"speculators_model_type": "dflash"}, "speculators_model_type"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"dflash_config": {"projector_type": "domino"}}, "projector_type: domino"),
        ({"architectures": ["DominoDraftModel"]}, "is of the kind Domino"),
        ({"architectures": ["DeepseekV4DSparkModel"]}, "'DeepseekV4DSparkModel' are not"),
        ({"architectures": ["DFlash2BeamDraftModel"]}, "'DFlash2BeamDraftModel' are not"),
        ({"dflash_config": {"conv_kernel_size": 2}}, "unknown 'conv_kernel_size'"),
        ({"dflash_config": {"selector_top_k": 16}}, "unknown 'selector_top_k'"),
        ({"hidden_act": "gelu"}, "'gelu' is not supported"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layer_types"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "no 'sliding_window'"),
        ({"hidden_size": None}, "no 'hidden_size'"),
        ({"dflash_config": {"mask_token_id": None}}, "no 'mask_token_id'"),
        ({"rope_scaling": {"rope_type": "new", "factor": 2.0}}, "drafter's config"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "drafter's config"),
        ({"hidden_size": "32"}, "drafter's config"),
        ({"num_attention_heads": 0}, "drafter's config"),
        ({"dflash_config": {"target_layer_ids": 3}}, "drafter's config"),
        ({"dflash_config": {"block_size": "8"}}, "drafter's config"),
        ({"dflash_config": {"block_size": 1}}, "drafter's config"),
        ({"dflash_config": [1]}, "drafter's config"),
    ],
)
def test_configs_that_are_not_understood(folders: Any, changes: dict, message: str) -> None:
    """An unknown key that changes the computation is refused by name; so is a wrong value."""
    edit_config(folders[1], **changes)
    refused(message, *folders)


def test_where_keys_may_stand() -> None:
    """dflash_config wins over the top level; rope settings are found in either style."""
    base = tiny.draft_settings(tiny.make_target("qwen3"))
    nested = base.pop("dflash_config")
    top = {**base, **nested, "block_size": 16}
    assert parse(top).block_size == 16
    assert parse({**top, "dflash_config": nested}).block_size == 8
    assert parse({**top, "dflash_config": {"block_size": None}}).block_size == 16
    assert parse({**base, "dflash_config": {**nested, "block_size": None}}).block_size == 16
    assert parse(top).target_layer_ids == (0, 2)
    assert parse(top).rope_theta == 10000.0
    bare = {k: v for k, v in top.items() if k != "rope_theta"}
    rope = {"rope_theta": 5e6, "rope_type": "default"}
    assert parse({**bare, "rope_parameters": rope}).rope_theta == 5e6
    assert parse({**top, "rope_parameters": rope}).rope_theta == 10000.0
    assert parse({**bare, "rope_parameters": rope}).rope_scaling is None
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    assert parse({**bare, "rope_parameters": {**rope, **yarn}}).rope_scaling is not None
    assert parse({**top, "rope_scaling": yarn}).rope_scaling == yarn


def test_causality_and_windows() -> None:
    """Sliding layers are causal, full ones are not, unless the config says so."""
    base = tiny.draft_settings(tiny.make_target("qwen3"))
    nested = base["dflash_config"]
    mixed = {**base, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 7}
    assert [parse(base).causal(i) for i in (0, 1)] == [False, False]
    assert parse(base).window is None
    assert [parse(mixed).causal(i) for i in (0, 1)] == [True, False]
    assert parse(mixed).window == 7
    assert [parse({**mixed, "is_causal": False}).causal(i) for i in (0, 1)] == [False, False]
    causal = {**mixed, "dflash_config": {**nested, "causal": True}}
    assert [parse(causal).causal(i) for i in (0, 1)] == [True, True]
    assert not parse({**causal, "is_causal": False}).causal(0)
    other = {**base, "dflash_config": {**nested, "use_swa": True, "swa_window_size": 9}}
    assert (parse(other).sliding, parse(other).window) == ((True, True), 9)


@pytest.mark.parametrize(
    ("layers", "count", "ids"),
    [
        (36, 5, (1, 9, 17, 25, 33)),
        (64, 8, (1, 10, 18, 27, 35, 44, 52, 61)),
        (60, 8, (1, 9, 17, 25, 33, 41, 49, 57)),
        (61, 6, (1, 12, 24, 35, 47, 58)),
        (36, 1, (18,)),
    ],
)
def test_default_taps(layers: int, count: int, ids: tuple[int, ...]) -> None:
    """Without target_layer_ids the taps are those of the published checkpoints."""
    assert default_layer_ids(layers, count) == ids


def test_missing_layer_ids_are_filled_in() -> None:
    """parse takes the default taps, one a draft layer, from num_target_layers."""
    base = tiny.draft_settings(tiny.make_target("qwen3"), num_target_layers=36, num_hidden_layers=5)
    del base["dflash_config"]["target_layer_ids"]
    assert parse(base).target_layer_ids == (1, 9, 17, 25, 33)
    del base["num_target_layers"]
    with pytest.raises(DFlashError, match="num_target_layers"):
        parse(base)


def test_prefix_and_shards(folders: Any) -> None:
    """Tensor names may begin with `model.`, and weights may lie in several files."""
    draft = folders[1]
    weights = {f"model.{k}": v for k, v in mx.load(str(draft / "model.safetensors")).items()}  # type: ignore[union-attr]
    mx.eval(weights)
    (draft / "model.safetensors").unlink()
    names = sorted(weights)
    for number, part in enumerate((names[::2], names[1::2])):
        file = draft / f"model-{number + 1:05}-of-00002.safetensors"
        mx.save_safetensors(str(file), {name: weights[name] for name in part})
    assert_lossless(load(*folders))


def test_no_chat_template(folders: Any) -> None:
    """Without a chat template messages are refused with the way out; raw text and ids work."""
    file = folders[0] / "tokenizer_config.json"
    config = json.loads(file.read_text())
    del config["chat_template"]
    file.write_text(json.dumps(config))
    pair = load(*folders)
    with pytest.raises(DFlashError, match="no chat template") as caught:
        Session(pair).stream("hi")
    assert "--raw" in caught.value.hint
    assert len(api.generate(pair, "hi", raw=True, max_tokens=3).tokens) == 3
    assert len(api.generate(pair, [1, 2], max_tokens=3).tokens) == 3


def test_chat_template_that_refuses(folders: Any) -> None:
    """What a template raises becomes one sentence."""
    file = folders[0] / "tokenizer_config.json"
    config = json.loads(file.read_text())
    config["chat_template"] = "{{ raise_exception('roles must alternate') }}"
    file.write_text(json.dumps(config))
    with pytest.raises(DFlashError, match="roles must alternate") as caught:
        Session(load(*folders)).stream("hi")
    assert caught.value.hint


def spoil(folder: Path, name: str) -> None:
    edit_weights(folder, lambda w: w.update({name: mx.full(w[name].shape, mx.nan)}))


def test_nan_weights(folders: Any) -> None:
    """Weights that are not numbers load, and the first answer says so, in both modes."""
    spoil(folders[0], "model.norm.weight")
    pair = load(*folders)
    for mode in ("dflash", "baseline"):
        with pytest.raises(DFlashError, match="NaN") as caught:
            api.generate(pair, [1, 2, 3], mode=mode)  # type: ignore[arg-type]
        assert caught.value.hint


def test_nan_drafter_is_only_slow(folders: Any) -> None:
    spoil(folders[1], "norm.weight")
    pair = load(*folders)
    assert_lossless(pair)
    prompt = tiny.prompt_of(9)
    wanted = tiny.plain(pair.target, prompt, 16, pair.target.eos_ids)
    for mode in ("ddtree", "auto"):  # the latter reads how sure the drafter is
        answer = api.generate(pair, prompt, max_tokens=16, mode=mode)  # type: ignore[arg-type]
        assert answer.tokens == wanted


def test_target_configs_that_are_wrong(folders: Any) -> None:
    """What mlx-lm or transformers say about a target's config.json comes as one sentence."""
    for changes in ({"max_position_embeddings": "many"}, {"num_attention_heads": 3}):
        edit_config(folders[0], **changes)
        refused("cannot be loaded", *folders)


def test_extreme_params_are_taken(folders: Any) -> None:
    """Values at the edge of their range work in both modes."""
    pair = load(*folders)
    edges: list[dict[str, Any]] = [
        {"temperature": 100.0, "seed": 2**64 - 1},
        {"temperature": 0.01, "top_k": 10**6},
        {"temperature": 1.0, "top_p": 1e-6},
        {"temperature": 1.0, "min_p": 1.0},
        {"temperature": 1.0, "repetition_penalty": 100.0, "presence_penalty": -100.0},
    ]
    for values in edges:
        for mode in ("dflash", "baseline"):
            sampling = SamplingParams(**values)
            result = api.generate(pair, [1, 2], sampling=sampling, max_tokens=4, mode=mode)  # type: ignore[arg-type]
            assert len(result.tokens) == 4 or result.finish_reason == "stop"


def test_two_pairs_do_not_see_each_other(folders: Any) -> None:
    """Two pairs in one process, taps on other layers, block by block in turns."""
    first = load(*folders)
    target = tiny.make_target("qwen3", seed=8)
    settings = tiny.draft_settings(target)
    settings["dflash_config"]["target_layer_ids"] = [1]
    drafter = tiny.random_drafter(target, **settings)
    second = tiny.make_pair(target, drafter, "second", "second")
    prompt = tiny.prompt_of(9)
    alone = [api.generate(p, prompt, max_tokens=20) for p in (first, second)]
    streams = [Session(p).stream(prompt, max_tokens=20) for p in (first, second)]
    said: list[list[Any]] = [[], []]
    for number in [0, 1] * 20:
        said[number] += [b for b in [next(streams[number], None)] if b]
    for blocks, result in zip(said, alone, strict=True):
        assert tiny.joined(blocks) == result.tokens
        assert [len(b.tokens) for b in blocks[1:]] == result.stats.committed


def test_stock_code_on_a_tapped_model(folders: Any) -> None:
    """mlx-lm's stream_generate does on our instance what it does on its own."""
    target, draft = folders
    pair = load(target, draft)
    model: Any
    model, tokenizer = stock_load(str(target))[:2]
    answers = []
    for which in (model, pair.target.model):
        answer = stream_generate(which, tokenizer, tiny.prompt_of(9), max_tokens=12)
        answers.append([response.token for response in answer])
    assert answers[0] == answers[1]
    assert pair.target._seen is None
    assert not hasattr(type(model.layers[0]), "_record")
    cache = pair.target.make_cache()
    tokens = mx.array([tiny.prompt_of(9)])
    ours = pair.target.forward(tokens, cache)[0]
    assert mx.allclose(ours, model(tokens), rtol=1e-5, atol=1e-5)


def test_taps_move_with_the_drafter(folders: Any) -> None:
    """A second drafter on one target gets the layers it asks for, in its own order."""
    pair = load(*folders)
    tokens = mx.array([tiny.prompt_of(9)])
    joint = pair.target.taps(tokens)
    pair.target.tap((2, 1, 0))
    all_three = pair.target.taps(tokens)
    size = pair.target.hidden_size
    assert (all_three[..., :size] == joint[..., size:]).all()
    assert (all_three[..., 2 * size :] == joint[..., :size]).all()
    pair.target.tap(())
    assert pair.target.taps(tokens).shape == (1, 9, 0)


def test_a_new_drafter_ends_the_check_of_the_old_pair(folders: Any) -> None:
    """It would set the kernels of the old pair between answers of the new one."""
    pair = load(*folders)
    pair.engine.between_answers = iter(())
    tiny.with_drafter(pair, no_draft=True)
    assert pair.engine.between_answers is None


def test_a_new_drafter_that_was_broken_off(
    folders: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while kernels are tried for it: the old pair's taps are there again."""
    pair = load(*folders)
    other = shutil.copytree(folders[1], tmp_path / "other")
    ids = json.loads((other / "config.json").read_text())["dflash_config"]["target_layer_ids"]
    edit_config(other, dflash_config={"target_layer_ids": ids[::-1]})
    tokens = mx.array([tiny.prompt_of(9)])
    before = pair.target.taps(tokens)
    mx.eval(tokens, before)  # they are compared in another thread

    def stopped(*_: Any) -> Any:
        assert not mx.array_equal(pair.target.taps(tokens), before)
        os.kill(os.getpid(), signal.SIGINT)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            time.sleep(0.01)

    monkeypatch.setattr("dflash_mlx.pair.prepare_kernels", stopped)
    with pytest.raises(KeyboardInterrupt):
        tiny.with_drafter(pair, other)
    assert mlx_thread().call(lambda: bool(mx.array_equal(pair.target.taps(tokens), before)))


def test_bundled_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without names the bundled pair is taken; an installation without it says so."""
    monkeypatch.setattr(hub, "files", lambda package: tmp_path)
    with pytest.raises(DFlashError, match="bundled pair is missing") as caught:
        load()
    assert caught.value.hint
    for part in ("target", "draft"):
        (tmp_path / part).mkdir()
    names = hub.pair_names(None, None)
    assert (names.target, names.draft) == (tmp_path / "target", tmp_path / "draft")
    assert names.target_label == names.draft_label == hub.BUNDLED
    assert hub.pair_names(None, None, no_draft=True).draft is None


def test_another_drafter_changes_the_memory_by_its_weights(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What conversations hold by then does not count: they end with the old drafter."""
    pair = load(*folders, cache_ram=0)
    before = pair.engine.memory_limit
    monkeypatch.setattr(mx, "get_active_memory", lambda: 5 * GB)
    plain = tiny.with_drafter(pair, no_draft=True)
    again = tiny.with_drafter(plain, folders[1])
    assert before is not None
    assert plain.engine.memory_limit is not None
    assert plain.engine.memory_limit > before
    assert again.engine.memory_limit == before
