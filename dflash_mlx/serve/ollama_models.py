"""Ollama's lists of the server's models, and what Ollama has beside its answers.

https://docs.ollama.com/api
"""

import hashlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from math import inf, prod
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dflash_mlx import __version__
from dflash_mlx.chat.template import EFFORT_VARIABLES, THINK_VARIABLES
from dflash_mlx.chat.tool_parser import without_tools
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import Checkpoint, TensorHeader
from dflash_mlx.pair import Pair

from .body import read_json
from .models import Models
from .ollama_chat import tagged, time_text
from .protocol import Problem

VERSION = "0.24.0"  # of Ollama, whose API this is; apps ask for a lowest one
FOREVER = "9999-12-31T23:59:59Z"
THINKING_WORDS = (*THINK_VARIABLES, *EFFORT_VARIABLES, "<think>")


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One model. A text is empty, and a number 0, where the model's files do not say.

    family: the type in config.json. parameters: their number. quantisation: such as 4bit, or the
    type of most weights. template: the chat template. abilities: by Ollama's names.
    modified: when config.json was written, in seconds since 1970.
    """

    family: str = ""
    parameters: int = 0
    quantisation: str = ""
    template: str = ""
    abilities: tuple[str, ...] = ()
    modified: float = 0.0

    @property
    def size_text(self) -> str:
        """The number of parameters, such as 4.0B."""
        for unit, name in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
            if self.parameters >= unit:
                return f"{self.parameters / unit:.1f}{name}"
        return ""


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
    """The endpoints of these lists. `endpoints` has each path, its method and its function."""

    def __init__(self, models: Models):
        self._models = models
        self._cards: dict[tuple[Path, bool], ModelCard] = {}  # by folder, and whether it is loaded

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
        """One model: its size, context, template and abilities."""
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
        return JSONResponse({"version": VERSION, "dflash": __version__})

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
        self, folder: Path, checkpoint: Checkpoint | None = None, pair: Pair | None = None
    ) -> ModelCard:
        """A model's card, which is read once, beside the event loop."""
        loaded = pair is not None
        if (folder, loaded) not in self._cards:

            def read() -> ModelCard:
                return read_card(checkpoint or Checkpoint.read(folder), pair)

            self._cards[folder, loaded] = await self._models.prompt_threads.run(read)
        return self._cards[folder, loaded]


# Cards


def read_card(checkpoint: Checkpoint, pair: Pair | None = None) -> ModelCard:
    """The card of a model.

    What a model can do is found by rendering its template if its `pair` is loaded; else it is read
    from the template's text, because rendering it would take the tokenizer.
    """
    config = checkpoint.text_config
    tensors = headers_of(checkpoint)
    if pair is None:
        template = template_text(checkpoint)
        tools = "tools" in template
        thinks = any(word in template for word in THINKING_WORDS)
    else:
        found = pair.tokenizer.chat_template
        template = found if isinstance(found, str) else ""
        tools = without_tools(pair.template, pair.tokenizer) is None
        thinks = pair.template.thinks
    file = checkpoint.path / "config.json"
    return ModelCard(
        family=str(config.get("model_type") or ""),
        parameters=count_parameters(tensors, config),
        quantisation=quantisation_of(tensors, config),
        template=template,
        abilities=("completion", *(["tools"] if tools else []), *(["thinking"] if thinks else [])),
        modified=file.stat().st_mtime if file.exists() else 0.0,
    )


def headers_of(checkpoint: Checkpoint) -> dict[str, TensorHeader]:
    try:
        return checkpoint.tensors
    except DFlashError:
        return {}


def template_text(checkpoint: Checkpoint) -> str:
    """The chat template in a model's folder; empty if there is none."""
    file = checkpoint.path / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8", errors="replace")
    found = checkpoint.tokenizer_config.get("chat_template")
    if isinstance(found, list):  # several by name
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else ""


def quantisation_config(config: dict[str, Any]) -> dict[str, Any]:
    found = config.get("quantization")
    return found if isinstance(found, dict) else {}


def count_parameters(tensors: dict[str, TensorHeader], config: dict[str, Any]) -> int:
    """The number of weights. Quantised ones are packed: each scale stands for a group of them."""
    group = quantisation_config(config).get("group_size") or 64
    count = 0
    for name, tensor in tensors.items():
        module, _, kind = name.rpartition(".")
        scales = tensors.get(f"{module}.scales")
        if scales is None:
            count += prod(tensor.shape)
        elif kind == "scales":
            count += group * prod(scales.shape)
    return count


def quantisation_of(tensors: dict[str, TensorHeader], config: dict[str, Any]) -> str:
    """The bits of quantised weights, such as 4bit, or the type that most bytes have."""
    if bits := quantisation_config(config).get("bits"):
        return f"{bits}bit"
    sizes: Counter[str] = Counter()
    for tensor in tensors.values():
        sizes[tensor.dtype] += tensor.nbytes
    return sizes.most_common(1)[0][0] if sizes else ""
