"""`ApiClient` and `AsyncApiClient` against a server that echoes what it received: bodies, results, streams, failures."""

from __future__ import annotations

import asyncio
import io
import json
import pickle
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme
from support.real_daemon import eventually

from pytriton.client import ApiClient, ApiError, AsyncApiClient, TlsOptions
from pytriton.client.exceptions import PyTritonClientInvalidUrlError
from pytriton.typed.multipart import parse_multipart

PROBLEM = {
    "status": 422,
    "title": "Unprocessable Content",
    "detail": "The request body is invalid",
    "errors": [{"pointer": "#/top_k", "detail": "Expected `int`, got `str`"}],
}


class Server(ThreadingHTTPServer):
    """Has one behavior for each path."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.connections = 0
        self.cancelled = threading.Event()
        self.may_answer = threading.Event()

    def get_request(self) -> Any:
        self.connections += 1
        return super().get_request()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._send(200, "application/json", b'{"openapi": "3.1.0", "paths": {}}')

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.path, dict(self.headers.items()), body))
        getattr(self, f"serve_{self.path.strip('/').replace('/', '_')}")(body)

    def serve_predict(self, body: bytes) -> None:
        self._send(200, "application/json", b'{"answer": [1, "\xc3\xa9"]}')

    serve_my_route = serve_predict

    def serve_picture(self, body: bytes) -> None:
        self._send(200, "image/png", b"\x89PNG")

    def serve_refused(self, body: bytes) -> None:
        self._send(422, "application/problem+json", json.dumps(PROBLEM).encode())

    def serve_gateway(self, body: bytes) -> None:
        self._send(502, "text/html", b"<h1>Bad Gateway</h1>")

    def serve_moved(self, body: bytes) -> None:
        self._send(307, "text/plain", b"elsewhere", Location="/predict")

    def serve_slow(self, body: bytes) -> None:
        self.server.may_answer.wait(60)
        self._send(200, "application/json", b"null")

    def serve_broken(self, body: bytes) -> None:
        self.close_connection = True

    def serve_words(self, body: bytes) -> None:
        self._stream([b'data: "one"\n\n', b'data: {"n"', b": 2}\n\n"])

    def serve_failing(self, body: bytes) -> None:
        self._stream(
            [
                b'data: "one"\n\n',
                b'event: error\ndata: {"status": 409, "title": "Conflict", "detail": "stopped"}\n\n',
            ]
        )

    def serve_cut(self, body: bytes) -> None:
        self._stream([b'data: "one"\n\n', b"data: "])

    def serve_endless(self, body: bytes) -> None:
        def items() -> Iterator[bytes]:
            while True:
                yield b'data: "tick"\n\n'
                time.sleep(0.01)

        try:
            self._stream(items())
        except OSError:
            self.server.cancelled.set()
        self.close_connection = True

    def _stream(self, chunks: Any) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for one in chunks:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(one), one))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def _send(self, status: int, kind: str, body: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def running(tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    with Server() as one:
        if tls is not None:
            one.socket = tls.wrap_socket(one.socket, server_side=True)
        thread = threading.Thread(target=one.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield one
        finally:
            one.shutdown()
            thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    with running() as one:
        yield one


class Client:
    """Both kinds of client behind one interface: `call` and `items`."""

    def __init__(self, kind: str, url: str, name: str, **options: Any) -> None:
        self.kind, self.arguments, self.options = kind, (url, name), options

    def call(self, *body: Any, **arguments: Any) -> Any:
        if self.kind == "sync":
            with ApiClient(*self.arguments, **self.options) as client:
                return client(*body, **arguments)

        async def call() -> Any:
            async with AsyncApiClient(*self.arguments, **self.options) as client:
                return await client(*body, **arguments)

        return asyncio.run(call())

    def items(self, count: int = 100, **arguments: Any) -> list[Any]:
        """Return the items received from a stream, and the exception that ended it."""
        found: list[Any] = []

        async def stream() -> None:
            async with AsyncApiClient(*self.arguments, **self.options) as client:
                items = client.stream(**arguments)
                try:
                    async for one in items:
                        found.append(one)
                        if len(found) == count:
                            break
                finally:
                    await items.aclose()

        try:
            if self.kind == "async":
                asyncio.run(stream())
            else:
                with ApiClient(*self.arguments, **self.options) as client:
                    for one in client.stream(**arguments):
                        found.append(one)
                        if len(found) == count:
                            break
        except (ApiError, OSError) as error:
            found.append(error)
        return found


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@dataclass
class Point:
    x: float


def test_arguments_are_sent_as_json(server: Server, kind: str) -> None:
    arguments: dict[str, Any] = {
        "text": "é",
        "point": Point(1.5),
        "array": np.array([[1, 2]], np.int64),
        "number": np.float32(0.5),
        "nested": {"data": b"\x00"},
    }
    client = Client(kind, server.url, "predict", headers={"X-Mine": "1"}, access_token="secret")
    assert client.call(**arguments) == {"answer": [1, "é"]}
    path, headers, body = server.requests[0]
    assert path == "/predict"
    assert headers["Content-Type"] == "application/json"
    assert (headers["X-Mine"], headers["triton-access-token"]) == ("1", "secret")
    assert json.loads(body) == {
        "text": "é",
        "point": {"x": 1.5},
        "array": [[1, 2]],
        "number": 0.5,
        "nested": {"data": "AA=="},
    }


@pytest.mark.parametrize(
    ("body", "kind_of_body", "sent"),
    [
        (Point(2.0), "application/json", b'{"x":2.0}'),
        ({"a b": 1}, "application/json", b'{"a b":1}'),
        ([1, 2], "application/json", b"[1,2]"),
        (b"\x00\x01", "application/octet-stream", b"\x00\x01"),
        (io.BytesIO(b"file"), "application/octet-stream", b"file"),
    ],
)
def test_a_whole_body_is_sent_unchanged(
    server: Server, kind: str, body: Any, kind_of_body: str, sent: bytes
) -> None:
    if isinstance(body, io.BytesIO):
        body.seek(0)
    Client(kind, server.url, "predict").call(body)
    assert server.requests[0][1]["Content-Type"] == kind_of_body
    assert server.requests[0][2] == sent


def test_files_are_uploaded(server: Server, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "cat é.jpg"
    path.write_bytes(b"\xff\xd8")
    with open(path, "rb") as file:
        Client(kind, server.url, "predict").call(
            image=file, more=[b"one", b"two"], text="é", top_k=2, tags=["a"]
        )
    _, headers, body = server.requests[0]
    form = parse_multipart(body, headers["Content-Type"])
    assert [(part.name, bytes(part.data)) for part in form] == [
        ("image", b"\xff\xd8"),
        ("more", b"one"),
        ("more", b"two"),
        ("text", "é".encode()),
        ("top_k", b"2"),
        ("tags", b'["a"]'),
    ]
    assert form[0].filename == "cat é.jpg"


def test_unsendable_arguments_are_refused_immediately(server: Server, kind: str) -> None:
    client = Client(kind, server.url, "predict")
    with pytest.raises(TypeError, match="object cannot be sent"):
        client.call(x=object())
    with pytest.raises(TypeError, match="either the whole body or arguments"):
        client.call({"x": 1}, y=2)
    assert not server.requests


def test_bytes_are_returned_unchanged(server: Server, kind: str) -> None:
    assert Client(kind, server.url, "picture").call() == b"\x89PNG"


def test_a_route_replaces_the_name(server: Server, kind: str) -> None:
    Client(kind, f"{server.url}/", "/my/route").call()
    assert server.requests[0][0] == "/my/route"


def test_refusals_contain_the_problem_details(server: Server, kind: str) -> None:
    with pytest.raises(ApiError) as refused:
        Client(kind, server.url, "refused").call()
    assert refused.value.status == 422
    assert refused.value.problem == PROBLEM
    assert "#/top_k: Expected `int`, got `str`" in str(refused.value)
    copy = pickle.loads(pickle.dumps(refused.value))
    assert (copy.status, copy.problem) == (422, PROBLEM)
    with pytest.raises(ApiError, match="502 <h1>Bad Gateway"):
        Client(kind, server.url, "gateway").call()
    with pytest.raises(ApiError, match="307"):
        Client(kind, server.url, "moved").call()


def test_a_stream_yields_its_items(server: Server, kind: str) -> None:
    assert Client(kind, server.url, "words").items() == ["one", {"n": 2}]
    assert Client(kind, server.url, "words").call() == ["one", {"n": 2}]


def test_a_stream_can_fail(server: Server, kind: str) -> None:
    first, error = Client(kind, server.url, "failing").items()
    assert first == "one"
    assert isinstance(error, ApiError)
    assert (error.status, error.problem["detail"]) == (409, "stopped")
    first, error = Client(kind, server.url, "cut").items()
    assert first == "one"
    assert isinstance(error, ConnectionError)
    (error,) = Client(kind, server.url, "refused").items()
    assert isinstance(error, ApiError)


def test_a_closed_stream_is_cancelled(server: Server, kind: str) -> None:
    assert Client(kind, server.url, "endless").items(3) == ["tick"] * 3
    assert server.cancelled.wait(60)


def test_a_sent_request_is_not_retried(server: Server, kind: str) -> None:
    with pytest.raises(ConnectionError, match="/broken"):
        Client(kind, server.url, "broken").call()
    assert len(server.requests) == 1


def test_a_silent_server_causes_a_timeout(server: Server, kind: str) -> None:
    with pytest.raises(TimeoutError, match="/slow"):
        Client(kind, server.url, "slow", timeout_s=1.0).call()
    eventually(lambda: server.requests, "the request has come")
    assert len(server.requests) == 1
    server.may_answer.set()
    assert Client(kind, server.url, "slow", timeout_s=None).call() is None


def test_a_missing_server_is_a_connection_error(kind: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(ConnectionError, match=str(port)):
            Client(kind, f"127.0.0.1:{port}", "predict").call()


def test_threads_share_a_client_and_its_connections(server: Server) -> None:
    with ApiClient(server.url, "predict") as client, ThreadPoolExecutor(8) as threads:
        assert len([*threads.map(lambda number: client(x=number), range(200))]) == 200
        with pytest.raises(ApiError):
            ApiClient(server.url, "refused")()
    assert len(server.requests) == 201
    assert server.connections <= 9


def test_connections_are_reused_after_errors_and_streams(server: Server) -> None:
    with ApiClient(server.url, "words") as client:
        for _ in range(3):
            assert [*client.stream()] == ["one", {"n": 2}]
    with ApiClient(server.url, "refused") as client:
        for _ in range(3):
            with pytest.raises(ApiError):
                client()
    assert server.connections == 2


def test_the_openapi_document_can_be_read(server: Server) -> None:
    with ApiClient(server.url, "predict") as client:
        assert client.openapi()["openapi"] == "3.1.0"


@pytest.mark.parametrize("url", ["grpc://localhost", "ftp://x", "", "http://u@host"])
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(PyTritonClientInvalidUrlError):
        ApiClient(url, "predict")
    with pytest.raises(PyTritonClientInvalidUrlError):
        AsyncApiClient(url, "predict")


def test_tls_options_match_the_other_clients(kind: str, tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with running(context) as server:
        url = server.url.replace("http", "https")
        tls = TlsOptions(ca_certificate=tmp_path / "ca.pem")
        assert Client(kind, url, "picture", tls=tls).call() == b"\x89PNG"
        with pytest.raises(ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            Client(kind, url, "picture").call()
