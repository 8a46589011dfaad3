"""Requests that the dashboard forwards to tritonserver: access, formats and limits."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
from fakes.dashboard_daemon import STREAM, Daemon, info, status

from pytriton.dispatcher.telemetry.dashboard import routes
from pytriton.dispatcher.telemetry.dashboard.history import History
from pytriton.dispatcher.telemetry.dashboard.model_view import model_view
from pytriton.dispatcher.telemetry.dashboard.routes import Page
from pytriton.dispatcher.telemetry.dashboard.try_it import (
    _JSON_LENGTH,
    UnusableRequestError,
    decode_answer,
    encode_request,
)


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


OWNER = {"authorization": "Bearer right"}


class _Server(BaseHTTPRequestHandler):
    """Answers with the request that it received."""

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


def infer(daemon: Daemon, body: bytes = b"{}", name: str = "digits", **headers: str) -> Any:
    """Send a request to a model as the owner; return the answer."""
    return daemon.ask(
        "POST", "/page/infer", params={"name": name}, content=body, headers={**OWNER, **headers}
    )


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
def test_without_the_token_no_request_is_sent(daemon: Daemon, authorization: str) -> None:
    headers = {"authorization": authorization} if authorization else {}
    answer = daemon.ask("POST", "/page/infer?name=digits", content=b"{}", headers=headers)
    assert answer.status_code == 401
    assert "pytriton-daemon access-token" in answer.json()["error"]


def test_a_request_is_forwarded_with_the_daemon_s_access(daemon: Daemon, server: str) -> None:
    daemon.status = status(info("digits"), http_url=server)
    assert infer(daemon, b'{"inputs": []}', "a/../b").json() == {
        "path": "/v2/models/a%2F..%2Fb/infer",
        "body": '{"inputs": []}',
        "token": "right",
    }


def test_hanging_models_delay_neither_the_page_nor_others(
    daemon: Daemon, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request waits in its own thread, because the event loop's pool has as few threads as the machine has cores."""
    monkeypatch.setattr(routes, "_MAX_CONCURRENT", 3)
    daemon.page = Page(daemon.sources)
    may_answer, asked = threading.Event(), threading.Semaphore(0)

    def hangs(*arguments: Any) -> tuple[int, bytes, str]:
        asked.release()
        assert may_answer.wait(60)
        return 200, b"{}", "application/json"

    monkeypatch.setattr(routes, "forward", hangs)

    async def run() -> list[int]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        async with daemon.client() as client:

            def ask() -> Any:
                return client.post(
                    "/page/infer?name=digits", content=b"{}", headers=OWNER, timeout=60
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


def test_a_stream_is_requested_and_shown(daemon: Daemon, server: str) -> None:
    daemon.status = status(info("talk", STREAM), http_url=server)
    asked = b'{"prompt": "text"}'
    answer = infer(daemon, asked, "talk")
    assert answer.json()["path"] == "/v2/models/talk/generate_stream"
    assert answer.json()["body"] == asked.decode()
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    found = model_view("talk", daemon.status, History(), None)
    assert found is not None
    assert (found["decoupled"], found["request"]) == (True, {"prompt": "text"})


@pytest.mark.parametrize(
    ("name", "most"),
    [("_MAX_ANSWER_BYTES", 10), ("_STREAM_LIMIT_S", -1.0)],
    ids=["too large", "too long"],
)
def test_a_long_stream_is_truncated(
    daemon: Daemon, server: str, monkeypatch: pytest.MonkeyPatch, name: str, most: float
) -> None:
    daemon.status = status(info("talk", STREAM), http_url=server)
    monkeypatch.setattr(f"pytriton.dispatcher.telemetry.dashboard.try_it.{name}", most)
    answer = infer(daemon, name="talk")
    assert answer.text.startswith('{"path": ')
    assert answer.text.endswith("the rest is not shown\n")


def test_unencodable_values_are_reported(daemon: Daemon, server: str) -> None:
    half = {"input": [{"name": "x", "data_type": "TYPE_FP16", "dims": [1]}], "output": []}
    daemon.status = status(info("half", half), http_url=server)
    given = {"name": "x", "shape": [1], "datatype": "FP16", "data": ["one"]}
    answer = infer(daemon, json.dumps({"inputs": [given]}).encode(), "half")
    assert answer.status_code == 400
    assert "input x" in answer.json()["error"]


def test_requests_and_answers_have_size_limits(
    daemon: Daemon, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.status = status(info("digits"), http_url=server)
    assert infer(daemon, b"x" * (1 << 21)).status_code == 413
    monkeypatch.setattr(_Server, "size", 5 << 20)
    answer = infer(daemon)
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
    answer = infer(daemon, body, **{"content-encoding": encoding})
    assert answer.status_code == code
    assert code != 200 or answer.json()["body"] == "{}"


@pytest.mark.parametrize(
    ("http_url", "code"), [("", 409), ("http://127.0.0.1:1", 502)], ids=["no HTTP", "nobody there"]
)
def test_an_unreachable_server_is_reported(daemon: Daemon, http_url: str, code: int) -> None:
    daemon.status = status(info("digits"), http_url=http_url)
    assert infer(daemon).status_code == code


# ── half-precision numbers and bytes ─────────────────────────────────────────────────────────────


def config(datatype: str) -> dict[str, Any]:
    tensor = {"data_type": f"TYPE_{datatype}", "dims": [-1]}
    return {"input": [{"name": "x", **tensor}], "output": [{"name": "y", **tensor}]}


def typed(datatype: str, data: Any, **more: Any) -> bytes:
    tensor = {"name": "x", "shape": [2], "datatype": datatype, "data": data}
    return json.dumps({"inputs": [tensor], **more}).encode()


def parts(sent: bytes, headers: dict[str, str]) -> tuple[dict[str, Any], bytes]:
    length = int(headers[_JSON_LENGTH])
    return json.loads(sent[:length]), sent[length:]


def test_half_precision_numbers_are_sent_as_bytes() -> None:
    head, blob = parts(*encode_request(typed("FP16", [[1.5], [-2]]), config("FP16")))
    (tensor,) = head["inputs"]
    assert tensor == {
        "name": "x",
        "shape": [2],
        "datatype": "FP16",
        "parameters": {"binary_data_size": 4},
    }
    assert np.frombuffer(blob, np.float16).tolist() == [1.5, -2.0]
    assert head["outputs"] == [{"name": "y", "parameters": {"binary_data": True}}]


def test_bf16_is_rounded_as_in_numpy() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = [0.1, 1.00390625, 1.01171875, -3.3e38, 1e-40, math.inf, math.nan, 65536.7]
    _, blob = parts(*encode_request(typed("BF16", values), config("BF16")))
    wanted = np.array(values, np.float32).astype(ml_dtypes.bfloat16)
    assert blob[:-4] == wanted.tobytes()[:-4]
    assert math.isnan(np.frombuffer(blob, ml_dtypes.bfloat16)[6])


@pytest.mark.parametrize(
    ("datatype", "data"),
    [("FP16", ["one"]), ("FP16", [1e9]), ("BF16", [None]), ("BF16", [1e39]), ("FP16", {"a": 1})],
)
def test_other_values_for_half_precision_are_refused(datatype: str, data: Any) -> None:
    with pytest.raises(UnusableRequestError, match=f"input x: .* numbers that fit {datatype}"):
        encode_request(typed(datatype, data), config(datatype))


@pytest.mark.parametrize(
    "body",
    [
        typed("FP32", [9007199254740993, 2]),
        b"no JSON",
        b"[1]",
        b'{"inputs": 7}',
        b"[" * 100_000,
        b'{"inputs": [7, {"datatype": ["FP16"], "data": 1}]}',
    ],
    ids=lambda body: repr(body[:20]),
)
def test_json_values_and_other_bodies_are_unchanged(body: bytes) -> None:
    assert encode_request(body, config("FP32")) == (body, {})


def test_selected_outputs_are_unchanged() -> None:
    body = typed("FP32", [1, 2], outputs=[{"name": "y"}])
    assert encode_request(body, config("STRING")) == (body, {})


def test_other_outputs_stay_json() -> None:
    both = config("FP32")
    both["output"].append({"name": "s", "data_type": "TYPE_STRING", "dims": [1]})
    head, blob = parts(*encode_request(typed("FP32", [1, 2]), both))
    assert blob == b""
    assert [one["parameters"]["binary_data"] for one in head["outputs"]] == [False, True]


def answer(datatype: str, blob: bytes) -> tuple[bytes, str]:
    output = {"name": "y", "datatype": datatype, "shape": [2]}
    plain = {"name": "n", "datatype": "INT64", "shape": [1], "data": [9007199254740993]}
    with_size = {**output, "parameters": {"binary_data_size": len(blob)}}
    head = json.dumps({"model_name": "m", "outputs": [plain, with_size]}).encode()
    return head + blob, str(len(head))


@pytest.mark.parametrize(
    ("datatype", "blob", "data"),
    [
        ("FP16", np.array([1.5, -2], np.float16).tobytes(), [1.5, -2.0]),
        ("BF16", b"\x80\x3f\x00\xc0", [1.0, -2.0]),
        ("BYTES", b"\3\0\0\0a<b\2\0\0\0\xff\xfe", ["a<b", {"base64": "//4="}]),
        ("BYTES", b"", []),
        ("BOOL", b"\1\0", [True, False]),
        ("INT8", b"\xff\x7f", [-1, 127]),
        ("UINT8", b"\xff\x7f", [255, 127]),
        ("INT16", np.array([-2, 3], np.int16).tobytes(), [-2, 3]),
        ("UINT16", np.array([65535, 3], np.uint16).tobytes(), [65535, 3]),
        ("INT32", np.array([-2, 3], np.int32).tobytes(), [-2, 3]),
        ("UINT32", np.array([1 << 31, 3], np.uint32).tobytes(), [1 << 31, 3]),
        ("INT64", np.array([-2, 3], np.int64).tobytes(), [-2, 3]),
        ("UINT64", np.array([1 << 63, 3], np.uint64).tobytes(), [1 << 63, 3]),
        ("FP32", np.array([0.5, -2], np.float32).tobytes(), [0.5, -2.0]),
        ("FP64", np.array([0.1, -2], np.float64).tobytes(), [0.1, -2.0]),
        ("NEW", b"\1\2", [{"base64": "AQI="}]),
    ],
)
def test_binary_outputs_are_shown_as_numbers_and_text(
    datatype: str, blob: bytes, data: list[Any]
) -> None:
    plain, output = json.loads(decode_answer(*answer(datatype, blob)))["outputs"]
    assert plain["data"] == [9007199254740993]
    assert output == {"name": "y", "datatype": datatype, "shape": [2], "data": data}


def test_json_answers_are_unchanged() -> None:
    assert decode_answer(b'{"error": "no"}', None) == b'{"error": "no"}'
