"""Embedding routes: send a request's texts to the model in as many batches as needed."""

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
from pytriton.dispatcher.openai.keys import tokens_of
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
    model = frontend.model(call, body.model, "embeddings", partial(tokens_of, body))
    rows, tokens = await _rows(
        frontend, call, model, _texts("input", prompts_of(body.input, "input")), body.dimensions
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
    """Answer a request in KServe's form: texts without a second axis, and a response with only the embeddings.

    LiteLLM's provider `triton/` sends this form. tritonserver rejects it, because its inputs have an axis in addition
    to the batch's.

    Raises:
        APIError: the request failed
    """
    call = await frontend.read_call(request)
    body = read_body(call.data, TensorsBody)
    model = frontend.model(call, request.match_info["name"], "embeddings", partial(tokens_of, body))
    rows, _ = await _rows(frontend, call, model, _texts("inputs[0].data", body.inputs[0].data))
    embedding = {
        "name": EMBEDDING,
        "datatype": "FP32",
        "shape": list(rows.shape),
        "data": rows.ravel().tolist(),
    }
    return json_response({"model_name": model.name, "model_version": "1", "outputs": [embedding]})


def _texts(place: str, texts: Sequence[_Text]) -> Sequence[_Text]:
    """Return the texts of a request. They are counted here, because a list of tokens is one text of any length.

    Raises:
        APIError: there are too many
    """
    if len(texts) > _MAX_TEXTS:
        raise APIError(
            f"'{place}' has {len(texts)} texts, but at most {_MAX_TEXTS} are allowed. Split the request.",
            param=place,
            code="invalid_value",
        )
    return texts


async def _rows(
    frontend: ApiServer,
    call: ApiCall,
    model: ApiModel,
    prompts: Sequence[str | list[int]],
    dimensions: int | None = None,
) -> tuple[Any, int]:
    """Return the embeddings of texts, and the number of their tokens.

    Raises:
        APIError: the model failed, or its embeddings have other dimensions
    """
    texts = [packed(text) for text in prompts]
    timeout_s = frontend.state.answering.timeout_s
    error = "cancelled"
    tokens = 0
    try:
        with frontend.slot():
            vectors = await within(_embed(frontend, model, texts, dimensions), timeout_s)
        tokens = sum(one.tokens for one in vectors)
        rows = _joined(vectors)
        _check_dimensions(dimensions, rows)
        error = ""
    except asyncio.TimeoutError:
        error = "timeout"
        raise APIError(f"The answer took longer than {timeout_s:g} s.", 504, code=error) from None
    except APIError as failure:
        error = failure.code or str(failure.status)
        raise
    finally:
        call.used(tokens)
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


def _joined(vectors: list[Vectors]) -> Any:
    """Return the rows of all batches.

    Raises:
        APIError: their dimensions differ, or they contain values that JSON cannot represent
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
