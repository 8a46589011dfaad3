"""Twelve endpoints of an ordinary service, written for FastAPI and as typed functions: equal requests get equal responses."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest
from support.real_daemon import FRONT, RunningDaemon

pytest.importorskip("pydantic")
pytest.importorskip("PIL.Image")
pytest.importorskip("python_multipart", reason="FastAPI reads forms with it")
fastapi = pytest.importorskip("fastapi.testclient")
from support.web_services import fastapi_app, typed_functions  # noqa: E402

pytestmark = pytest.mark.skipif(FRONT == "triton", reason="NVIDIA's frontend has no routes")


class Sent(NamedTuple):
    path: str
    body: bytes
    content_type: str = "application/json"


def as_json(path: str, **members: Any) -> Sent:
    return Sent(path, json.dumps(members).encode())


def as_form(path: str, name: str, data: bytes) -> Sent:
    head = f'--X\r\nContent-Disposition: form-data; name="{name}"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n'
    return Sent(path, head.encode() + data + b"\r\n--X--\r\n", "multipart/form-data; boundary=X")


REQUESTS = [
    as_json("/labels", text="b a c"),
    as_json("/labels", text="b a ü", top_k=3),
    as_json("/labels", text=1),
    as_json("/labels"),
    as_json("/labels", text="a", top_k="x"),
    Sent("/labels", b"[]"),
    as_json("/churn", age=50, income=1e5, city="Köln"),
    as_json("/churn", age=50, income=1e5),
    as_json("/churn", age=-1, income="x"),
    as_json("/churn", age=50.5, income=0),
    as_json("/churn", income=0),
    as_form("/image_size", "image_file", typed_functions.png(7, 5)),
    as_form("/image_size", "other", b""),
    as_json("/picture", width=3, height=2),
    as_json("/picture", width="wide", height=2),
    as_json("/words", text="to be ü"),
    as_json("/words"),
    as_json("/shout", text="ab"),
    as_json("/shout", text=None),
    as_json("/lengths", text="abc"),
    as_json("/lengths", text=[]),
    as_json("/paint", colour="red", finish="matt"),
    as_json("/paint", colour="green", finish="matt"),
    as_json("/paint", colour="red", finish="rough"),
    as_json("/norms", rows=[[1, 2], [], [0.5]], points=[{"x": 1, "y": 2}]),
    as_json("/norms", rows=[[1, "a"]], points=[]),
    as_json("/norms", rows=[], points=[{"x": 1}]),
    as_json("/optional"),
    as_json("/optional", a=1, b=None, c=[1, 2]),
    as_json("/optional", c=["a"]),
    Sent("/size", bytes(50_000_000), "application/octet-stream"),
    Sent("/reverse", bytes(range(256)), "application/octet-stream"),
    Sent("/reverse", b"", "application/octet-stream"),
]


@pytest.fixture(scope="module")
def theirs() -> Iterator[httpx.Client]:
    with fastapi.TestClient(fastapi_app.app) as client:
        yield client


@pytest.fixture(scope="module", autouse=True)
def models(daemon: RunningDaemon) -> None:
    for function in typed_functions.ALL:
        daemon.client.register(function)


@pytest.mark.parametrize("sent", REQUESTS, ids=lambda sent: f"{sent.path} {sent.body[:40]!r}")
def test_equal_requests_get_equal_responses(
    daemon: RunningDaemon, theirs: httpx.Client, sent: Sent
) -> None:
    wanted = theirs.post(sent.path, content=sent.body, headers={"Content-Type": sent.content_type})
    client = http.client.HTTPConnection(daemon.http, timeout=60)
    client.request("POST", sent.path, sent.body, {"Content-Type": sent.content_type})
    got = client.getresponse()
    body = got.read()
    client.close()
    assert got.status == wanted.status_code, (body, wanted.content)
    if got.status == 200:
        kind = got.headers["Content-Type"].partition(";")[0]
        assert kind == wanted.headers["Content-Type"].partition(";")[0]
        if (
            kind == "application/json"
        ):  # FastAPI writes a whole number as 0.0 if the annotation says float
            assert json.loads(body) == wanted.json()
        else:
            assert body == wanted.content
    else:
        assert got.headers["Content-Type"] == "application/problem+json"
