"""What a pair needs, against what a machine has."""

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
import tiny
from mlx.utils import tree_flatten

import dflash_mlx
from dflash_mlx import api
from dflash_mlx.drafters.mtp.drafter import MTPDrafter
from dflash_mlx.engine import engine as engine_module
from dflash_mlx.engine.engine import LEAST_CONTEXT, Engine
from dflash_mlx.engine.prompt_chunks import PREFILL_STEP_SIZE, PromptChunks
from dflash_mlx.engine.request import Request
from dflash_mlx.engine.sequence import Sequence
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.errors import DFlashError, PromptTooLong
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.hub.registry import CONTEXT, find
from dflash_mlx.hub.resolve import MTP
from dflash_mlx.kernels.dispatch import on_cpu
from dflash_mlx.models import memory
from dflash_mlx.models.cache import sizes, sliding
from dflash_mlx.models.cache.sizes import (
    KV_GROUPS,
    CacheSize,
    cache_bytes,
    free_bytes,
    kv_number_bytes,
    snapshot_bytes,
)
from dflash_mlx.models.memory import (
    MemoryEstimate,
    check_fits,
)
from dflash_mlx.models.target import outline
from dflash_mlx.session import Session
from dflash_mlx.types import SNAPSHOT_LIMITS

GB = 10**9
ModelOptions = import_module("dflash_mlx.cli.options").ModelOptions
Output = import_module("dflash_mlx.cli.terminal.output").Output
loading = import_module("dflash_mlx.cli.loading")
stock_generate = import_module("mlx_lm.generate")  # the package has a function of that name
CONFIG: dict[str, Any] = {
    **tiny.config_of("qwen3"),
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_size": 128,
}
ROW = 2 * 16 * 2 * 2  # key-value heads × head size × keys and values × bytes


def sizes_of(config: dict[str, Any]) -> tuple[CacheSize, ...]:
    return outline(Checkpoint(Path("tiny"), config)).caches


def hybrid(layers: int, heads: int) -> dict[str, Any]:
    """The sizes of caches of a published target with Gated DeltaNet."""
    return {
        **tiny.config_of("qwen3_next"),
        "num_hidden_layers": layers,
        "num_attention_heads": 16,
        "head_dim": 256,
        "full_attention_interval": 4,
        "linear_num_value_heads": heads,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    }


def test_free_rows_behind_windows_are_counted():
    kinds = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
    config = {**CONFIG, "model_type": "llama", "layer_types": kinds, "sliding_window": 100}
    assert free_bytes(sizes_of(config)) == 3 * sizes.ROOM * ROW
    assert free_bytes(sizes_of(CONFIG)) == 0


@pytest.mark.parametrize("family", [*tiny.FAMILIES, *tiny.QUANTISED])
def test_caches_are_as_big_as_the_engine_makes_them(family, monkeypatch):
    """Against the arrays of a real cache and of a snapshot, for every family."""
    monkeypatch.setattr(sliding, "ROOM", 0)  # free rows are counted by themselves
    target = tiny.make_target(family)
    cache = target.make_cache()
    tokens = 256  # mlx-lm's caches grow by that much
    for count in (255, 1):
        logits, _ = target.forward(mx.array([[1] * count]), cache)
        mx.eval(logits, cache.state)
    cache.snapshot()
    real = sum(layer.nbytes for layer in cache.layers)
    found = sizes_of(tiny.config_of(family))
    assert cache_bytes(found, tokens, item_bytes=4, kv_bits=target.kv_bits) == real
    one = cache.snapshot_bytes
    assert (one == 0) is (snapshot_bytes(found, 4) == 0)
    assert one <= snapshot_bytes(found, 4) / SNAPSHOT_LIMITS.count <= 1.1 * one


def test_snapshots_are_counted():
    """Up to their limit, but one at least; windows count where layers have one."""
    found = sizes_of(hybrid(4, 32))
    one = 3 * (4 * 32 * 128 * 128 + 3 * 2 * (2 * 16 + 32) * 128)
    assert snapshot_bytes(found) == SNAPSHOT_LIMITS.count * one
    assert snapshot_bytes(100 * found) == SNAPSHOT_LIMITS.nbytes
    assert snapshot_bytes(1000 * found) == 1000 * one
    assert snapshot_bytes(sizes_of(CONFIG)) == 0


