"""Embeddings: a request's texts go to the model in as many batches as it needs."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any

import numpy as np
from aiohttp import web

from pytriton.dispatcher.openai_front.reading import within
from pytriton.openai.bodies import EmbeddingsBody, read_body
from pytriton.openai.embeddings import packed
from pytriton.openai.errors import APIError
from pytriton.openai.requests import prompts_of

if TYPE_CHECKING:
    from pytriton.dispatcher.openai_front.server import Front
    from pytriton.dispatcher.openai_front.upstream import Vectors

__all__ = ["answer_embeddings"]


async def answer_embeddings(front: Front, request: web.Request) -> web.Response:
    """Answer a request of `/v1/embeddings`.

    Raises:
        APIError: it cannot be answered
    """
    from pytriton.dispatcher.openai_front.server import answer_of

    asking = await front.asking(request)
    body = read_body(asking.data, EmbeddingsBody)
    model = front.model(asking, body.model, "embeddings")
    texts = [packed(text) for text in prompts_of(body.input)]
    error = "cancelled"
    tokens = 0
    try:
        with front.slot():
            vectors = await _within(
                _embed(front, model.name, texts, model.most_texts), front.state.answering.timeout_s
            )
        tokens = sum(one.tokens for one in vectors)
        rows = np.concatenate([one.rows for one in vectors])
        _check_dimensions(body, rows)
        error = ""
    except APIError as failure:
        error = failure.code or str(failure.status)
        raise
    finally:
        asking.used(tokens)
        took_s = front.clock() - asking.began
        front.meters.answered(model.name, "embeddings", took_s, prompt_tokens=tokens, error=error)
    data = [
        {"object": "embedding", "index": index, "embedding": embedding}
        for index, embedding in enumerate(_shown(rows, body.encoding_format == "base64"))
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    headers = asking.caller.headers() if asking.caller else None
    return answer_of(
        {"object": "list", "data": data, "model": model.name, "usage": usage}, 200, headers
    )


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


def _check_dimensions(body: EmbeddingsBody, rows: Any) -> None:
    if body.dimensions is not None and body.dimensions != rows.shape[1]:
        raise APIError(
            f"This model's embeddings have {rows.shape[1]} dimensions, not {body.dimensions}.",
            param="dimensions",
            code="invalid_value",
        )


def _shown(rows: Any, as_base64: bool) -> list[Any]:
    if as_base64:
        return [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in rows]
    shown: list[Any] = rows.tolist()
    return shown
