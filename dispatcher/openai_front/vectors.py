"""Embeddings: a request's texts go to the model in as many batches as it needs."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from aiohttp import web

from pytriton.dispatcher.openai_front.reading import within
from pytriton.openai.bodies import EmbeddingsBody, TensorsBody, read_body
from pytriton.openai.embeddings import EMBEDDING, packed
from pytriton.openai.errors import APIError
from pytriton.openai.requests import prompts_of

if TYPE_CHECKING:
    from pytriton.dispatcher.openai_front.server import Asking, Front
    from pytriton.dispatcher.openai_front.state import Served
    from pytriton.dispatcher.openai_front.upstream import Vectors

__all__ = ["answer_embeddings", "answer_tensors"]


async def answer_embeddings(front: Front, request: web.Request) -> web.Response:
    """Answer a request of `/v1/embeddings`.

    Raises:
        APIError: it cannot be answered
    """
    from pytriton.dispatcher.openai_front.server import answer_of

    asking = await front.asking(request)
    body = read_body(asking.data, EmbeddingsBody)
    model = front.model(asking, body.model, "embeddings")
    rows, tokens = await _rows(front, asking, model, prompts_of(body.input), body.dimensions)
    data = [
        {"object": "embedding", "index": index, "embedding": embedding}
        for index, embedding in enumerate(_shown(rows, body.encoding_format == "base64"))
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    headers = asking.caller.headers() if asking.caller else None
    return answer_of(
        {"object": "list", "data": data, "model": model.name, "usage": usage}, 200, headers
    )


async def answer_tensors(front: Front, request: web.Request) -> web.Response:
    """Answer a request in KServe's form: texts without a second axis, and the embeddings alone.

    LiteLLM's provider `triton/` asks so. tritonserver cannot take it: its inputs have an axis below that of the batch.

    Raises:
        APIError: it cannot be answered
    """
    from pytriton.dispatcher.openai_front.server import answer_of

    asking = await front.asking(request)
    body = read_body(asking.data, TensorsBody)
    model = front.model(asking, request.match_info["name"], "embeddings")
    rows, _ = await _rows(front, asking, model, tuple(body.inputs[0].data))
    embedding = {
        "name": EMBEDDING,
        "datatype": "FP32",
        "shape": list(rows.shape),
        "data": rows.ravel().tolist(),
    }
    return answer_of({"model_name": model.name, "model_version": "1", "outputs": [embedding]})


async def _rows(
    front: Front,
    asking: Asking,
    model: Served,
    given: Sequence[str | list[int]],
    dimensions: int | None = None,
) -> tuple[Any, int]:
    """Return the embeddings of texts, and the tokens that these had.

    Raises:
        APIError: there is no answer, or one with other dimensions
    """
    texts = [packed(text) for text in given]
    error = "cancelled"
    tokens = 0
    try:
        with front.slot():
            vectors = await _within(
                _embed(front, model.name, texts, model.most_texts), front.state.answering.timeout_s
            )
        tokens = sum(one.tokens for one in vectors)
        rows = np.concatenate([one.rows for one in vectors])
        _check_dimensions(dimensions, rows)
        error = ""
    except APIError as failure:
        error = failure.code or str(failure.status)
        raise
    finally:
        asking.used(tokens)
        took_s = front.clock() - asking.began
        front.meters.answered(model.name, "embeddings", took_s, prompt_tokens=tokens, error=error)
    return rows, tokens


async def _within(asking: Any, timeout_s: float) -> Any:
    try:
        return await within(asking, timeout_s)
    except asyncio.TimeoutError:
        raise APIError(
            f"The answer took longer than {timeout_s:g} s.", 504, code="timeout"
        ) from None


async def _embed(front: Front, model: str, texts: list[bytes], most: int) -> list[Vectors]:
    batches = [texts[start : start + most] for start in range(0, len(texts), most)]
    if len(batches) == 1:
        return [await front.triton.embed(model, batches[0])]
    asked = [asyncio.ensure_future(front.triton.embed(model, batch)) for batch in batches]
    try:
        return await asyncio.gather(*asked)
    finally:
        for one in asked:
            one.cancel()


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