@pytest.fixture
def folders(tmp_path):
    for name, size in (("target", 1000), ("draft", 320)):
        folder = tmp_path / name
        folder.mkdir()
        kind = {} if name == "target" else {"hidden_size": 64}
        (folder / "config.json").write_text(json.dumps({**CONFIG, **kind}))
        (folder / "model-00001-of-00002.safetensors").write_bytes(b"x" * (size // 2))
        (folder / "model-00002-of-00002.safetensors").write_bytes(b"x" * (size // 2))
        (folder / "tokenizer.json").write_bytes(b"x" * 5000)
    return tmp_path / "target", tmp_path / "draft"


def test_need_of_folders(folders):
    target, draft = folders
    grown = cache_bytes(sizes_of(CONFIG), 100)
    assert tiny.memory_of(target, None, 100) == MemoryEstimate(1000, grown, 0)
    assert tiny.memory_of(target, draft, 100) == MemoryEstimate(1000, 2 * grown, 320)
    assert tiny.memory_of(target, draft, 100, draft_bits=4).draft == 90
    assert tiny.memory_of(target, draft, 100, draft_bits=8).draft == 170
    config = {**CONFIG, "model_type": "qwen3", "head_dim": 64}
    (target / "config.json").write_text(json.dumps(config))
    quantised = tiny.memory_of(target, draft, 100, kv_bits=8).caches
    less = cache_bytes(sizes_of(config), 100, kv_bits=8)
    assert quantised == grown + less  # the drafter's is not quantised
    (target / "config.json").write_text(json.dumps(CONFIG))
    assert tiny.memory_of(target, draft, 100).total == 1000 + 2 * grown + 320


def test_an_mtp_head_is_one_layer(tmp_path):
    """Alone in a folder whose config is the whole model's, or in the model that it comes from."""
    target = tiny.GOLDEN / "mtp_qwen35" / "target"
    loaded = dflash_mlx.load(target, MTP)
    assert isinstance(loaded.drafter, MTPDrafter)
    parameters: Any = tree_flatten(loaded.drafter.model.parameters())
    stored = sum(value.size for _, value in parameters) * 2
    config = json.loads((target / "config.json").read_text())
    inner = {**config.get("text_config", config)}
    (tmp_path / "config.json").write_text(
        json.dumps({**inner, "text_config": inner, "model_type": "qwen3_5_mtp"})
    )
    tensors = {name: value.astype(mx.bfloat16) for name, value in parameters}
    mx.save_safetensors(str(tmp_path / "model.safetensors"), tensors)
    alone = tiny.memory_of(target, None, 100)
    split = tiny.memory_of(target, tmp_path, 100)
    assert stored < split.draft < stored + 4096  # the header
    rows = 100 * loaded.drafter.row_bytes(2)
    assert split.caches - alone.caches == rows
    whole = tiny.memory_of(target, target, 100)
    assert whole.caches == split.caches
    assert 0 < whole.draft < 0.5 * whole.weights
    assert whole.weights + whole.draft == alone.weights  # its weights count once


def test_the_head_of_a_target_needs_room_for_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """In what is refused before loading, with the bytes of plain decoding as the limit."""
    target = tiny.GOLDEN / "mtp_qwen35" / "target"
    options, out = ModelOptions(model=str(target), draft=MTP), Output(quiet=True)
    head = dflash_mlx.load(target, MTP).drafter
    assert isinstance(head, MTPDrafter)
    item = 4 if on_cpu() else 2
    limit = tiny.memory_of(target, item_bytes=item).total + CONTEXT * head.row_bytes(item) - 1
    monkeypatch.setattr("dflash_mlx.models.memory.working_set", lambda: limit)
    loading.fetch_pair(replace(options, draft=None, no_draft=True), out)
    with pytest.raises(DFlashError, match="needs"):
        loading.fetch_pair(options, out)
    monkeypatch.setattr("dflash_mlx.models.memory.working_set", lambda: limit + 1)
    loading.fetch_pair(options, out)


def test_the_cpu_holds_16_bits_as_32(folders):
    """Weights that are quantised stay as they are."""
    target, draft = folders
    wide = tiny.memory_of(target, draft, 100, item_bytes=4)
    assert wide == MemoryEstimate(2000, 4 * cache_bytes(sizes_of(CONFIG), 100), 640)
    (target / "config.json").write_text(json.dumps({**CONFIG, "quantization": {"bits": 4}}))
    assert tiny.memory_of(target, draft, 100, item_bytes=4).weights == 1000


def test_need_of_an_entry():
    """Its weights, drafter and caches; with the bits that are asked for."""
    entry = find("mlx-community/Qwen3-8B-4bit")
    assert entry
    assert entry.target_bytes
    assert entry.draft_bytes
    rows = CONTEXT * entry.kv_bytes
    weights = entry.target_bytes + round(entry.draft_bytes * 8.5 / 16)
    assert entry.memory_bytes == weights + rows
    assert entry.memory(draft_bits=0) == entry.target_bytes + entry.draft_bytes + rows
    number = kv_number_bytes(8, KV_GROUPS[0], 2) / 2
    assert entry.memory(kv_bits=8) == weights + round(rows * number)


def test_check_fits():
    """Silent, then a warning with both numbers, then a refusal that names what fits."""
    assert check_fits(7 * GB, 10 * GB, "a/b") is None
    warning = check_fits(8 * GB + GB, 10 * GB, "a/b")
    assert warning
    assert "'a/b' needs 9.0 GB of the 10.0 GB" in warning
    with pytest.raises(DFlashError, match=r"'a/b' needs 40\.0 GB of the 10\.0 GB") as caught:
        check_fits(30 * GB + 9 * GB + GB, 10 * GB, "a/b")
    assert "-m mlx-community/Qwen3.5-9B-4bit" in caught.value.hint
    assert "--force" in caught.value.hint
    forced = check_fits(30 * GB + 9 * GB + GB, 10 * GB, "a/b", force=True)
    assert forced
    assert "'a/b' needs 40.0 GB of the 10.0 GB" in forced


def test_nothing_smaller_to_name():
    """On a small machine, or where a long context is what is too much."""
    with pytest.raises(DFlashError) as caught:
        check_fits(2 * GB, GB, "a/b")
    assert "bundled pair" in caught.value.hint


def a_mac(monkeypatch, gpu):
    """MLX with this GPU, where the CPU is the default device, as in tests on a Mac."""
    chip = {"device_name": "Apple M4", "architecture": "arm64"}
    monkeypatch.setattr(mx, "is_available", lambda _: True)
    monkeypatch.setattr(mx, "device_info", lambda device=mx.cpu: gpu if device == mx.gpu else chip)


def test_working_set(monkeypatch):
    """Metal's own limit where there is one, else a share of the memory."""
    if not mx.metal.is_available():
        assert GB < memory.working_set() < 10**14
    a_mac(monkeypatch, {"max_recommended_working_set_size": 12 * GB, "memory_size": 16 * GB})
    assert memory.working_set() == 12 * GB
    a_mac(monkeypatch, {})
    sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}
    monkeypatch.setattr(memory, "os", SimpleNamespace(sysconf=sizes.get))
    assert memory.working_set() == 3_072_000


@pytest.mark.parametrize("mode", ["dflash", "baseline", "ddtree", "auto"])
def test_mlx_lm_prints_no_warning(mode, monkeypatch):
    """Its `wired_limit` would print into the terminal for a large model: no answer goes there."""
    entered = []
    honest = stock_generate.wired_limit

    def trap(*args, **options):
        entered.append(1)
        return honest(*args, **options)

    monkeypatch.setattr(stock_generate, "wired_limit", trap)
    pair = tiny.golden_pair("qwen3_full")
    api.generate(pair, [5, 6, 7], max_tokens=8, mode=mode)
    assert not entered
    stock = stock_generate.stream_generate(
        pair.target.model, pair.tokenizer, [5, 6, 7], max_tokens=2
    )
    mlx_thread().call(list, stock)
    assert entered


# What caches may use of this machine


def pair_in_memory(monkeypatch: pytest.MonkeyPatch, free: int) -> Engine:
    target = tiny.make_target("qwen3")
    engine = Engine(target, tiny.random_drafter(target))
    monkeypatch.setattr(target, "context_length", 40_960)
    engine.fit_context(free)
    return engine


def test_memory_limits_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the tokens whose caches fit, in the target and the drafter; a short chat always may be."""
    roomy = pair_in_memory(monkeypatch, 1 << 50)
    assert roomy.context_length == 40_960
    for tokens in (2_000, 30_000):
        free = roomy.sequence_bytes(tokens)
        assert pair_in_memory(monkeypatch, free).context_length == tokens
        assert pair_in_memory(monkeypatch, free - 1).context_length == tokens - 1
    assert pair_in_memory(monkeypatch, 0).context_length == LEAST_CONTEXT
    sequence = Sequence(roomy.target, *roomy.drafters)
    roomy.fit_context(roomy.sequence_bytes(1_500))
    with pytest.raises(PromptTooLong, match=r"1,600 tokens, this machine's memory holds 1,500"):
        roomy.begin(sequence, Request(prompt=(1,) * 1_600, mode="baseline"))
    roomy.begin(sequence, Request(prompt=(1,) * 1_400, mode="baseline", max_tokens=9_999))
    assert sequence.answer.remaining == 100


def test_the_bytes_of_a_sequence_are_those_of_its_caches() -> None:
    """No less than the arrays hold, in families with full and recurrent layers."""
    for family in ("qwen3", "qwen3_5", "lfm2"):
        target = tiny.make_target(family)
        drafter = tiny.random_drafter(target)
        engine = Engine(target, drafter)
        sequence = Sequence(target, drafter)
        sequence.read([n % 50 for n in range(512)])
        rows = tree_flatten([sequence.state])
        held = sum(array.nbytes for _, array in rows if isinstance(array, mx.array))
        assert 0.5 * held < engine.sequence_bytes(512) - engine.sequence_bytes(0), family
        assert held <= engine.sequence_bytes(512), family


def test_pressure_lowers_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an answer, while macOS says that memory is short; then it rises again."""
    engine = pair_in_memory(monkeypatch, 0)
    engine.fit_context(engine.sequence_bytes(8_000))
    engine.prefix_cache.limit = 1 << 30
    sequence = Sequence(engine.target, *engine.drafters)
    lengths = []
    for share in (1.0, 0.75, 0.5, 1.0):
        monkeypatch.setattr(engine_module, "share_under_pressure", lambda share=share: share)
        engine.begin(sequence, Request(prompt=(3,) * 50, mode="baseline", max_tokens=4))
        list(tiny.rounds(engine, sequence))
        lengths.append(engine.context_length)
        assert bool(engine.prefix_cache.nbytes) == (share == 1.0)
    assert lengths == [8_000, 6_000, 4_000, 8_000]


def test_macos_tells_its_pressure(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a number of the kernel; other systems have none."""
    assert memory.share_under_pressure() == 1.0

    def sysctl(name: bytes, value: Any, *_: Any) -> int:
        assert name == b"kern.memorystatus_vm_pressure_level"
        value._obj.value = level
        return 0

    monkeypatch.setattr(memory.sys, "platform", "darwin")
    library = SimpleNamespace(sysctlbyname=sysctl)
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: library)
    for level, share in ((1, 1.0), (2, 0.75), (4, 0.5)):
        assert memory.share_under_pressure() == share, level
    library.sysctlbyname = lambda *_: -1
    assert memory.share_under_pressure() == 1.0


@pytest.mark.parametrize(
    ("physical", "working", "needed", "wired"),
    [
        (16, 11.4, 6, 7),  # what is needed, and a gigabyte
        (16, 11.4, 12, 10.4),  # 35 % stay free
        (24, 18, 30, 15.6),
        (128, 96, 200, 83.2),
        (16, 8, 30, 8),  # no more than Metal allows
    ],
)
def test_memory_is_wired_while_answers_run(
    physical: float, working: float, needed: float, wired: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And given back when none does, so that an idle server holds nothing."""
    limits: list[float] = []
    monkeypatch.setattr(memory, "by_metal", lambda: True)
    monkeypatch.setattr(mx, "set_wired_limit", lambda nbytes: limits.append(nbytes / GB))
    monkeypatch.setattr(memory, "physical_memory", lambda: int(physical * GB))
    monkeypatch.setattr(memory, "working_set", lambda: int(working * GB))
    target = tiny.make_target("qwen3")
    engine = Engine(target)
    monkeypatch.setattr(mx, "get_active_memory", lambda: int(needed * GB))
    sequences = [Sequence(target), Sequence(target)]
    for sequence in sequences:
        engine.begin(sequence, Request(prompt=(1, 2, 3), mode="baseline", max_tokens=2))
    assert limits == pytest.approx([wired], rel=1e-3)
    for sequence in sequences:
        list(tiny.rounds(engine, sequence))
    assert limits[1:] == [0]


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        ({"head_dim": 128, "hidden_size": 4096, "num_attention_heads": 32}, [2048, 2048, 2048]),
        ({"hidden_size": 2048, "num_attention_heads": 32}, [2048, 2048, 2048]),
        ({"head_dim": 256, "hidden_size": 4096, "num_attention_heads": 16}, [2048, 512, 256]),
        ({"head_dim": 256, "hidden_size": 4096, "num_attention_heads": 32}, [1024, 256, 256]),
        ({"model_type": "deepseek_v3", **tiny.LATENT, "num_attention_heads": 32}, [1024, 512, 512]),
    ],
)
def test_prompts_are_read_in_pieces_whose_scores_fit(
    config: dict[str, Any], tokens: list[int]
) -> None:
    """Pieces are smaller where MLX writes the scores of attention to memory."""
    config = {**tiny.config_of("llama"), "head_dim": None, **config}
    target = outline(Checkpoint(Path("tiny"), config))
    chunks = PromptChunks(target)
    chunks.sizes = dict.fromkeys(range(9), PREFILL_STEP_SIZE)
    assert [chunks.after([5, offset]) for offset in (0, 14_000, 100_000)] == tokens


def test_a_prompt_is_read_in_pieces_of_about_a_second() -> None:
    """The first whole piece tells their size; it stays, whatever the clock says later."""
    target = tiny.make_target("llama")
    for seconds, tokens in ((0.04, 2048), (0.3, 512), (0.6, 256), (9.0, 256)):
        chunks = PromptChunks(target)
        chunks.update(0, 100, 0.001)
        assert chunks.after([0]) == 256
        chunks.update(0, 256, seconds)
        assert chunks.after([0]) == tokens
        chunks.update(256, tokens, 0.0001)
        chunks.update(256, tokens, 100.0)
        assert chunks.after([0]) == tokens


def test_later_pieces_are_smaller_where_attention_takes_long() -> None:
    chunks = PromptChunks(tiny.make_target("llama"))
    chunks.update(0, 256, 0.3)
    assert [chunks.after([n]) for n in (0, 2_000, 9_000)] == [512, 512, 512]
    chunks.update(2_048, 512, 2.0)
    assert [chunks.after([n]) for n in (0, 2_000, 2_048, 9_000)] == [512, 512, 128, 128]
    chunks.update(8_192, 128, 0.001)
    assert [chunks.after([n]) for n in (0, 2_048, 9_000)] == [512, 128, 128]


def test_a_mixture_is_never_read_in_small_pieces() -> None:
    chunks = PromptChunks(tiny.make_target("qwen3_moe"))
    for offset in (0, 2_048):
        chunks.update(offset, 512, 60.0)
        assert chunks.after([offset]) == 512


@pytest.mark.parametrize("what", ["set_cache_limit", "set_wired_limit"])
def test_what_a_limit_raises_reaches_the_caller(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of MLX does not die of it, which would leave its callers waiting for ever."""

    def refuse(nbytes: int) -> None:
        raise ValueError("[metal::set_wired_limit] Setting a wired limit larger than the maximum")

    monkeypatch.setattr(memory, "by_metal", lambda: True)
    for name in ("set_cache_limit", "set_wired_limit"):
        monkeypatch.setattr(mx, name, refuse if name == what else lambda nbytes: None)
    with pytest.raises(ValueError, match="wired limit"):
        list(Session(dflash_mlx.load()).stream("What is 12 plus 7?", max_tokens=4))
    monkeypatch.undo()
    assert mlx_thread().call(lambda: 7) == 7
