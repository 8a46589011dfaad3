"""The same network behind FastAPI, as a developer would write it.

`python -m gpu_check.web_app FILE` runs it with uvicorn on a free port, and writes the port to a file. $GPU_CHECK_MODEL
says which network.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import numpy as np
import torch
import uvicorn
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


def main(file: Path) -> None:
    """Serve until killed."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    draft = file.with_name(f"{file.name}.new")
    draft.write_text(str(listener.getsockname()[1]))
    draft.replace(file)  # connections wait in the backlog from now on
    config = uvicorn.Config(app, log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
