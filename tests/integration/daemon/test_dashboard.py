"""The dashboard of a real daemon over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from support.models.tensors import X, Y
from support.real_daemon import RunningDaemon

from pytriton.decorators import batch


@batch
def double(x: Any) -> Any:
    return {"y": x * 2}


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    with RunningDaemon.start(management_address="127.0.0.1:0") as running:
        running.client.register(double, "double", X, Y, progress=False)
        yield running


def ask(daemon: RunningDaemon, path: str, body: bytes | None = None, token: str = "") -> Any:
    url = daemon.client.status().management_urls[0]
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"{url}{path}", body, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def test_the_model_list_and_one_model_are_shown(daemon: RunningDaemon) -> None:
    rows = ask(daemon, "/page/view.json")["rows"]
    assert [(one["model"], one["instance"]) for one in rows] == [("double", ""), ("double", "0")]
    found = ask(daemon, "/page/model.json?name=double")
    assert found["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [-1, -1], "optional": False}
    ]
    assert "/v2/models/double/infer" in ask(daemon, "/page/openapi.json")["paths"]


def test_the_form_needs_the_token_to_send_a_request(daemon: RunningDaemon) -> None:
    body = json.dumps(ask(daemon, "/page/model.json?name=double")["request"]).encode()
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        ask(daemon, "/page/infer?name=double", body)
    refused.value.close()
    answer = ask(daemon, "/page/infer?name=double", body, daemon.client.access_token or "")
    assert answer["outputs"][0]["data"] == [0.0]
