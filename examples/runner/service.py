"""A web service in front of a model repository, with FastAPI.

python examples/runner/make_repository.py models
pip install fastapi uvicorn
MODELS=models uvicorn --app-dir examples/runner service:app

curl -X POST localhost:8000/digits_mlp -H 'Content-Type: application/json' -d '[0, 0, 5, ...]'
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
from fastapi import FastAPI, HTTPException

from pytriton.exceptions import ModelNotFoundError
from pytriton.runner import Runner, RunnerArgumentError

# Several uvicorn processes can share one daemon: run `pytriton-daemon start --model-repository models`, and write
# Runner("digits", daemon=pytriton.connect()).
runner = Runner("digits", model_repository=os.environ.get("MODELS", "models"))


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Start the models with the service, and stop them with it."""
    await runner.is_server_ready()
    yield
    runner.close()


app = FastAPI(lifespan=lifespan)


@app.post("/{model}")
async def classify(model: str, pixels: list[float]) -> dict[str, int]:
    """Return the digit in an image of 64 pixels, 0 to 1."""
    try:
        result = await runner[model].async_run(np.array(pixels))
    except ModelNotFoundError as error:
        raise HTTPException(404, str(error)) from error
    except RunnerArgumentError as error:
        raise HTTPException(422, str(error)) from error
    scores = result.as_numpy("scores" if "scores" in result.outputs else "predict_proba")
    return {"digit": int(scores.argmax())}


@app.post("/{model}/unload")
async def unload(model: str) -> dict[str, str]:
    """Take a model out of service, as in BentoML's guide."""
    await runner.unload_model(model)
    return {"unloaded": model}
