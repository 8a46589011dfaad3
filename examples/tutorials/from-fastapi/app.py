"""The web service, with the same address and answers as before. The model runs in the daemon."""

from contextlib import asynccontextmanager

import numpy as np
from fastapi import FastAPI, HTTPException

from pytriton.client import AsyncioModelClient
from pytriton.client.exceptions import PyTritonClientError


@asynccontextmanager
async def lifespan(app):
    async with AsyncioModelClient("127.0.0.1:8000", "scores") as app.state.model:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/predict")
async def predict(values: list[float]) -> dict[str, float]:
    if len(values) != 4:
        raise HTTPException(422, f"a request has 4 values, not {len(values)}")
    try:
        answer = await app.state.model.infer_sample(np.array(values, np.float32))
    except PyTritonClientError as error:
        raise HTTPException(503, str(error)) from error
    return {"score": round(float(answer["score"].item()), 4)}
