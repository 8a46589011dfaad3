"""The functions as endpoints of FastAPI: `def` as its documentation advises for functions that block, and `async def`."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typed_work
from fastapi import FastAPI, File
from pydantic import BaseModel

app = FastAPI()


class Query(BaseModel):
    """The request's body."""

    text: str
    top_k: int = 3


if os.environ["BENCH_ASYNC"]:

    @app.post("/predict")
    async def predict(query: Query) -> list[dict[str, Any]]:
        """Label a text."""
        return typed_work.predict(query.text, query.top_k)

    @app.post("/measure")
    async def measure(image: Annotated[bytes, File()]) -> dict[str, int]:
        """Measure an upload."""
        return typed_work.measure(image)

else:

    @app.post("/predict")
    def predict_in_thread(query: Query) -> list[dict[str, Any]]:
        """Label a text."""
        return typed_work.predict(query.text, query.top_k)

    @app.post("/measure")
    def measure_in_thread(image: Annotated[bytes, File()]) -> dict[str, int]:
        """Measure an upload."""
        return typed_work.measure(image)
