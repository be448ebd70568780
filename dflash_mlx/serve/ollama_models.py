"""Ollama's lists of the server's models, and what Ollama has beside its answers.

https://docs.ollama.com/api
"""

import hashlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dflash_mlx import __version__
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.pair import Pair

from .body import read_json
from .model_card import ModelCard, read_card
from .models import Models
from .ollama_chat import tagged, time_text
from .protocol import Problem

VERSION = "0.24.0"  # of Ollama, whose API this is; apps ask for a lowest one
FOREVER = "9999-12-31T23:59:59Z"
PULL = "a request downloads nothing by itself: run 'dflash models pull' on the server's machine"
FILES = "the models are folders on the server's machine, which no request changes"
ACCOUNT = "there is no account here"
SEARCH = "nothing is searched here"
REFUSED: Mapping[str, str] = {
    "/api/pull": PULL,
    "/api/push": "nothing is uploaded",
    "/api/create": FILES,
    "/api/copy": FILES,
    "/api/delete": FILES,
    "/api/blobs/{digest}": FILES,
    "/api/me": ACCOUNT,
    "/api/signout": ACCOUNT,
    "/api/web_search": SEARCH,
    "/api/web_fetch": SEARCH,
    "/api/experimental/web_search": SEARCH,
    "/api/experimental/web_fetch": SEARCH,
}
EVERY_METHOD = ("GET", "POST", "PUT", "DELETE")


@dataclass(frozen=True, slots=True)
class Listed:
    """A model in a list. fields: of `Models.describe`."""

    name: str
    card: ModelCard
    fields: dict[str, Any]

    @property
    def details(self) -> dict[str, Any]:
        """Ollama's object `details`."""
        return {
            "parent_model": "",
            "format": "safetensors",
            "family": self.card.family,
            "families": [self.card.family],
            "parameter_size": self.card.size_text,
            "quantization_level": self.card.quantisation,
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


class ModelLists:
    """The endpoints of these lists. `endpoints` has each path, its methods and its function."""

    def __init__(self, models: Models):
        self._models = models
        self._cards: dict[tuple[Path, bool], ModelCard] = {}  # by folder, and whether it is loaded

    def endpoints(
        self,
    ) -> Iterator[tuple[str, tuple[str, ...], Callable[[Request], Awaitable[Response]]]]:
        yield "/api/tags", ("GET",), self.tags
        yield "/api/ps", ("GET",), self.running
        yield "/api/show", ("POST",), self.show
        yield "/api/version", ("GET",), self.version
        for path in REFUSED:
            yield path, EVERY_METHOD, self.refuse

    async def tags(self, request: Request) -> Response:
        """All models that are on this machine, also by their aliases."""
        entries = [
            {
                **model.identity,
                "modified_at": time_text(model.card.modified),
                "capabilities": list(model.card.abilities),
            }
            for model in await self._listed(aliases=True)
        ]
        return JSONResponse({"models": entries})

    async def running(self, request: Request) -> Response:
        """The loaded models, with the time until which they stay."""
        entries = []
        for model in await self._listed():
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
        """One model: template, abilities, and entries of its config."""
        body = read_json(await request.body())
        name = (body.get("model") or body.get("name")) if isinstance(body, dict) else None
        if not isinstance(name, str):
            raise Problem(400, "model must be a name.", param="model")
        model = await self._found(name)
        card = model.card
        context = model.fields["max_model_len"]
        info: dict[str, Any] = {
            "general.architecture": card.family,
            "general.basename": model.name.rpartition("/")[2],
            "general.parameter_count": card.parameters,
            **dict(card.info),
        }
        if context is not None:
            info[f"{card.family}.context_length"] = context
        return JSONResponse(
            {
                "modelfile": "",
                "parameters": "" if context is None else f"num_ctx {context}",
                "template": card.template,
                "details": model.details,
                "model_info": info,
                "capabilities": list(card.abilities),
                "modified_at": time_text(card.modified),
            }
        )

    async def version(self, request: Request) -> Response:
        """The version of Ollama whose API this is, and the server's own."""
        return JSONResponse({"version": VERSION, "dflash": __version__})

    async def refuse(self, request: Request) -> Response:
        """Refuse what an Ollama does with files and accounts."""
        path = request.scope["route"].path
        name = path.partition("/{")[0]
        raise Problem(501, f"{name} is not supported: {REFUSED[path]}.")

    async def _listed(self, *, aliases: bool = False) -> list[Listed]:
        """All models that are on this machine, that of the settings first; `aliases`: by each."""
        known = self._models.settings.names
        names = list(known if aliases else known[:1])
        names += [offer.name for offer in self._models.offers() if offer.downloaded]
        return [replace(await self._found(name), name=name) for name in dict.fromkeys(names)]

    async def _found(self, name: str) -> Listed:
        """One model. Raises Problem 404 as `Models.find`."""
        whole = self._models.find(name)
        fields = self._models.describe(whole)
        if fields["state"] == "loaded":
            pair = self._models.named(whole).pair
            checkpoint = pair.target.checkpoint
            return Listed(whole, await self._card(checkpoint.path, checkpoint, pair), fields)
        offer = next(offer for offer in self._models.offers() if offer.name == whole)
        if offer.folder is None:
            return Listed(whole, ModelCard(), fields)
        return Listed(whole, await self._card(offer.folder), fields)

    async def _card(
        self,
        folder: Path,
        checkpoint: Checkpoint | None = None,
        pair: Pair | None = None,
    ) -> ModelCard:
        """A model's card, which is read once, beside the event loop."""
        loaded = pair is not None
        if (folder, loaded) not in self._cards:

            def read() -> ModelCard:
                return read_card(checkpoint or Checkpoint.read(folder), pair)

            self._cards[folder, loaded] = await self._models.prompt_threads.run(read)
        return self._cards[folder, loaded]
