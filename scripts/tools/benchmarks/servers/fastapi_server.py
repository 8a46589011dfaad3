"""Serves a typed function or a model with FastAPI: `def` as its documentation advises for functions that block, or `async def`."""

from __future__ import annotations

import os
from typing import Annotated, Any

import models_work
import uvicorn
import work
from fastapi import FastAPI, File
from pydantic import BaseModel

SPEC = work.spec()
NAME = SPEC["model"]["name"]
app = FastAPI()


class Query(BaseModel):
    """The request's body."""

    text: str
    top_k: int = 3


if NAME in models_work.MODELS:
    model = models_work.MODELS[NAME]()

    @app.post(f"/{NAME}")
    def call_model(body: Query) -> dict[str, int]:
        """Call the model."""
        return model(body.text)

elif "BENCH_ASYNC" in os.environ:

    @app.post("/predict")
    async def predict(query: Query) -> list[dict[str, Any]]:
        """Label a text."""
        return work.predict(query.text, query.top_k)

    @app.post("/measure")
    async def measure(image: Annotated[bytes, File()]) -> dict[str, int]:
        """Measure an upload."""
        return work.measure(image)

else:

    @app.post("/predict")
    def predict_in_thread(query: Query) -> list[dict[str, Any]]:
        """Label a text."""
        return work.predict(query.text, query.top_k)

    @app.post("/measure")
    def measure_in_thread(image: Annotated[bytes, File()]) -> dict[str, int]:
        """Measure an upload."""
        return work.measure(image)


if __name__ == "__main__":
    workers = int(os.environ.get("BENCH_WORKERS", "1"))
    uvicorn.run(
        app if workers == 1 else "fastapi_server:app",  # uvicorn's own processes import it
        host="127.0.0.1",
        port=SPEC["http_port"],
        workers=workers,
        log_level="warning",
        access_log=False,
    )
