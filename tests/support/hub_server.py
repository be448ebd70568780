"""A local Hub server with the endpoints that the huggingface_hub client uses, and its faults.

It has no state except the fields that a test sets and the list of requests.
"""

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

GATED = (401, "GatedRepo")
NOT_FOUND = (404, "RepoNotFound")


def is_large(name):
    """Whether the Hub would keep a file in its large storage."""
    return name.endswith(".safetensors")


def blob_of(name, data):
    """The name of a file's blob in the Hub's cache, which is also its ETag."""
    if is_large(name):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Asked:
    name: str
    start: int
    has_range: bool


@dataclass
class Hub:
    """The repositories to serve, the faults to show, and the requests so far."""

    repos: dict = field(default_factory=dict)  # repo -> {file: bytes}
    refuse: dict = field(default_factory=dict)  # repo -> (status, error code) for its files
    refuse_info: dict = field(default_factory=dict)  # repo -> the same for the repo itself
    statuses: list = field(default_factory=list)  # (status, headers) of the next files, in order
    cuts: list = field(default_factory=list)  # (file, bytes): end its next response early
    piece: int = 1 << 16
    delay: float = 0.0  # seconds before each piece
    held_above: int | None = None  # bytes of a response, above which none of them are sent
    ranges: bool = True  # whether Range requests are supported
    damage: set = field(default_factory=set)  # files that are served with wrong bytes
    asked: list = field(default_factory=list)
    requests: int = 0
    events: int = 0  # number of requests and of pieces sent
    endpoint: str = ""

    def commit(self, repo):
        parts = [name.encode() + data for name, data in sorted(self.repos[repo].items())]
        return hashlib.sha1(b"".join(parts)).hexdigest()

    def size(self, repo):
        return sum(len(data) for data in self.repos[repo].values())

    def starts(self, name):
        return [asked.start for asked in self.asked if asked.name == name]


