"""The embeddings APIs of OpenAI and Ollama: texts or tokens become vectors of an embedding model.

https://platform.openai.com/docs/api-reference/embeddings, https://docs.ollama.com/api/embed
"""

import base64
import time
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from pydantic import ConfigDict

from dflash_mlx.embedder import Embedder, batches
from dflash_mlx.errors import UsageError

from .body import Fields, Integer
from .protocol import Problem, Settings, find_model

PATH = "/v1/embeddings"
MAX_INPUTS = 2048  # as OpenAI's


class EmbeddingBody(Fields):
    """A request. Other fields would change the vectors, and are refused by their names."""

    model_config = ConfigDict(extra="forbid", strict=True)

    input: str | list[str] | list[int] | list[list[int]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Integer | None = None
    user: str | None = None

    def inputs(self) -> list[str] | list[list[int]]:
        """The inputs as a list."""
        given: Any = self.input
        if isinstance(given, str) or (given and isinstance(given[0], int)):
            return [given]
        return given


def check_embedding_request(
    body: EmbeddingBody, embedder: Embedder | None, settings: Settings
) -> Embedder:
    """The model of a request.

    Raises Problem 400 for a model that answers chats, or without an embedding model, 404 for one
    that is not served.
    """
    own = () if embedder is None else (embedder.name,)
    if embedder is not None and (body.model is None or find_model(body.model, own)):
        return embedder
    if body.model is None or find_model(body.model, settings.names):
        name = settings.names[0] if body.model is None else body.model
        start = "" if embedder else " (Start the server with --embedding-model.)"
        message = f"the model '{name:.100}' answers chats: it makes no embeddings.{start}"
        raise Problem(400, message, "model", "model_not_supported")
    served = f"this is '{embedder.name}'" if embedder else "no embedding model is"
    message = f"the model '{body.model:.100}' is not served here: {served}."
    raise Problem(404, message, "model", "model_not_found")


def tokens_of(
    body: EmbeddingBody, embedder: Embedder, *, truncate: bool = False
) -> list[list[int]]:
    """The token ids of each input. `truncate`: cut those that are too long, before their end.

    Raises Problem 400 for no or too many inputs, and for one that is empty, too long, or has a
    token that the model does not know.
    """
    inputs = body.inputs()
    if not 1 <= len(inputs) <= MAX_INPUTS:
        raise Problem(400, f"input has {len(inputs)} parts: give 1 to {MAX_INPUTS:,}.", "input")
    rows = [embedder.encode(part) if isinstance(part, str) else part for part in inputs]
    if truncate:
        rows = [
            row[: embedder.context - 1] + row[-1:] if len(row) > embedder.context else row
            for row in rows
        ]
    for number, row in enumerate(rows):
        if not row:
            raise Problem(400, f"input {number} is empty.", "input")
        if len(row) > embedder.context:
            message = f"input {number} is too long: {len(row):,} tokens > {embedder.context:,}."
            raise Problem(400, message, "input", "context_length_exceeded")
        if not all(0 <= token < embedder.target.vocab_size for token in row):
            raise Problem(400, f"input {number} has a token that the model has not.", "input")
    return rows


def embeddings_reply(body: EmbeddingBody, embedder: Embedder) -> dict[str, Any]:
    """The answer to a request. Raises Problem 400 as `tokens_of`, and for wrong dimensions."""
    rows = tokens_of(body, embedder)
    data = [
        {"object": "embedding", "index": index, "embedding": written(vector, body.encoding_format)}
        for index, vector in enumerate(vectors_of(rows, embedder, body.dimensions))
    ]
    count = sum(map(len, rows))
    return {
        "object": "list",
        "data": data,
        "model": embedder.name,
        "usage": {"prompt_tokens": count, "total_tokens": count},
    }


def vectors_of(
    rows: list[list[int]], embedder: Embedder, dimensions: int | None
) -> Iterator[np.ndarray]:
    """The vector of each row. Raises Problem 400 for dimensions that the model has not."""
    for batch in batches(rows):
        try:
            found = embedder.embed_batch(batch, dimensions)
        except UsageError as error:
            raise Problem(400, f"{error.message} ({error.hint})", "dimensions") from error
        yield from (np.array(vector) for vector in found)


def written(vector: np.ndarray, encoding: str) -> list[float] | str:
    """A vector of float32 as numbers, or as the base64 of its little-endian bytes."""
    if encoding == "float":
        return vector.tolist()
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


# Ollama's two endpoints

EMBED = "/api/embed"
EMBEDDINGS = "/api/embeddings"
WITHOUT_EFFECT = {"keep_alive": "the model stays loaded", "options": "they change no vector"}


class OllamaEmbedBody(Fields):
    """A request to /api/embed, or with `prompt` to the older /api/embeddings.

    truncate: cut an input that is too long, before its last token.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    input: str | list[str] | None = None
    prompt: str | None = None
    model: str | None = None
    dimensions: Integer | None = None
    truncate: bool | None = None
    keep_alive: str | float | None = None
    options: dict[str, Any] | None = None

    @property
    def openai(self) -> EmbeddingBody:
        """The same request to OpenAI's API."""
        given = self.prompt if self.input is None else self.input
        if given is None:
            raise Problem(400, "input is missing.", "input")
        return EmbeddingBody(input=given, model=self.model, dimensions=self.dimensions)


def ollama_reply(body: OllamaEmbedBody, embedder: Embedder, path: str) -> dict[str, Any]:
    """The answer to a request. Raises Problem 400 as `embeddings_reply`."""
    began = time.perf_counter()
    rows = tokens_of(body.openai, embedder, truncate=bool(body.truncate))
    vectors = [vector.tolist() for vector in vectors_of(rows, embedder, body.dimensions)]
    ignored = [f"{name} ({why})" for name, why in WITHOUT_EFFECT.items() if getattr(body, name)]
    told = {"dflash": {"ignored": ignored}} if ignored else {}
    if path == EMBEDDINGS:
        return {"embedding": vectors[0], **told}
    return {
        "model": body.model or embedder.name,
        "embeddings": vectors,
        "total_duration": round(1e9 * (time.perf_counter() - began)),
        "load_duration": 0,
        "prompt_eval_count": sum(map(len, rows)),
        **told,
    }
