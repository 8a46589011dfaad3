"""Requests that the page passes on to tritonserver: with which rights, in which form, with which bounds."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from fakes.dashboard_daemon import STREAM, Daemon, info, status

from pytriton.dispatcher.telemetry.dashboard import routes
from pytriton.dispatcher.telemetry.dashboard.history import History
from pytriton.dispatcher.telemetry.dashboard.model_view import model_view
from pytriton.dispatcher.telemetry.dashboard.routes import Page


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


class _Server(BaseHTTPRequestHandler):
    """Answers with what it was asked."""

    size = 0

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        said = {
            "path": self.path,
            "body": body.decode(),
            "token": self.headers.get("triton-access-token"),
        }
        text = json.dumps(said).encode().ljust(self.size)
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(_Server, "size", 0)
    made = ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{made.server_port}"
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.mark.parametrize("authorization", ["", "Bearer wrong", "right"])
def test_without_the_token_nothing_is_asked(daemon: Daemon, authorization: str) -> None:
    headers = {"authorization": authorization} if authorization else {}
    answer = daemon.ask("POST", "/page/infer?name=digits", content=b"{}", headers=headers)
    assert answer.status_code == 401
    assert "pytriton-daemon access-token" in answer.json()["error"]


def test_a_request_is_passed_on_with_the_rights_of_the_daemon(daemon: Daemon, server: str) -> None:
    daemon.status = status(info("digits"), http_url=server)
    answer = daemon.ask(
        "POST", "/page/infer", params={"name": "a/../b"}, content=b'{"inputs": []}',
        headers={"authorization": "Bearer right"},
    )  # fmt: skip
    assert answer.json() == {
        "path": "/v2/models/a%2F..%2Fb/infer",
        "body": '{"inputs": []}',
        "token": "right",
    }


def test_models_that_hang_hold_up_neither_the_page_nor_others(
    daemon: Daemon, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits has a thread of its own; the event loop's pool has as few as the machine has cores."""
    monkeypatch.setattr(routes, "_MAX_ASKED", 3)
    daemon.page = Page(daemon.sources)
    may_answer, asked = threading.Event(), threading.Semaphore(0)

    def hangs(*arguments: Any) -> tuple[int, bytes, str]:
        asked.release()
        assert may_answer.wait(60)
        return 200, b"{}", "application/json"

    monkeypatch.setattr(routes, "passed_on", hangs)
    headers = {"authorization": "Bearer right"}

    async def run() -> list[int]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        async with daemon.client() as client:

            def ask() -> Any:
                return client.post(
                    "/page/infer?name=digits", content=b"{}", headers=headers, timeout=60
                )

            hanging = [asyncio.ensure_future(ask()) for _ in range(3)]
            for _ in hanging:
                while not asked.acquire(blocking=False):
                    await asyncio.sleep(0.01)
            there = await client.get("/page/model.json?name=digits", timeout=60)
            seen = [there.status_code]
            seen.append((await ask()).status_code)
            may_answer.set()
            seen += [(await one).status_code for one in hanging]
            return [*seen, (await ask()).status_code]

    assert asyncio.run(run()) == [200, 429, 200, 200, 200, 200]


def test_a_stream_is_asked_for_as_one_and_shown_as_it_comes(daemon: Daemon, server: str) -> None:
    daemon.status = status(info("talk", STREAM), http_url=server)
    headers = {"authorization": "Bearer right"}
    asked = b'{"prompt": "text"}'
    answer = daemon.ask("POST", "/page/infer?name=talk", content=asked, headers=headers)
    assert answer.json()["path"] == "/v2/models/talk/generate_stream"
    assert answer.json()["body"] == asked.decode()
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    found = model_view("talk", daemon.status, History(), None)
    assert found is not None
    assert (found["decoupled"], found["request"]) == (True, {"prompt": "text"})


@pytest.mark.parametrize(
    ("name", "most"), [("_ANSWER_BYTES", 10), ("_STREAM_S", -1.0)], ids=["too large", "too long"]
)
def test_of_a_long_stream_the_beginning_is_shown(
    daemon: Daemon, server: str, monkeypatch: pytest.MonkeyPatch, name: str, most: float
) -> None:
    daemon.status = status(info("talk", STREAM), http_url=server)
    monkeypatch.setattr(f"pytriton.dispatcher.telemetry.dashboard.try_it.{name}", most)
    headers = {"authorization": "Bearer right"}
    answer = daemon.ask("POST", "/page/infer?name=talk", content=b"{}", headers=headers)
    assert answer.text.startswith('{"path": ')
    assert answer.text.endswith("the rest is not shown\n")


def test_unencodable_values_are_reported(daemon: Daemon, server: str) -> None:
    half = {"input": [{"name": "x", "data_type": "TYPE_FP16", "dims": [1]}], "output": []}
    daemon.status = status(info("half", half), http_url=server)
    given = {"name": "x", "shape": [1], "datatype": "FP16", "data": ["one"]}
    answer = daemon.ask(
        "POST", "/page/infer?name=half", content=json.dumps({"inputs": [given]}),
        headers={"authorization": "Bearer right"},
    )  # fmt: skip
    assert answer.status_code == 400
    assert "input x" in answer.json()["error"]


def test_too_much_is_refused_both_ways(
    daemon: Daemon, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.status = status(info("digits"), http_url=server)
    headers = {"authorization": "Bearer right"}
    answer = daemon.ask("POST", "/page/infer", content=b"x" * (1 << 21), headers=headers)
    assert answer.status_code == 413
    monkeypatch.setattr(_Server, "size", 5 << 20)
    answer = daemon.ask("POST", "/page/infer", content=b"{}", headers=headers)
    assert (answer.status_code, "use a client" in answer.text) == (413, True)


@pytest.mark.parametrize(
    ("encoding", "body", "code"),
    [
        ("gzip", gzip.compress(b"{}", mtime=0), 200),
        ("gzip", gzip.compress(bytes(2 << 20), mtime=0), 413),
        ("gzip", b"{}", 400),
        ("br", b"{}", 415),
    ],
)
def test_compressed_requests(
    daemon: Daemon, server: str, encoding: str, body: bytes, code: int
) -> None:
    daemon.status = status(info("digits"), http_url=server)
    headers = {"authorization": "Bearer right", "content-encoding": encoding}
    answer = daemon.ask("POST", "/page/infer?name=digits", content=body, headers=headers)
    assert answer.status_code == code
    assert code != 200 or answer.json()["body"] == "{}"


@pytest.mark.parametrize(
    ("http_url", "code"), [("", 409), ("http://127.0.0.1:1", 502)], ids=["no HTTP", "nobody there"]
)
def test_a_server_that_cannot_be_asked_is_said(daemon: Daemon, http_url: str, code: int) -> None:
    daemon.status = status(info("digits"), http_url=http_url)
    headers = {"authorization": "Bearer right"}
    answer = daemon.ask("POST", "/page/infer?name=digits", content=b"{}", headers=headers)
    assert answer.status_code == code
