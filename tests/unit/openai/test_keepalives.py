"""Keep-alives during a long non-streamed answer, by which the server notices that its client is gone."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest

from pytriton.openai import ChatRequest
from pytriton.openai import invocation as request_module
from pytriton.openai.model import served
from pytriton.proxy.types import Request

BODY = {"messages": [{"role": "user", "content": "hello"}]}


def generator(request: ChatRequest) -> Iterator[str]:
    yield "a"
    yield "b"


@pytest.mark.parametrize(("every_s", "signs"), [(0.0, 2), (1e9, 0)])
def test_a_non_streamed_answer_sends_keepalives(
    monkeypatch: pytest.MonkeyPatch, every_s: float, signs: int
) -> None:
    monkeypatch.setattr(request_module, "_KEEPALIVE_INTERVAL_S", every_s)
    envelope = {"api": "chat", "id": "chatcmpl_123", "model": "m", "body": BODY}
    request = Request({"request": np.array([json.dumps(envelope).encode()], object)})
    results = served(generator, ["chat"])([request])
    texts = [one[0]["text_output"][0].decode() for one in results if one[0] is not None]
    assert texts[:-1] == ["s"] * signs
    assert json.loads(texts[-1].partition("\n")[2])["choices"][0]["message"]["content"] == "ab"
