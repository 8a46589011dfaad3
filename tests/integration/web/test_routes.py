"""Typed functions over HTTP: their routes, what they accept, and how they fail."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.models.inference import Inference
from support.real_daemon import FRONT, RunningDaemon, eventually

from pytriton import HTTPError, UploadFile, batchable
from pytriton._cli import daemon_connection
from pytriton.exceptions import ModelExistsError, PyTritonValidationError

pytestmark = pytest.mark.skipif(FRONT == "triton", reason="NVIDIA's frontend has no routes")


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def send(
    daemon: RunningDaemon,
    path: str,
    body: bytes | Any = b"",
    method: str = "POST",
    **headers: str,
) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"Content-Type": "application/json"}
    sent.update({name.replace("_", "-"): value for name, value in headers.items()})
    client = http.client.HTTPConnection(daemon.http, timeout=60)
    try:
        client.request(method, path, data, sent)
        response = client.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, found, response.read())
    finally:
        client.close()


@dataclass
class Label:
    name: str
    score: float


def label(text: str, top_k: int = 2) -> list[Label]:
    """Label a text.

    Args:
        text: what to label
        top_k: how many labels
    """
    if text == "missing":
        raise HTTPError(404, "no such text")
    if text == "broken":
        raise KeyError("a secret of the model")
    return [Label(text, 1.0 / (rank + 1)) for rank in range(top_k)]


@pytest.fixture(scope="module", autouse=True)
def models(daemon: RunningDaemon) -> None:
    def size(file: UploadFile, times: int = 1) -> dict[str, Any]:
        return {"size": len(file.data) * times, "name": file.filename}

    def reverse(data: bytes) -> bytes:
        return data[::-1]

    def words(text: str) -> Iterator[str]:
        for word in text.split():
            if word == "stop":
                raise HTTPError(409, "stopped")
            if word == "die":
                raise ValueError("a secret of the model")
            yield word

    class Counter:
        def __init__(self) -> None:
            self.count = 0

        async def __call__(self, by: int) -> int:
            await asyncio.sleep(0)
            self.count += by
            return self.count

    @batchable(max_batch_size=8, max_delay_s=0.2)
    def batch_size(x: list[int]) -> list[int]:
        return [ValueError("seven") if one == 7 else len(x) for one in x]  # type: ignore[misc]

    client = daemon.client
    client.register(label, route="/text/labels")
    for function in (size, reverse, words, Counter, batch_size):
        client.register(function)


def test_a_typed_function_is_a_route(daemon: RunningDaemon) -> None:
    answer = send(daemon, "/text/labels", {"text": "cat"})
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json == [{"name": "cat", "score": 1.0}, {"name": "cat", "score": 0.5}]
    assert send(daemon, "/text/labels", {"text": "cat", "top_k": 0}).json == []


@pytest.mark.parametrize(
    ("path", "body", "method", "headers", "status", "detail"),
    [
        ("/text/labels", {"text": 1}, "POST", {}, 422, "The request body is invalid"),
        ("/text/labels", b"{", "POST", {}, 400, "The request body is not valid JSON"),
        ("/text/labels", {"text": "missing"}, "POST", {}, 404, "no such text"),
        ("/text/labels", {"text": "broken"}, "POST", {}, 500, None),
        ("/text/labels", b"", "GET", {}, 405, "Use POST"),
        ("/text/labels", b"", "PUT", {}, 405, "Use POST"),
        ("/text/labels", b"x", "POST", {"Content_Type": "text/csv"}, 415, "Send application/json"),
        ("/batch_size", {"x": 7}, "POST", {}, 500, None),
    ],
)
def test_errors_are_problem_details(
    daemon: RunningDaemon,
    path: str,
    body: Any,
    method: str,
    headers: dict[str, str],
    status: int,
    detail: str | None,
) -> None:
    answer = send(daemon, path, body, method, **headers)
    assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json")
    assert answer.json["status"] == status
    assert answer.json.get("detail", "").startswith(detail or "")
    if status == 500:
        assert b"secret" not in answer.body
        assert "detail" not in answer.json
        # The log has the traceback under the same id.
        eventually(lambda: answer.json["request_id"] in daemon.said(), daemon.said)
    if status == 405:
        assert answer.headers["allow"] == "POST"


def test_a_client_error_leaves_no_traceback(daemon: RunningDaemon) -> None:
    daemon.forget_said()
    assert send(daemon, "/text/labels", {"text": "missing"}).status == 404
    assert send(daemon, "/text/labels", {}).status == 422
    assert send(daemon, "/text/labels", {"text": "broken"}).status == 500
    eventually(lambda: "KeyError" in daemon.said(), daemon.said)
    assert "HTTPError" not in daemon.said()
    assert "Missing" not in daemon.said()


def test_other_paths_are_not_found(daemon: RunningDaemon) -> None:
    for path in ("/label", "/text", "/text/labels/", "/text/labels/x", "/text%2Flabels", "/"):
        assert send(daemon, path, {"text": "x"}).status == 404


def test_files_and_raw_bodies(daemon: RunningDaemon) -> None:
    body = (
        b'--X\r\nContent-Disposition: form-data; name="file"; filename="../a.bin"\r\n\r\n'
        + bytes(1000)
        + b'\r\n--X\r\nContent-Disposition: form-data; name="times"\r\n\r\n3\r\n--X--\r\n'
    )
    answer = send(daemon, "/size", body, Content_Type="multipart/form-data; boundary=X")
    assert answer.json == {"size": 3000, "name": "a.bin"}
    large = np.random.default_rng(0).bytes(20 << 20)
    answer = send(daemon, "/reverse", large, Content_Type="application/octet-stream")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/octet-stream")
    assert answer.body == large[::-1]


def test_a_generator_sends_events(daemon: RunningDaemon) -> None:
    answer = send(daemon, "/words", {"text": "a\nb é"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.body.decode() == 'data: "a"\n\ndata: "b"\n\ndata: "é"\n\n'
    assert send(daemon, "/words", {"text": ""}).body == b""
    failed = send(daemon, "/words", {"text": "stop"})
    assert (failed.status, failed.json["detail"]) == (409, "stopped")
    late = send(daemon, "/words", {"text": "a stop b"}).body.decode().split("\n\n")
    assert late[0] == 'data: "a"'
    assert late[1].startswith('event: error\ndata: {"status":409,')
    late = send(daemon, "/words", {"text": "a die"}).body.decode().split("\n\n")
    assert late[1].startswith('event: error\ndata: {"status":500,')
    assert "secret" not in late[1]


def test_a_client_that_leaves_cancels_its_generator(daemon: RunningDaemon, tmp_path: Path) -> None:
    closed = str(tmp_path / "closed")

    async def endless(text: str) -> AsyncIterator[str]:
        try:
            while True:
                yield text
                await asyncio.sleep(0.01)
        finally:
            Path(closed).touch()

    daemon.client.register(endless)
    client = http.client.HTTPConnection(daemon.http, timeout=60)
    client.request("POST", "/endless", b'{"text":"x"}', {"Content-Type": "application/json"})
    response = client.getresponse()
    assert response.read(10) == b'data: "x"\n'
    response.close()
    client.close()
    eventually(Path(closed).exists, "the generator is closed")


def test_requests_of_a_batchable_function_share_a_call(daemon: RunningDaemon) -> None:
    def share() -> bool:
        with ThreadPoolExecutor(4) as threads:
            answers = [
                *threads.map(lambda x: send(daemon, "/batch_size", {"x": x}), (1, 2, "3", 7))
            ]
        assert [one.status for one in answers] == [200, 200, 422, 500]
        return any(one.json in (2, 3) for one in answers[:2])

    eventually(share, "they arrive within the delay")


def test_objects_and_classes_keep_their_state(daemon: RunningDaemon) -> None:
    first = send(daemon, "/Counter", {"by": 2}).json
    assert send(daemon, "/Counter", {"by": 3}).json == first + 3


def test_the_same_model_answers_tritons_protocols(daemon: RunningDaemon) -> None:
    for protocol, address in (("http", daemon.http), ("grpc", daemon.grpc)):
        client = Inference(protocol, address)
        body = np.array([[b'{"text":"cat","top_k":1}']], object)
        assert json.loads(client.infer("label", {"body": body})["body"][0, 0]) == [
            {"name": "cat", "score": 1.0}
        ]
        with pytest.raises(Exception, match="#/text: Expected `str`, got `int`"):
            client.infer("label", {"body": np.array([[b'{"text":1}']], object)})
        client.close()


def test_the_openapi_document_describes_all_models(daemon: RunningDaemon) -> None:
    answer = send(daemon, "/openapi.json", method="GET")
    assert answer.headers["content-type"] == "application/json"
    operation = answer.json["paths"]["/text/labels"]["post"]
    assert operation["summary"] == "Label a text"
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert schema["properties"]["top_k"] == {
        "type": "integer",
        "default": 2,
        "description": "how many labels",
    }
    assert answer.json["components"]["schemas"]["Label"]["required"] == ["name", "score"]
    page = send(daemon, "/docs", method="GET")
    assert page.status == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]


def test_routes_come_and_go_with_their_models(daemon: RunningDaemon) -> None:
    def first(x: int) -> int:
        return x

    def second(x: int) -> str:
        return f"second {x}"

    client = daemon.client
    client.register(first, "changing")
    assert send(daemon, "/changing", {"x": 1}).json == 1
    with pytest.raises(ModelExistsError):
        client.register(second, "changing")
    with pytest.raises(ModelExistsError, match="belongs to the model changing"):
        client.register(second, "another", route="/changing")
    client.register(second, "changing", replace=True, route="/changed")
    assert send(daemon, "/changing", {"x": 1}).status == 404
    assert send(daemon, "/changed", {"x": 1}).json == "second 1"
    client.rollback("changing")
    eventually(lambda: send(daemon, "/changing", {"x": 1}).status == 200, "the route is back")
    client.unregister("changing")
    eventually(lambda: send(daemon, "/changing", {"x": 1}).status == 404, "the route is gone")


@pytest.mark.parametrize(
    "route", ["predict", "/v2/x", "/docs", "/a//b", "/a?b", "/", "/../x", "/é"]
)
def test_impossible_routes(daemon: RunningDaemon, route: str) -> None:
    with pytest.raises(PyTritonValidationError, match="route"):
        daemon.client.register(label, "impossible", route=route)


def test_routes_outlive_the_server(daemon: RunningDaemon) -> None:
    daemon.server.kill()
    eventually(lambda: send_or_none(daemon) == 200, "the route is served again")
    eventually(lambda: daemon.client.status().server.state == "ready", "tritonserver is ready")
    former = daemon.server.pid
    daemon_connection.replace_server(daemon.config.rundir)
    assert daemon.server.pid != former
    assert send(daemon, "/text/labels", {"text": "cat"}).status == 200


def send_or_none(daemon: RunningDaemon) -> int | None:
    try:
        return send(daemon, "/text/labels", {"text": "cat"}).status
    except OSError:
        return None


def test_pages_of_other_sites_are_refused(daemon: RunningDaemon) -> None:
    answer = send(daemon, "/text/labels", {"text": "cat"}, Origin="https://other.example")
    assert (
        answer.status,
        answer.json["status"],
        "access-control-allow-origin" in answer.headers,
    ) == (403, 403, False)
    assert send(daemon, "/text/labels", {"text": "cat"}, Sec_Fetch_Site="cross-site").status == 403
