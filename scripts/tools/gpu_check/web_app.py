"""The same network behind FastAPI, as a developer would write it: run with uvicorn, $GPU_CHECK_MODEL says which."""

from __future__ import annotations

import os

import numpy as np
import torch
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool

from gpu_check import models

_DEVICE = os.environ["GPU_CHECK_DEVICE"]
_NET = getattr(models, os.environ["GPU_CHECK_MODEL"])().to(_DEVICE)
_DTYPE, *_SHAPE = os.environ["GPU_CHECK_INPUT"].split(",")

app = FastAPI()


def _infer(body: bytes) -> bytes:
    x = np.frombuffer(bytearray(body), _DTYPE).reshape(1, *map(int, _SHAPE))
    with torch.inference_mode():
        y: bytes = _NET(torch.from_numpy(x).to(_DEVICE)).cpu().numpy().tobytes()
    return y


@app.post("/infer")
async def infer(request: Request) -> Response:
    """Run one request in the thread pool."""
    return Response(await run_in_threadpool(_infer, await request.body()))