def fetched(hub):
    """The names of the files that were asked for, but for the config.json that is looked at."""
    return [asked.name for asked in hub.asked if asked.name != "config.json"]


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer(with_body=True)

    def do_HEAD(self):
        self.answer(with_body=False)

    def log_message(self, format, *args):
        """Say nothing."""

    def answer(self, *, with_body):
        self.hub.requests += 1
        self.hub.events += 1
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        repo = "/".join(parts[2:4] if api else parts[:2])
        if api:
            self.info(repo, tree="tree" in parts[4:])
        elif repo in self.hub.repos and parts[2] == "resolve":
            self.file(repo, "/".join(parts[4:]), with_body)
        else:
            self.fail(*NOT_FOUND)

    def info(self, repo, *, tree):
        if repo in self.hub.refuse_info:
            return self.fail(*self.hub.refuse_info[repo])
        if repo not in self.hub.repos:
            return self.fail(*NOT_FOUND)
        files = []
        for name, data in self.hub.repos[repo].items():
            git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            item: dict = {"size": len(data)}
            item |= {"type": "file", "path": name, "oid": git} if tree else {"blobId": git}
            if is_large(name):
                sha = blob_of(name, data)
                item["lfs"] = {"oid": sha, "sha256": sha, "size": len(data), "pointerSize": 99}
            files.append(item if tree else {"rfilename": name, **item})
        known = {"_id": "0", "id": repo, "modelId": repo, "sha": self.hub.commit(repo)}
        self.say(files if tree else {**known, "private": False, "tags": [], "siblings": files})

    def file(self, repo, name, with_body):
        if repo in self.hub.refuse:
            return self.fail(*self.hub.refuse[repo])
        if name not in self.hub.repos[repo]:
            return self.fail(404, "EntryNotFound")
        data = self.hub.repos[repo][name]
        asked = self.headers.get("Range") if self.hub.ranges else None
        first, _, last = (asked or "bytes=0-").removeprefix("bytes=").partition("-")
        start = int(first)
        end = min(int(last) + 1, len(data)) if last else len(data)
        headers = {
            "X-Repo-Commit": self.hub.commit(repo),
            "ETag": f'"{blob_of(name, data)}"',
            "X-Linked-Size": str(len(data)),
            "Accept-Ranges": "bytes",
            "Content-Length": str(end - start),
        }
        if not with_body:
            return self.head(200, headers)
        wants = self.headers.get("Range") is not None
        self.hub.asked.append(Asked(name, start, wants))
        if self.hub.statuses:
            status, more = self.hub.statuses.pop(0)
            return self.fail(status, "", more)
        if asked:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        self.head(206 if asked else 200, headers)
        if name in self.hub.damage:
            data = bytes(byte ^ 1 for byte in data)
        if self.hub.held_above is None or end - start <= self.hub.held_above:
            self.send(name, data[start:end])

    def send(self, name, data):
        """Send data in pieces, up to the end or the next cut."""
        cut = next((cut for cut in self.hub.cuts if cut[0] == name), None)
        if cut:
            self.hub.cuts.remove(cut)
            data = data[: cut[1]]
        try:
            for at in range(0, len(data), self.hub.piece):
                time.sleep(self.hub.delay)
                self.wfile.write(data[at : at + self.hub.piece])
                self.hub.events += 1
        except OSError:  # the client is gone
            self.close_connection = True
        if cut:
            self.close_connection = True

    def say(self, what):
        body = json.dumps(what).encode()
        self.head(200, {"Content-Type": "application/json", "Content-Length": str(len(body))})
        self.wfile.write(body)

    def fail(self, status, code="", headers=None):
        named = {"X-Error-Code": code} if code else {}
        self.head(status, {**named, "Content-Length": "0", **(headers or {})})

    def head(self, status, headers):
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request, client_address):
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serve():
    hub = Hub()
    server = Server(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def point_client(patch, endpoint, cache):
    """Make this process's Hub client use another server and cache."""
    from huggingface_hub import constants

    patch.setattr(constants, "ENDPOINT", endpoint)
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    patch.setattr(constants, "HF_HUB_CACHE", str(cache))
    patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
    patch.setattr("dflash_mlx.hub.download.RETRY_DELAYS", (0.01, 0.01))


@contextmanager
def hold_lock(repo, blob):
    """As another program that downloads this blob."""
    from dflash_mlx.hub.cache import cache_folder, repo_folder

    path = cache_folder() / ".locks" / repo_folder(repo).name / f"{blob}.lock"
    path.parent.mkdir(parents=True)
    with path.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        yield other


def environment(endpoint, cache, **more):
    """Environment variables with the settings of `point_client`, for another process."""
    own = {"HF_ENDPOINT": endpoint, "HF_HUB_CACHE": str(cache), "HF_HUB_DISABLE_XET": "1"}
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    return {**kept, **own, **more}


def start(program, *arguments, env, **options):
    """Start a Python process that runs `program`; its streams are text pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env=env,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parent,
        **options,
    )


def fetch(name, on_download=None):
    """The folder of a model, downloaded if need be."""
    from dflash_mlx.hub.resolve import open_checkpoint  # after OpenBLAS

    return open_checkpoint(name, on_download=on_download).path


def tiny_repo(size=20_000, parts=1):
    """The files of a model: valid safetensors files with random bytes, and others."""
    config = {
        "model_type": "qwen3",
        "hidden_size": 8,
        "intermediate_size": 8,
        "vocab_size": 9,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e4,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
    }
    files = {
        "README.md": b"not wanted",
        "original/model.safetensors": b"not wanted",
        "config.json": json.dumps(config).encode(),
        "tokenizer.json": b'{"version": "1.0"}' + b" " * (582 - len(json.dumps(config))),
        "tokenizer_config.json": b"{}",
        "chat_template.jinja": b"{{ messages }}",
    }
    names = ["model.safetensors"]
    if parts > 1:
        names = [f"model-{i + 1:05}-of-{parts:05}.safetensors" for i in range(parts)]
        index = {"weight_map": {f"w{i}": name for i, name in enumerate(names)}}
        files["model.safetensors.index.json"] = json.dumps(index).encode()
    for number, name in enumerate(names):
        files[name] = container(f"w{number}", size)
    return files


def container(tensor, size):
    head = {tensor: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    text = json.dumps(head).encode()
    seeds = (f"{tensor}{number}".encode() for number in range(size // 32 + 1))
    noise = b"".join(hashlib.sha256(seed).digest() for seed in seeds)
    return len(text).to_bytes(8, "little") + text + noise[:size]
