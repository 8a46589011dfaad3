"""Forward to another OpenAI-compatible server: its key stays here, and the daemon adds quotas and metrics.

    UPSTREAM_URL=http://127.0.0.1:11434/v1 UPSTREAM_MODEL=llama3.2 python examples/openai/upstream.py

Chunks and errors of the other server are passed on as they arrive. Needs `pip install openai`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

import openai

from pytriton.daemon import connect
from pytriton.openai import APIError, ChatRequest


class Upstream:
    """The callable. Each worker creates one."""

    def __init__(self, url: str, model: str, key: str) -> None:
        self._client = openai.AsyncOpenAI(base_url=url, api_key=key)
        self._model = model

    async def __call__(self, request: ChatRequest) -> AsyncIterator[Any]:
        """Request a stream from the other server. For clients without streaming, the daemon joins the chunks."""
        body = {**request.body, "model": self._model, "stream": True}
        body["stream_options"] = {"include_usage": True}
        known = {name: body.pop(name) for name in ("model", "messages", "stream")}
        try:
            stream: Any = await self._client.chat.completions.create(**known, extra_body=body)  # type: ignore[call-overload]
            async with stream:  # if the client disconnects, this also cancels the request there
                async for chunk in stream:
                    yield chunk
        except openai.APIStatusError as error:
            raise APIError(error.message, error.status_code, code=error.code) from error
        except openai.APIConnectionError as error:
            raise APIError("The upstream server does not answer.", 503, retry_after_s=5) from error
        except openai.APIError as error:  # in the middle of the stream
            raise APIError(error.message, 502, code=error.code) from error


def make() -> Upstream:
    """Return the callable. This runs in the worker, so only the worker's environment contains the key."""
    key = os.environ.get("UPSTREAM_KEY", "none")
    return Upstream(os.environ["UPSTREAM_URL"], os.environ["UPSTREAM_MODEL"], key)


if __name__ == "__main__":
    names = ("UPSTREAM_URL", "UPSTREAM_MODEL", "UPSTREAM_KEY")
    env = {name: os.environ[name] for name in names if name in os.environ}
    connect().register(make, "proxied", openai="chat", factory=True, env=env, replace=True)
