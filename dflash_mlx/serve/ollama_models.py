"""Ollama's lists of the server's models, and what Ollama has beside its answers.

https://docs.ollama.com/api
"""

import hashlib
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dflash_mlx import __version__
from dflash_mlx.chat.template import EFFORT_VARIABLES, THINK_VARIABLES
from dflash_mlx.files.checkpoint import Checkpoint

from .body import read_json
from .models import Models
from .ollama_chat import tagged, time_text
from .protocol import Problem

VERSION = "0.24.0"  # of Ollama, whose API this is; apps ask for a lowest one
FOREVER = "9999-12-31T23:59:59Z"
THINKING_WORDS = (*THINK_VARIABLES, *EFFORT_VARIABLES, "<think>")


@dataclass(frozen=True, slots=True)
class Listed:
    """A model in a list. fields: of `Models.describe`. checkpoint: None before its download."""

    name: str
    fields: dict[str, Any]
    checkpoint: Checkpoint | None

    @property
    def family(self) -> str:
        return "" if self.checkpoint is None else str(self.checkpoint.config.get("model_type", ""))

    @property
    def details(self) -> dict[str, Any]:
        """Ollama's object `details`."""
        config = {} if self.checkpoint is None else self.checkpoint.config
        bits = (config.get("quantization") or {}).get("bits")
        dtype = config.get("dtype") or config.get("torch_dtype") or ""
        return {
            "parent_model": "",
            "format": "safetensors",
            "family": self.family,
            "families": [self.family],
            "quantization_level": f"{bits}bit" if bits else str(dtype),
        }

    @property
    def identity(self) -> dict[str, Any]:
        """The fields that an entry begins with; the digest is that of the name."""
        return {
            "name": tagged(self.name),
            "model": tagged(self.name),
            "size": self.fields["size"],
            "digest": hashlib.sha256(self.name.encode()).hexdigest(),
            "details": self.details,
        }

    @property
    def modified_at(self) -> str:
        """When config.json was written; 1970 before a download."""
        file = None if self.checkpoint is None else self.checkpoint.path / "config.json"
        return time_text(file.stat().st_mtime if file is not None and file.exists() else 0.0)

    @property
    def template(self) -> str:
        return "" if self.checkpoint is None else self.checkpoint.chat_template

    @property
    def capabilities(self) -> list[str]:
        """What the model can do, by Ollama's names, as far as its template's text shows it."""
        template = self.template
        tools = ["tools"] if "tools" in template else []
        thinks = any(word in template for word in THINKING_WORDS)
        return ["completion", *tools, *(["thinking"] if thinks else [])]


class ModelLists:
    """The endpoints of these lists. `endpoints` has each path, its method and its function."""

    def __init__(self, models: Models):
        self._models = models

    def endpoints(self) -> Iterator[tuple[str, str, Callable[[Request], Awaitable[Response]]]]:
        yield "/api/tags", "GET", self.tags
        yield "/api/ps", "GET", self.running
        yield "/api/show", "POST", self.show
        yield "/api/version", "GET", self.version

    async def tags(self, request: Request) -> Response:
        """All models that are on this machine, also by their aliases."""
        entries = [
            {
                **model.identity,
                "modified_at": model.modified_at,
                "capabilities": model.capabilities,
            }
            for model in self._listed(aliases=True)
        ]
        return JSONResponse({"models": entries})

    async def running(self, request: Request) -> Response:
        """The loaded models, with the time until which they stay."""
        entries = []
        for model in self._listed():
            expires_at = self._expires_at(model.name)
            if model.fields["state"] != "loaded" or expires_at is None:
                continue
            entries.append(
                {
                    **model.identity,
                    "size_vram": model.fields["size"],  # GPU and CPU share the memory
                    "context_length": model.fields["max_model_len"],
                    "expires_at": expires_at,
                }
            )
        return JSONResponse({"models": entries})

    def _expires_at(self, name: str) -> str | None:
        """When a model will be unloaded if no request comes; None if it is not loaded."""
        served = next((one for one in self._models.loaded if one.name == name), None)
        if served is None:
            return None
        seconds = self._models.keep_alive_of(served)
        if seconds == inf:
            return FOREVER
        left = served.unloads_in
        return time_text(time.time() + (seconds if left is None else left))

    async def show(self, request: Request) -> Response:
        """One model: its size, context, template and abilities."""
        body = read_json(await request.body())
        name = (body.get("model") or body.get("name")) if isinstance(body, dict) else None
        if not isinstance(name, str):
            raise Problem(400, "model must be a name.", param="model")
        model = self._found(name)
        context = model.fields["max_model_len"]
        info: dict[str, Any] = {
            "general.architecture": model.family,
            "general.basename": model.name.rpartition("/")[2],
        }
        if context is not None:
            info[f"{model.family}.context_length"] = context
        return JSONResponse(
            {
                "modelfile": "",
                "parameters": "" if context is None else f"num_ctx {context}",
                "template": model.template,
                "details": model.details,
                "model_info": info,
                "capabilities": model.capabilities,
                "modified_at": model.modified_at,
            }
        )

    async def version(self, request: Request) -> Response:
        return JSONResponse({"version": VERSION, "dflash": __version__})

    def _listed(self, *, aliases: bool = False) -> list[Listed]:
        """All models that are on this machine, that of the settings first; `aliases`: by each."""
        known = self._models.settings.names
        names = list(known if aliases else known[:1])
        names += [offer.name for offer in self._models.offers() if offer.downloaded]
        return [replace(self._found(name), name=name) for name in dict.fromkeys(names)]

    def _found(self, name: str) -> Listed:
        """One model. Raises Problem 404 as `Models.find`."""
        whole = self._models.find(name)
        fields = self._models.describe(whole)
        if fields["state"] == "loaded":
            return Listed(whole, fields, self._models.named(whole).pair.target.checkpoint)
        offer = next(offer for offer in self._models.offers() if offer.name == whole)
        checkpoint = None if offer.folder is None else Checkpoint.read(offer.folder)
        return Listed(whole, fields, checkpoint)
