"""The page's addresses, and the documents behind them."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import json
import shlex
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from xml.etree import ElementTree

import httpx
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from support.models.figures import model, snapshot, work

from pytriton.dispatcher.page import routes
from pytriton.dispatcher.page.history import POINTS, History
from pytriton.dispatcher.page.openapi import document
from pytriton.dispatcher.page.routes import HEADERS, Page, Sources
from pytriton.dispatcher.page.snippets import snippets
from pytriton.dispatcher.page.tensors import example_request, inputs
from pytriton.dispatcher.page.view import bars, model_view, overview
from pytriton.ipc.messages.answers import InstanceInfo, ModelInfo, ServerInfo, Status
from pytriton.ipc.messages.figures import Figures, Histogram
from pytriton.ipc.messages.requests import RequestEntry, Requests

HOSTILE = "<script>alert(1)</script>"
CONFIG: dict[str, Any] = {
    "max_batch_size": 8,
    "input": [
        {"name": "x", "data_type": "TYPE_FP32", "dims": ["-1", "3"]},
        {"name": "text", "data_type": "TYPE_STRING", "dims": [1], "optional": True},
    ],
    "output": [{"name": "y", "data_type": "TYPE_INT64", "dims": [1]}],
}
STREAM: dict[str, Any] = {
    "input": [{"name": "prompt", "data_type": "TYPE_STRING", "dims": [1]}],
    "output": [],
    "model_transaction_policy": {"decoupled": True},
}
LOG = [
    json.dumps({"event": "worker started", "level": "info", "timestamp": "1"}),
    json.dumps({"event": HOSTILE, "level": "error", "exception": "Traceback", "timestamp": "2"}),
    "not a record",
]


def info(name: str, config: dict[str, Any] = CONFIG) -> ModelInfo:
    instance = InstanceInfo(0, "ready", 1, restarts=2, last_exit="signal 11")
    return ModelInfo(name, 1, "ready", [instance], config=config)


def status(*models: ModelInfo, http_url: str = "http://127.0.0.1:8000") -> Status:
    server = ServerInfo("ready", 2, http_url=http_url)
    return Status("1.0", 1, "python", "run", "ready", 1000.0, server, list(models))


class Daemon:
    """What the page asks: chosen by the test."""

    def __init__(self) -> None:
        self.status = status(info("digits"), info(HOSTILE))
        self.figures = snapshot(1010, model("digits", work(50)), model(HOSTILE, work(1)))
        self.taken = 0
        self.lines = LOG
        self.sources = Sources(
            self.take, self.tell, self.log, self.requests, self.is_owner, self.headers
        )
        self.page = Page(self.sources)

    async def take(self) -> Figures:
        self.taken += 1
        return self.figures

    async def tell(self) -> Status:
        return self.status

    def log(self, name: str, lines: int) -> list[str]:
        return self.lines[-lines:]

    async def requests(self, name: str) -> Requests | None:
        slow = RequestEntry(1.0, HOSTILE, name, 1, 0, "ok", None, 48_200_000, 1, 3, 4, None)
        failed = msgspec.structs.replace(slow, id="order-18", status="callable")
        return None if name == "digits" else Requests(name, False, "", 0, 0, [slow], [failed])

    def is_owner(self, authorization: str) -> bool:
        return authorization == "Bearer right"

    def headers(self) -> dict[str, str]:
        return {"triton-access-token": "right"}

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        app = web.Application()
        app.add_routes(self.page.routes())
        server = TestServer(app)
        await server.start_server(auto_decompress=False)  # as the operations server has it
        async with server:
            url = str(server.make_url("/"))
            async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
                yield client

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        async def run() -> httpx.Response:
            async with self.client() as client:
                return await client.request(method, path, **more)

        return asyncio.run(run())


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


@pytest.mark.parametrize(
    "path",
    [
        "/page/",
        "/page/page.js",
        "/page/page.css",
        "/page/icon.svg",
        "/page/view.json",
        "/favicon.ico",
    ],
)
def test_every_answer_lets_in_nothing_from_elsewhere(daemon: Daemon, path: str) -> None:
    answer = daemon.ask("GET", path)
    assert answer.status_code == 200
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    assert "unsafe" not in answer.headers["content-security-policy"]


def test_the_page_has_no_code_and_no_style_in_it(daemon: Daemon) -> None:
    text = daemon.ask("GET", "/page/").text
    assert text.count("<script") == text.count('<script src="page.js" defer></script>') == 1
    assert "<style" not in text
    assert "style=" not in text
    assert " on" + "click=" not in text
    assert "innerHTML" not in daemon.ask("GET", "/page/page.js").text


def test_browsers_find_an_icon(daemon: Daemon) -> None:
    """Without one they complain of a 404 in their console."""
    assert (
        '<link rel="icon" type="image/svg+xml" href="icon.svg">' in daemon.ask("GET", "/page/").text
    )
    for path in ("/page/icon.svg", "/favicon.ico"):
        answer = daemon.ask("GET", path)
        assert answer.headers["content-type"] == "image/svg+xml"
        drawn = {one.tag.rpartition("}")[2] for one in ElementTree.fromstring(answer.text).iter()}
        assert drawn == {"svg", "rect", "path"}  # no script, no style


@pytest.mark.parametrize("path", ["/page/nothing", "/page/../routes.py", "/page/%2e%2e/routes.py"])
def test_other_files_are_not_there(daemon: Daemon, path: str) -> None:
    assert daemon.ask("GET", path).status_code == 404


def test_the_root_leads_to_the_page(daemon: Daemon) -> None:
    answer = daemon.ask("GET", "/")
    assert (answer.status_code, answer.headers["location"]) == (307, "/page/")


def test_all_models_are_told_with_their_plots(daemon: Daemon) -> None:
    found = daemon.ask("GET", "/page/view.json").json()
    assert "ready, pid 1" in found["headline"]
    assert [(one["model"], one["instance"]) for one in found["rows"]] == [
        ("digits", ""),
        ("digits", "0"),
        (HOSTILE, ""),
        (HOSTILE, "0"),
    ]
    assert [len(one["points"]) for one in found["rows"]] == [1, 0, 1, 0]


def test_many_who_watch_cost_one_snapshot() -> None:
    daemon = Daemon()

    async def run() -> None:
        async with daemon.client() as client:
            await asyncio.gather(*(client.get("/page/view.json") for _ in range(10)))

    asyncio.run(run())
    assert daemon.taken == 1


def test_one_model_is_told_with_its_errors_and_its_log(daemon: Daemon) -> None:
    daemon.ask("GET", "/page/view.json")
    found = daemon.ask("GET", "/page/model.json", params={"name": HOSTILE}).json()
    assert found["name"] == HOSTILE
    assert [one["event"] for one in found["errors"]] == [HOSTILE]
    assert found["ends"] == [{"instance": 0, "last_exit": "signal 11", "restarts": 2}]
    assert [one["event"] for one in found["log"]] == ["worker started", HOSTILE, "not a record"]
    assert found["histograms"]["call_s"][0][1] == 1
    assert set(found["snippets"]) == {"curl", "tritonclient", "pytriton"}
    assert [(one["id"], one["compute_ns"]) for one in found["slowest"]] == [(HOSTILE, 48_200_000)]
    assert [(one["id"], one["status"]) for one in found["failed"]] == [("order-18", "callable")]
    found = daemon.ask("GET", "/page/model.json", params={"name": "digits"}).json()
    assert (found["slowest"], found["failed"]) == ([], [])


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "view.json"), ("GET", "model.json"), ("GET", "openapi.json"), ("POST", "infer")],
)
def test_a_daemon_that_is_busy_is_said(daemon: Daemon, method: str, path: str) -> None:
    async def busy() -> Any:
        raise asyncio.TimeoutError

    daemon.page = Page(dataclasses.replace(daemon.sources, snapshot=busy, status=busy))
    headers = {"authorization": "Bearer right"}
    answer = daemon.ask(method, f"/page/{path}?name=digits", headers=headers)
    assert answer.status_code == 503
    assert "busy" in answer.json()["error"]


def test_what_is_no_unicode_in_a_log_is_escaped(daemon: Daemon) -> None:
    daemon.lines = ['{"event": "cannot open \\udcff", "level": "error"}']
    answer = daemon.ask("GET", "/page/model.json?name=digits")
    assert answer.status_code == 200
    assert r"cannot open \udcff" in answer.text


def test_a_model_that_is_not_there_is_no_page(daemon: Daemon) -> None:
    answer = daemon.ask("GET", "/page/model.json", params={"name": "nobody"})
    assert (answer.status_code, answer.json()["error"]) == (
        404,
        "no model 'nobody' is registered",
    )


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
    assert "pytriton-daemon token" in answer.json()["error"]


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
    monkeypatch.setattr(routes, "_MOST_ASKED", 3)
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
    found = model_view("talk", daemon.status, History(), [], None)
    assert found is not None
    assert (found["decoupled"], found["request"]) == (True, {"prompt": "text"})


@pytest.mark.parametrize(
    ("name", "most"), [("_ANSWER_BYTES", 10), ("_STREAM_S", -1.0)], ids=["too large", "too long"]
)
def test_of_a_long_stream_the_beginning_is_shown(
    daemon: Daemon, server: str, monkeypatch: pytest.MonkeyPatch, name: str, most: float
) -> None:
    daemon.status = status(info("talk", STREAM), http_url=server)
    monkeypatch.setattr(f"pytriton.dispatcher.page.asking.{name}", most)
    headers = {"authorization": "Bearer right"}
    answer = daemon.ask("POST", "/page/infer?name=talk", content=b"{}", headers=headers)
    assert answer.text.startswith('{"path": ')
    assert answer.text.endswith("the page shows no more of it\n")


def test_what_cannot_be_written_as_the_model_takes_it_is_said(daemon: Daemon, server: str) -> None:
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


def test_plots_keep_the_last_minutes_and_forget_models_that_are_gone() -> None:
    history = History()
    for second in range(POINTS + 5):
        history.add(snapshot(1010 + second, model("a", work(second)), model("b", work(1))))
    assert len(history.points("a")) == POINTS
    history.add(snapshot(2000, model("a", work(1))))
    assert history.points("b") == []
    assert overview(History())["headline"] == "starting"


def test_bars_are_few_and_have_all_observations() -> None:
    buckets = [0, 0, *range(1, 101), 0]
    found = bars(Histogram(1.0, buckets), [float(number) for number in range(len(buckets) - 1)])
    assert len(found) <= 24
    assert sum(count for _, count in found) == sum(buckets)
    assert bars(Histogram(), [1.0]) == []
    assert bars(Histogram(1.0, [0, 3]), [1.0]) == [(1.0, 3)]


def test_a_model_without_figures_has_no_bars() -> None:
    found = model_view("digits", status(info("digits")), History(), [], None)
    assert found is not None
    assert found["histograms"] == {}
    assert model_view("nobody", status(), History(), [], None) is None


def test_an_example_fits_what_is_declared() -> None:
    assert [one.name for one in inputs(CONFIG)] == ["x", "text"]
    assert example_request(CONFIG) == {
        "inputs": [{"name": "x", "shape": [1, 1, 3], "datatype": "FP32", "data": [0.0] * 3}]
    }
    huge = {"input": [{"name": "x", "data_type": "TYPE_UINT8", "dims": [1000, 1000]}]}
    assert example_request(huge)["inputs"][0]["data"] == []


def test_snippets_can_be_run_as_they_are() -> None:
    found = snippets("it's", CONFIG, "http://127.0.0.1:8000")
    for text in (found["tritonclient"], found["pytriton"]):
        compile(text, "snippet", "exec")
    assert "http://127.0.0.1:8000/v2/models/it%27s/infer" in shlex.split(found["curl"])
    half = {"input": [{"name": "x", "data_type": "TYPE_BF16", "dims": [1]}], "output": []}
    assert set(snippets("h", half, "http://h")) == {"tritonclient", "pytriton"}  # JSON has no BF16
    assert set(snippets("s", STREAM, "http://h")) == {"curl"}
    assert "generate_stream" in snippets("s", STREAM, "http://h")["curl"]
    assert snippets("s", CONFIG, "") == {}


def test_the_document_of_the_api_has_every_model() -> None:
    models = [info("digits"), info(HOSTILE), info("stream", STREAM)]
    found = document(models, "http://127.0.0.1:8000", "1.0")
    assert found["openapi"] == "3.1.0"
    assert "/v2/models/digits/infer" in found["paths"]
    assert "/v2/models/%3Cscript%3Ealert%281%29%3C%2Fscript%3E/infer" in found["paths"]
    assert "/v2/models/stream/generate_stream" in found["paths"]
    asked = found["paths"]["/v2/models/digits/infer"]["post"]["requestBody"]
    (media,) = asked["content"].values()
    assert media["example"] == example_request(CONFIG)
    tensors = media["schema"]["properties"]["inputs"]["items"]["oneOf"]
    names = [one["properties"]["name"]["const"] for one in tensors]
    assert names == ["x", "text"]
    assert "servers" not in document([], "", "1.0")
