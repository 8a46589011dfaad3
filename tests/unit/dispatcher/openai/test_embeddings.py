"""The embeddings API: the number of texts in a request, and the number of concurrent batches."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from pytriton._protocol.messages import OpenAICard
from pytriton.dispatcher.openai.embeddings import answer_embeddings, answer_tensors
from pytriton.dispatcher.openai.server import ApiCall, ApiServer
from pytriton.dispatcher.openai.state import ApiModel, ApiSettings, ApiState, Upstream
from pytriton.dispatcher.openai.upstream import Vectors
from pytriton.openai import APIError


class Embedder:
    """Replaces tritonserver: a text's embedding is its number; counts the concurrent batches."""

    def __init__(self, broken: str = "") -> None:
        self.now = self.most = self.asked = 0
        self._broken = broken.encode()

    async def embed(self, model: str, texts: list[bytes], dimensions: int | None) -> Vectors:
        self.asked += 1
        self.dimensions = dimensions
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            for _ in range(len(texts[0])):  # later ones end before former ones
                await asyncio.sleep(0)
            if self._broken and any(self._broken in text for text in texts):
                raise APIError("broken", 500)
            rows = np.array([[float(text.lstrip(b"t"))] for text in texts], np.float32)
            return Vectors(rows, len(texts))
        finally:
            self.now -= 1


def answered(answer: Any, data: bytes, embedder: Embedder) -> Any:
    """Return a route's answer to a body."""

    async def ask() -> Any:
        models = [ApiModel("m", OpenAICard(["embeddings"]), most_texts=2)]
        frontend: Any = ApiServer(
            ApiState(ApiSettings(), Upstream("http://127.0.0.1"), models), print
        )
        await frontend.triton.close()
        frontend.triton = embedder
        request: Any = SimpleNamespace(match_info={"name": "m"})

        async def read_call(_: Any) -> ApiCall:
            return ApiCall(request, data, None, frontend.clock())

        frontend.read_call = read_call
        return await answer(frontend, request)

    return asyncio.run(ask())


def tensors(texts: list[str]) -> bytes:
    return msgspec.json.encode({"inputs": [{"name": "input_text", "data": texts}]})


@pytest.fixture(autouse=True)
def _plain_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytriton.dispatcher.openai.embeddings.packed", lambda text: text.encode())


def test_batches_are_sent_a_few_at_a_time_and_returned_in_order() -> None:
    embedder = Embedder()
    texts = [f"{'t' * (41 - n)}{n}" for n in range(41)]
    found = msgspec.json.decode(answered(answer_tensors, tensors(texts), embedder).body)
    assert found["outputs"][0]["data"] == list(range(41))
    assert (embedder.most, embedder.asked) == (8, 21)


def test_a_failed_batch_cancels_the_others() -> None:
    embedder = Embedder(broken="7")
    with pytest.raises(APIError, match="broken"):
        answered(answer_tensors, tensors([f"t{n:04}" for n in range(8, 0, -1)] * 50), embedder)
    assert embedder.now == 0
    assert embedder.asked < 200


def test_too_many_texts_are_refused() -> None:
    embedder = Embedder()
    many = ["t1"] * 2049
    body = msgspec.json.encode({"model": "m", "input": many})
    for answer, data, place in (
        (answer_embeddings, body, "input"),
        (answer_tensors, tensors(many), "inputs[0].data"),
    ):
        with pytest.raises(APIError, match="2049 texts, but at most 2048") as refused:
            answered(answer, data, embedder)
        assert (refused.value.status, refused.value.param) == (400, place)
    assert embedder.asked == 0
    assert answered(answer_tensors, tensors(many[1:]), embedder).status == 200


def test_requested_dimensions_are_passed_to_the_model() -> None:
    embedder = Embedder()
    body = msgspec.json.encode({"model": "m", "input": ["t1", "t2", "t3"], "dimensions": 1})
    answered(answer_embeddings, body, embedder)
    assert (embedder.asked, embedder.dimensions) == (2, 1)
