"""The BentoML services: tensors in raw bodies, typed functions, and models with BentoML's defaults."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import bentoml
import models_work
import numpy as np
import work
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

MODEL: dict[str, Any] = json.loads(os.environ["BENCH_MODEL"])
COMPUTE: Any = work.functions(MODEL).get(MODEL["work"])
OCTETS = "application/octet-stream"


async def tokens() -> AsyncIterator[bytes]:
    """Yield the responses of a stream."""
    for token in work.tokens(MODEL):
        yield work.encode(MODEL, token)


async def raw(request: Request) -> Response:
    """Respond to raw bytes, one request at a time, as one instance of a model does."""
    if MODEL["decoupled"]:
        return StreamingResponse(tokens(), media_type=OCTETS)
    x = work.decode(MODEL, await request.body())
    return Response(work.encode(MODEL, COMPUTE(x)), media_type=OCTETS)


@bentoml.service(workers=MODEL["instances"], threads=1, traffic={"timeout": 60})
@bentoml.asgi_app(Starlette(routes=[Route("/raw", raw, methods=["POST"])]), path="/")
class Raw:
    """Tensors: a mounted ASGI route with raw bodies, and a batchable method for dynamic batching."""

    @bentoml.api(batchable=True, max_batch_size=32, max_latency_ms=60_000, route="/batched")
    def batched(self, x: np.ndarray) -> np.ndarray:
        """Respond to a batch: the arrays of its requests, concatenated along the first axis."""
        answer: np.ndarray = COMPUTE(x)
        return answer


@bentoml.service(workers=1, traffic={"timeout": 60})
class Typed:
    """Typed functions: JSON validated by pydantic, and an uploaded file."""

    @bentoml.api
    def predict(self, text: str, top_k: int = 3) -> list[dict[str, Any]]:
        """Label a text."""
        return work.predict(text, top_k)

    @bentoml.api
    def measure(self, image: Path) -> dict[str, int]:
        """Measure an upload."""
        return work.measure(image.read_bytes())


@bentoml.service
class Model:
    """One of the models."""

    def __init__(self) -> None:
        self._model = models_work.MODELS[MODEL["name"]]()

    @bentoml.api
    def predict(self, text: str) -> dict[str, int]:
        """Call the model."""
        return self._model(text)
