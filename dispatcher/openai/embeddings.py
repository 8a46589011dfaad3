"""Embedding routes: send a request's texts to the model in as many batches as needed."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from aiohttp import web

from pytriton.dispatcher.openai.body_reader import within
from pytriton.dispatcher.openai.keys import tokens_of
from pytriton.openai.bodies import EmbeddingsBody, TensorsBody, read_body
from pytriton.openai.embeddings import EMBEDDING, packed
from pytriton.openai.errors import APIError
from pytriton.openai.requests import prompts_of

if TYPE_CHECKING:
    from pytriton.dispatcher.openai.server import ApiServer, Asking
    from pytriton.dispatcher.openai.state import ApiModel
    from pytriton.dispatcher.openai.upstream import Vectors

__all__ = ["answer_embeddings", "answer_tensors"]

_Text = TypeVar("_Text", bound="str | list[int]")
#: Maximum number of texts per request, as in OpenAI's API.
_MAX_TEXTS = 2048
#: Maximum number of concurrent batches per request; each uses its own connection.
_MAX_AT_ONCE = 8


async def answer_embeddings(frontend: ApiServer, request: web.Request) -> web.Response:
    """Answer a request to `/v1/embeddings`.

    Raises:
        APIError: the request failed
    """
    from pytriton.dispatcher.openai.server import answer_of

    asking = await frontend.asking(request)
    body = read_body(asking.data, EmbeddingsBody)
    model = frontend.model(asking, body.model, "embeddings", partial(tokens_of, body))
    rows, tokens = await _rows(
        frontend, asking, model, _texts("input", prompts_of(body.input, "input")), body.dimensions
    )
    data = [
        {"object": "embedding", "index": index, "embedding": embedding}
        for index, embedding in enumerate(_shown(rows, body.encoding_format == "base64"))
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    headers = asking.caller.headers() if asking.caller else None
    return answer_of(
        {"object": "list", "data": data, "model": body.model, "usage": usage}, 200, headers
    )


async def answer_tensors(frontend: ApiServer, request: web.Request) -> web.Response:
    """Answer a request in KServe's form: texts without a second axis, and a response with only the embeddings.

    LiteLLM's provider `triton/` sends this form. tritonserver rejects it, because its inputs have an axis in addition
    to the batch's.

    Raises:
        APIError: the request failed
    """
    from pytriton.dispatcher.openai.server import answer_of

    asking = await frontend.asking(request)
    body = read_body(asking.data, TensorsBody)
    model = frontend.model(
        asking, request.match_info["name"], "embeddings", partial(tokens_of, body)
    )
    rows, _ = await _rows(frontend, asking, model, _texts("inputs[0].data", body.inputs[0].data))
    embedding = {
        "name": EMBEDDING,
        "datatype": "FP32",
        "shape": list(rows.shape),
        "data": rows.ravel().tolist(),
    }
    return answer_of({"model_name": model.name, "model_version": "1", "outputs": [embedding]})


def _texts(place: str, given: Sequence[_Text]) -> Sequence[_Text]:
    """Return the texts of a request. They are counted here, because a list of tokens is one text of any length.

    Raises:
        APIError: there are too many
    """
    if len(given) > _MAX_TEXTS:
        raise APIError(
            f"'{place}' has {len(given)} texts, but at most {_MAX_TEXTS} are allowed. Split the request.",
            param=place,
            code="invalid_value",
        )
    return given


async def _rows(
    frontend: ApiServer,
    asking: Asking,
    model: ApiModel,
    given: Sequence[str | list[int]],
    dimensions: int | None = None,
) -> tuple[Any, int]:
    """Return the embeddings of texts, and the number of their tokens.

    Raises:
        APIError: the model failed, or its embeddings have other dimensions
    """
    texts = [packed(text) for text in given]
    error = "cancelled"
    tokens = 0
    try:
        with frontend.slot():
            vectors = await _within(
                _embed(frontend, model, texts, dimensions), frontend.state.answering.timeout_s
            )
        tokens = sum(one.tokens for one in vectors)
        rows = _joined(vectors)
        _check_dimensions(dimensions, rows)
        error = ""
    except APIError as failure:
        error = failure.code or str(failure.status)
        raise
    finally:
        asking.used(tokens)
        took_s = frontend.clock() - asking.began
        frontend.meters.answered(
            model.name, "embeddings", took_s, prompt_tokens=tokens, error=error
        )
    return rows, tokens


async def _within(asking: Any, timeout_s: float) -> Any:
    try:
        return await within(asking, timeout_s)
    except asyncio.TimeoutError:
        raise APIError(
            f"The answer took longer than {timeout_s:g} s.", 504, code="timeout"
        ) from None


async def _embed(
    frontend: ApiServer, model: ApiModel, texts: list[bytes], dimensions: int | None
) -> list[Vectors]:
    name, most = model.name, model.most_texts
    if len(texts) <= most:
        return [await frontend.triton.embed(name, texts, dimensions)]
    found: dict[int, Vectors] = {}
    left = iter(range(0, len(texts), most))

    async def ask() -> None:
        for start in left:  # all tasks take from the same iterator
            batch = texts[start : start + most]
            found[start] = await frontend.triton.embed(name, batch, dimensions)

    asking = [
        asyncio.ensure_future(ask()) for _ in range(min(_MAX_AT_ONCE, -(-len(texts) // most)))
    ]
    try:
        await asyncio.gather(*asking)
    finally:
        for one in asking:
            one.cancel()
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


def _shown(rows: Any, as_base64: bool) -> list[Any]:
    if as_base64:
        return [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in rows]
    shown: list[Any] = rows.tolist()
    return shown
