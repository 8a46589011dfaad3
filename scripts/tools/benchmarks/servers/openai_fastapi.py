"""Serves the OpenAI API with a plain FastAPI app."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
import work
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

app = FastAPI()
one_at_a_time = asyncio.Lock()  # the model computes one batch at a time


@app.post("/v1/chat/completions")
async def chat(request: Request) -> StreamingResponse:
    """Stream a chat."""
    body = await request.json()
    head: dict[str, Any] = {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": body["model"],
    }

    def event(delta: dict[str, Any], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return f"data: {json.dumps({**head, 'choices': [choice]})}\n\n"

    async def events() -> AsyncIterator[str]:
        async for token in work.openai_tokens(body["model"]):
            yield event({"content": token})
        yield event({}, "stop")
        yield "data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


@app.post("/v1/embeddings")
async def embeddings(request: Request) -> JSONResponse:
    """Embed the texts of one request."""
    body = await request.json()
    async with one_at_a_time:
        rows = await asyncio.to_thread(work.embed, body["input"])
    data = [
        {"object": "embedding", "index": index, "embedding": row}
        for index, row in enumerate(rows.tolist())
    ]
    usage = {"prompt_tokens": 0, "total_tokens": 0}
    return JSONResponse({"object": "list", "data": data, "model": body["model"], "usage": usage})


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=work.spec()["openai_port"], log_level="warning")
