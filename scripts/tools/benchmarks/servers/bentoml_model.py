"""The BentoML service: a mounted ASGI route with raw bodies, and a batchable method for dynamic batching."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from typing import Any

import bentoml
import numpy as np
import work
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

MODEL: dict[str, Any] = json.loads(os.environ["BENCH_MODEL"])
COMPUTE: Any = None if MODEL["decoupled"] else work.function(MODEL)
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
class Served:
    """The service."""

    @bentoml.api(batchable=True, max_batch_size=32, max_latency_ms=60_000, route="/batched")
    def batched(self, x: np.ndarray) -> np.ndarray:
        """Respond to a batch: the arrays of its requests, concatenated along the first axis."""
        answer: np.ndarray = COMPUTE(x)
        return answer
