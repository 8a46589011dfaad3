"""A web service in front of the model: it keeps its other routes, and its one process is enough for many clients."""

from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException

from pytriton.client import ApiError, AsyncApiClient


@asynccontextmanager
async def lifespan(app):
    async with AsyncApiClient("127.0.0.1:8000", "predict") as app.state.predict:
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/verdict")
async def verdict(of: str) -> str:
    try:
        answer = await app.state.predict(values=[float(one) for one in of.split()])
    except ApiError as error:
        raise HTTPException(error.status, error.problem.get("detail")) from error
    return "yes" if answer["score"] > 0 else "no"
