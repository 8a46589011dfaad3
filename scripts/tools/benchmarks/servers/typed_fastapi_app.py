"""The functions as endpoints of FastAPI: `def` as its documentation advises for functions that block, and `async def`."""

from __future__ import annotations

import os
from typing import Annotated, Any

import models_work
import typed_work
from fastapi import FastAPI, File
from pydantic import BaseModel

app = FastAPI()


class Query(BaseModel):
    """The request's body."""

    text: str
    top_k: int = 3


class Text(BaseModel):
    """The request's body for a model."""

    text: str


_NAME = os.environ["BENCH_MODEL"]
if _NAME in models_work.MODELS:
    model = models_work.MODELS[_NAME]()

    @app.post(f"/{_NAME}")
    def call_model(body: Text) -> dict[str, int]:
        """Call the model."""
        return model(body.text)

elif os.environ["BENCH_ASYNC"]:

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
