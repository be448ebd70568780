"""LoRA and DoRA adapters: the adapted target is mlx-lm's, and nothing is shared with its base."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import tiny
from adapters import base_of, save_adapter, stock_model
from engines import EVERY_MODE, answer
from mlx_lm.generate import generate_step

import dflash_mlx
from dflash_mlx.engine.engine import Engine
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.adapter import Adapter
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.models.target import Target

GB = 1 << 30
PROMPT = tiny.prompt_of(30, 3)


def target_of(folder: Path, adapter: Path | None = None, **options: Any) -> Target:
    read = None if adapter is None else Adapter.read(adapter)
    return Target.load(Checkpoint.read(folder), frozenset(), adapter=read, **options)


def greedy(model: Any, count: int) -> list[int]:
    steps = generate_step(mx.array(PROMPT), model, max_tokens=count)
    return [int(token) for token, _ in steps]


CASES = [
    *(("qwen3", kind) for kind in ("lora", "dora", "full")),
    *((family, "lora") for family in ("qwen3_moe", "qwen35_hybrid", "gpt_oss", "deepseek_v3")),
]


@pytest.mark.parametrize(("family", "kind"), CASES)
def test_answers_are_those_of_mlx_lm(family: str, kind: str, tmp_path: Path) -> None:
    """In every mode, with a drafter that was made for the base model."""
    folder = base_of(tmp_path / "base", family)
    adapter = save_adapter(tmp_path / "adapter", folder, kind)
    wanted = greedy(stock_model(folder, adapter), 24)
    assert wanted != greedy(target_of(folder).model, 24)
    target = target_of(folder, adapter)
    engine = Engine(target, tiny.random_drafter(target), compiler=tiny.compiler_of(target))
    for options in EVERY_MODE:
        assert answer(engine, PROMPT, max_tokens=24, **options)[0] == wanted


def test_an_adapter_of_the_embedding(tmp_path: Path) -> None:
    """The table and the tied head are wrapped, too; their sizes are still those of the model."""
    folder = base_of(tmp_path / "base", "qwen3")
    adapter = save_adapter(tmp_path / "adapter", folder, keys=["model.embed_tokens"])
    target = target_of(folder, adapter)
    assert (target.vocab_size, target.hidden_size) == (tiny.VOCAB, 32)
    wanted = greedy(stock_model(folder, adapter), 24)
    engine = Engine(target, tiny.random_drafter(target), compiler=tiny.compiler_of(target))
    for options in EVERY_MODE:
        assert answer(engine, PROMPT, max_tokens=24, **options)[0] == wanted


def test_stand_ins_leave_adapters_as_they_are(tmp_path: Path) -> None:
    """The layers that DoRA reads by their class, and the products of LoRA's base layers."""
    folder = base_of(tmp_path / "base", "qwen3", quantised=True)
    for kind in ("lora", "dora"):
        adapter = save_adapter(tmp_path / kind, folder, kind)
        wanted = stock_model(folder, adapter)(mx.array([PROMPT[:5]]))
        target = target_of(folder, adapter)
        target.kernels = Kernels(references=True)
        found = target.model(mx.array([PROMPT[:5]]))
        assert tiny.apart(found, wanted) < 1e-4


def test_exact_mode_names_adapters(tmp_path: Path) -> None:
    """Their products depend on the number of rows."""
    folder = base_of(tmp_path / "base", "qwen3")
    adapter = save_adapter(tmp_path / "adapter", folder)
    with pytest.raises(DFlashError, match="does not know the layers LoRALinear"):
        target_of(folder, adapter, exact=True)


def test_prefixes_on_disk_are_not_shared(tmp_path: Path) -> None:
    """With the base, with another adapter, and with the same folder after it was trained on."""
    target, draft = tiny.save_pair(tmp_path, tiny.draft_settings, head_dim=32)
    adapter = save_adapter(tmp_path / "adapter", target)

    def cached(adapter: Path | None) -> int:
        pair = dflash_mlx.load(target, draft, adapter=adapter, cache_disk=GB)
        found = dflash_mlx.generate(pair, PROMPT, max_tokens=4)
        fresh = dflash_mlx.load(target, draft, adapter=adapter, cache_ram=0)
        assert found.tokens == dflash_mlx.generate(fresh, PROMPT, max_tokens=4).tokens
        assert pair.engine.prefix_cache.disk is not None
        pair.engine.prefix_cache.disk.wait()
        return found.stats.cached_tokens

    assert [cached(None), cached(adapter), cached(adapter), cached(None)] == [0, 0, 29, 29]
    config = json.loads((adapter / "adapter_config.json").read_text())
    config["lora_parameters"]["scale"] *= 2
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    assert cached(adapter) == 0
