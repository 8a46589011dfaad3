"""The routes for embeddings. They split a request's texts into batches for the model."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from aiohttp import web

from pytriton.dispatcher.http_server.connections import within
from pytriton.dispatcher.openai.client_connection import json_response
from pytriton.dispatcher.openai.keys import estimate_tokens
from pytriton.openai.bodies import EmbeddingsBody, TensorsBody, read_body
from pytriton.openai.embeddings import EMBEDDING, packed
from pytriton.openai.errors import APIError
from pytriton.openai.requests import prompts_of

if TYPE_CHECKING:
    from pytriton.dispatcher.openai.server import ApiCall, ApiServer
    from pytriton.dispatcher.openai.state import ApiModel
    from pytriton.dispatcher.openai.upstream import Vectors

__all__ = ["answer_embeddings", "answer_tensors"]

_Text = TypeVar("_Text", bound="str | list[int]")
#: Maximum number of texts per request, as in OpenAI's API.
_MAX_TEXTS = 2048
#: Maximum number of concurrent batches per request; each uses its own connection.
_MAX_CONCURRENT_BATCHES = 8


async def answer_embeddings(frontend: ApiServer, request: web.Request) -> web.Response:
    """Answer a request to `/v1/embeddings`.

    Raises:
        APIError: the request failed
    """
    call = await frontend.read_call(request)
    body = read_body(call.data, EmbeddingsBody)
    model = frontend.model(call, body.model, "embeddings", partial(estimate_tokens, body))
    rows, tokens = await _embed_texts(
        frontend,
        call,
        model,
        _check_count("input", prompts_of(body.input, "input")),
        body.dimensions,
    )
    data = [
        {"object": "embedding", "index": index, "embedding": embedding}
        for index, embedding in enumerate(_encoded(rows, body.encoding_format == "base64"))
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    headers = call.caller.headers() if call.caller else None
    return json_response(
        {"object": "list", "data": data, "model": body.model, "usage": usage}, 200, headers
    )


async def answer_tensors(frontend: ApiServer, request: web.Request) -> web.Response:
    """Answer an embeddings request in KServe's format, with a one-dimensional list of texts.

    LiteLLM's provider `triton/` sends such requests. tritonserver itself rejects them, because it expects a second axis
    in addition to the batch axis.

    Raises:
        APIError: the request failed
    """
    call = await frontend.read_call(request)
    body = read_body(call.data, TensorsBody)
    model = frontend.model(
        call, request.match_info["name"], "embeddings", partial(estimate_tokens, body)
    )
    rows, _ = await _embed_texts(
        frontend, call, model, _check_count("inputs[0].data", body.inputs[0].data)
    )
    embedding = {
        "name": EMBEDDING,
        "datatype": "FP32",
        "shape": list(rows.shape),
        "data": rows.ravel().tolist(),
    }
    return json_response({"model_name": model.name, "model_version": "1", "outputs": [embedding]})


def _check_count(place: str, texts: Sequence[_Text]) -> Sequence[_Text]:
    """Check the number of texts in a request, and return them. A list of tokens is one text.

    Raises:
        APIError: there are too many texts
    """
    if len(texts) > _MAX_TEXTS:
        raise APIError(
            f"'{place}' has {len(texts)} texts, but at most {_MAX_TEXTS} are allowed. Split the request.",
            param=place,
            code="invalid_value",
        )
    return texts


async def _embed_texts(
    frontend: ApiServer,
    call: ApiCall,
    model: ApiModel,
    prompts: Sequence[str | list[int]],
    dimensions: int | None = None,
) -> tuple[Any, int]:
    """Return the embeddings of all texts, and the number of tokens in these texts.

    Raises:
        APIError: the model failed, or its embeddings do not have the requested number of dimensions
    """
    texts = [packed(text) for text in prompts]
    timeout_s = frontend.state.settings.timeout_s
    error = "cancelled"
    tokens = 0
    try:
        with frontend.slot():
            vectors = await within(_embed(frontend, model, texts, dimensions), timeout_s)
        tokens = sum(one.tokens for one in vectors)
        rows = _concatenate(vectors)
        _check_dimensions(dimensions, rows)
        error = ""
    except asyncio.TimeoutError:
        error = "timeout"
        raise APIError(f"The response took longer than {timeout_s:g} s.", 504, code=error) from None
    except APIError as failure:
        error = failure.code or str(failure.status)
        raise
    finally:
        call.record_usage(tokens)
        took_s = frontend.clock() - call.began
        frontend.meters.answered(
            model.name, "embeddings", took_s, prompt_tokens=tokens, error=error
        )
    return rows, tokens


async def _embed(
    frontend: ApiServer, model: ApiModel, texts: list[bytes], dimensions: int | None
) -> list[Vectors]:
    name, most = model.name, model.most_texts
    if len(texts) <= most:
        return [await frontend.triton.embed(name, texts, dimensions)]
    found: dict[int, Vectors] = {}
    left = iter(range(0, len(texts), most))

    async def embed_batches() -> None:
        for start in left:  # all tasks take from the same iterator
            batch = texts[start : start + most]
            found[start] = await frontend.triton.embed(name, batch, dimensions)

    tasks = [
        asyncio.ensure_future(embed_batches())
        for _ in range(min(_MAX_CONCURRENT_BATCHES, -(-len(texts) // most)))
    ]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    return [found[start] for start in sorted(found)]


def _concatenate(vectors: list[Vectors]) -> Any:
    """Concatenate the embeddings of all batches.

    Raises:
        APIError: the dimensions differ between batches, or a value is infinite or NaN
    """
    if len({one.rows.shape[1:] for one in vectors}) > 1:
        raise APIError("The model's batches have different dimensions.", 500, code="model_error")
    rows = np.concatenate([one.rows for one in vectors])
    if not np.isfinite(rows).all():
        raise APIError(
            "The model returned infinite or NaN values.",
            500,
            code="model_error",
        )
    return rows


def _check_dimensions(wanted: int | None, rows: Any) -> None:
    if wanted is not None and wanted != rows.shape[1]:
        raise APIError(
            f"This model's embeddings have {rows.shape[1]} dimensions, not {wanted}.",
            param="dimensions",
            code="invalid_value",
        )


def _encoded(rows: Any, as_base64: bool) -> list[Any]:
    if as_base64:
        return [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in rows]
    shown: list[Any] = rows.tolist()
    return shown
