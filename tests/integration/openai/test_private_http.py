"""The OpenAI API of daemons without public plain HTTP: the frontend has its own way to tritonserver."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import trustme
from support.real_daemon import RunningDaemon


async def _talk(request: Any) -> AsyncIterator[str]:
    yield "Hello "
    yield request.messages[-1].text


def _embed(texts: list[Any]) -> Any:
    import numpy as np

    return np.array([[len(text), 1.0] for text in texts], np.float32)


def _mutual_tls(folder: Path) -> dict[str, Any]:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(str(folder / "cert"))
    issued.private_key_pem.write_to_path(str(folder / "key"))
    authority.cert_pem.write_to_path(str(folder / "root"))
    return {
        "http_certificate": str(folder / "cert"),
        "http_key": str(folder / "key"),
        "http_client_authorities": str(folder / "root"),
    }


@pytest.mark.parametrize("how", ["tls", "no http"])
def test_the_openai_api_does_not_depend_on_public_http(tmp_path: Path, how: str) -> None:
    settings = _mutual_tls(tmp_path) if how == "tls" else {"allow_http": False}
    limits = ("connections_per_address=1",)
    expected = [f"Hello {number}" for number in range(16)]

    async def chats(url: str) -> list[str]:
        async def chat(number: int) -> str:
            asked: Any = [{"role": "user", "content": str(number)}]
            stream = await client.chat.completions.create(model="talk", messages=asked, stream=True)
            return "".join([one.choices[0].delta.content or "" async for one in stream])

        async with openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as client:
            return await asyncio.gather(*(chat(number) for number in range(16)))

    with RunningDaemon.start(frontend="native", frontend_limit=limits, **settings) as daemon:
        daemon.client.register(_talk, "talk", openai="chat", progress=False)
        daemon.client.register(_embed, "embed", openai="embeddings", progress=False)
        url = daemon.client.status().openai_url
        assert asyncio.run(chats(url)) == expected
        if how == "tls":  # the next version of the daemon's process knows the way again
            daemon.client.upgrade()
            assert asyncio.run(chats(url)) == expected
        with openai.OpenAI(base_url=url, api_key="x", max_retries=0) as client:
            (found,) = client.embeddings.create(model="embed", input="four").data
        assert found.embedding == [4.0, 1.0]
        with urllib.request.urlopen(f"{url.removesuffix('/v1')}/health", timeout=60) as answer:
            assert answer.status == 200
