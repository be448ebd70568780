"""`owner/model#mtp`: of a model on the Hub only the shards with its MTP head are downloaded."""

import json
import shutil
from pathlib import Path

import pytest
from mtp_heads import GOLDEN

import dflash_mlx
from dflash_mlx.errors import DFlashError
from dflash_mlx.hub import cache as hub_cache
from dflash_mlx.hub import download
from dflash_mlx.hub.cache import WEIGHT_INDEX

MODEL = "owner/model"
HEAD = "owner/model#mtp"
BODY_SHARD, HEAD_SHARD = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def server(hub):
    """A Hub with the golden target, whose second shard is its head."""
    hub.repos[MODEL] = {path.name: path.read_bytes() for path in (GOLDEN / "target").iterdir()}
    return hub


@pytest.fixture
def conversion(tmp_path):
    """The golden target as mlx-lm converts it: without the head."""
    folder = Path(shutil.copytree(GOLDEN / "target", tmp_path / "conversion"))
    (folder / HEAD_SHARD).unlink()
    (folder / WEIGHT_INDEX).unlink()
    return folder


def asked(server):
    return {request.name for request in server.asked}


def test_only_the_shard_with_the_head_is_downloaded(server):
    plan = download.plan(HEAD)
    names = {file.name for file in plan.files}
    assert HEAD_SHARD in names
    assert BODY_SHARD not in names
    download.download(HEAD)
    assert BODY_SHARD not in asked(server)
    assert download.plan(HEAD).cached
    assert hub_cache.cached_state(HEAD) == "yes"
    assert hub_cache.cached_state(MODEL) == "partly"


def test_a_conversion_drafts_with_the_head_of_the_original(server, conversion):
    """The tokens are those of the whole model with its own head, drafts are accepted alike."""
    prompt = list(range(2, 30))
    whole = dflash_mlx.load(GOLDEN / "target", "mtp", cache_ram=0)
    wanted = dflash_mlx.generate(whole, prompt, max_tokens=48)
    pair = dflash_mlx.load(conversion, HEAD, cache_ram=0)
    found = dflash_mlx.generate(pair, prompt, max_tokens=48)
    assert found.tokens == wanted.tokens
    assert found.stats.committed == wanted.stats.committed
    assert pair.draft_name == HEAD
    assert BODY_SHARD not in asked(server)
    before = server.requests
    dflash_mlx.load(conversion, HEAD, cache_ram=0)
    assert server.requests == before


def test_the_rest_comes_when_the_model_itself_is_wanted(server):
    folder = download.download(HEAD)
    before = len(server.asked)
    assert download.download(MODEL) == folder
    assert HEAD_SHARD not in {request.name for request in server.asked[before:]}
    assert hub_cache.cached_state(MODEL) == hub_cache.cached_state(HEAD) == "yes"


def test_a_head_in_a_file_that_the_index_does_not_name(server, conversion):
    files = server.repos[MODEL]
    index = json.loads(files[WEIGHT_INDEX])
    body = {name: file for name, file in index["weight_map"].items() if file == BODY_SHARD}
    files[WEIGHT_INDEX] = json.dumps({"weight_map": body}).encode()
    files["mtp.safetensors"] = files.pop(HEAD_SHARD)
    assert dflash_mlx.load(conversion, HEAD, cache_ram=0).draft_name == HEAD
    assert BODY_SHARD not in asked(server)


def test_a_model_without_a_head_is_refused(server, conversion, tmp_path):
    files = server.repos[MODEL]
    index = json.loads(files[WEIGHT_INDEX])
    body = {name: file for name, file in index["weight_map"].items() if file == BODY_SHARD}
    files[WEIGHT_INDEX] = json.dumps({"weight_map": body}).encode()
    del files[HEAD_SHARD]
    with pytest.raises(DFlashError, match="'owner/model' has no MTP head"):
        dflash_mlx.load(conversion, HEAD)
    download.download(MODEL)
    with pytest.raises(DFlashError, match="no MTP head"):
        dflash_mlx.load(conversion, HEAD)


def test_a_conversion_without_a_head_says_how_to_get_one(conversion):
    with pytest.raises(DFlashError, match="no MTP head") as caught:
        dflash_mlx.load(conversion, "mtp")
    assert "#mtp" in caught.value.hint
