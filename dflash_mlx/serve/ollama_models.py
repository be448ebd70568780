"""Ollama's lists of the server's models, and what Ollama has beside its answers.

https://docs.ollama.com/api
"""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dflash_mlx import __version__
from dflash_mlx.chat.template import EFFORT_VARIABLES, THINK_VARIABLES
from dflash_mlx.files.checkpoint import Checkpoint

from .body import read_name
from .models import Models, Served
from .ollama_chat import tagged, time_text

VERSION = "0.24.0"  # of Ollama, whose API this is; apps ask for a lowest one
FOREVER = "9999-12-31T23:59:59Z"
THINKING_WORDS = (*THINK_VARIABLES, *EFFORT_VARIABLES, "<think>")


@dataclass(frozen=True, slots=True)
class Listed:
    """A model in a list. fields: of `Models.describe`. checkpoint: None before its download."""

    name: str
    fields: dict[str, Any]
    checkpoint: Checkpoint | None
    served: Served | None = None

    @property
    def family(self) -> str:
        return "" if self.checkpoint is None else str(self.checkpoint.config.get("model_type", ""))

    @property
    def template(self) -> str:
        return "" if self.checkpoint is None else self.checkpoint.chat_template

    @property
    def details(self) -> dict[str, Any]:
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
    def abilities(self) -> dict[str, Any]:
        """What the model can do, as far as its template shows it, and when it was changed."""
        tools = ["tools"] if "tools" in self.template else []
        thinks = any(word in self.template for word in THINKING_WORDS)
        file = None if self.checkpoint is None else self.checkpoint.path / "config.json"
        changed_at = file.stat().st_mtime if file is not None and file.exists() else 0.0
        return {
            "capabilities": ["completion", *tools, *(["thinking"] if thinks else [])],
            "modified_at": time_text(changed_at),
        }

    @property
    def expires_at(self) -> str:
        assert self.served is not None
        if self.served.keep_alive == inf:
            return FOREVER
        left = self.served.unloads_in
        return time_text(time.time() + (self.served.keep_alive if left is None else left))


class ModelLists:
    def __init__(self, models: Models):
        self._models = models

    def routes(self) -> list[Route]:
        return [
            Route("/api/tags", self.tags),
            Route("/api/ps", self.running),
            Route("/api/show", self.show, methods=["POST"]),
            Route("/api/version", self.version),
        ]

    async def tags(self, request: Request) -> Response:
        """All models that are on this machine, also by their aliases."""
        listed = self._listed(self._models.settings.names)
        return JSONResponse({"models": [model.identity | model.abilities for model in listed]})

    async def running(self, request: Request) -> Response:
        entries = [
            {
                **model.identity,
                "size_vram": model.fields["size"],  # GPU and CPU share the memory
                "context_length": model.fields["max_model_len"],
                "expires_at": model.expires_at,
            }
            for model in self._listed(self._models.settings.names[:1])
            if model.served is not None
        ]
        return JSONResponse({"models": entries})

    async def show(self, request: Request) -> Response:
        model = self._found(await read_name(request, self._models.settings.limits))
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
                **model.abilities,
            }
        )

    async def version(self, request: Request) -> Response:
        return JSONResponse({"version": VERSION, "dflash": __version__})

    def _listed(self, names: Sequence[str]) -> list[Listed]:
        """All models that are on this machine, that of the settings first, by these names."""
        offered = [offer.name for offer in self._models.offers() if offer.downloaded]
        return [replace(self._found(name), name=name) for name in dict.fromkeys((*names, *offered))]

    def _found(self, name: str) -> Listed:
        """One model. Raises Problem 404 as `Models.find`."""
        whole = self._models.find(name)
        fields = self._models.describe(whole)
        if served := self._models.named(whole):
            return Listed(whole, fields, served.pair.target.checkpoint, served)
        offer = next(offer for offer in self._models.offers() if offer.name == whole)
        checkpoint = None if offer.folder is None else Checkpoint.read(offer.folder)
        return Listed(whole, fields, checkpoint)
