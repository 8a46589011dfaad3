"""Twelve endpoints of an ordinary service, written for FastAPI and as typed functions: equal requests get equal responses."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from support.real_daemon import FRONT, RunningDaemon

pytest.importorskip("pydantic")
pytest.importorskip("PIL.Image")
pytest.importorskip("python_multipart", reason="FastAPI reads forms with it")
fastapi = pytest.importorskip("fastapi.testclient")
from support.web_services import fastapi_app, typed_functions  # noqa: E402
from support.web_services.exchange import REQUESTS, Sent, send  # noqa: E402

pytestmark = pytest.mark.skipif(FRONT == "triton", reason="NVIDIA's frontend has no routes")


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
    got = send(daemon.http, sent)
    assert got.status == wanted.status_code, (got.body, wanted.content)
    if got.status == 200:
        assert got.content_type == wanted.headers["Content-Type"].partition(";")[0]
        if got.content_type == "application/json":
            # FastAPI writes a whole number as 0.0 if the annotation says float.
            assert json.loads(got.body) == wanted.json()
        else:
            assert got.body == wanted.content
    else:
        assert got.content_type == "application/problem+json"
