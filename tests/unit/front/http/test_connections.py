"""http/: connections, from the bytes of requests to those of answers, whatever the pieces and whoever answers."""

from __future__ import annotations

import gzip
import json
import random
import signal
import socket
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.front.process import Built, FrontProcess, running

ANSWERING = ("echo", "thread", "early")


def _head(line: str, headers: Sequence[str] = (), body: bytes = b"") -> bytes:
    length = [f"Content-Length: {len(body)}"] if body else []
    return "\r\n".join([f"{line} HTTP/1.1", "Host: h", *length, *headers, "", ""]).encode() + body


def _tensor(shape: list[int], datatype: str, data: Sequence[object]) -> bytes:
    tensor = {"name": "x", "shape": shape, "datatype": datatype, "data": list(data)}
    return json.dumps({"inputs": [tensor]}).encode()


def _json(values: Sequence[float] = (1, 2)) -> bytes:
    return _tensor([len(values)], "FP32", values)


def _post(model: str, body: bytes, *headers: str) -> bytes:
    return _head(f"POST /v2/models/{model}/infer", headers, body)


class Client:
    """Reads answers."""

    def __init__(self, front: FrontProcess) -> None:
        self.socket = front.connect()
        self._file = self.socket.makefile("rb")

    def send(self, data: bytes, sizes: Sequence[int] = ()) -> None:
        for size in sizes:
            self.socket.sendall(data[:size])
            data = data[size:]
        self.socket.sendall(data)

    def answer(self, *, head: bool = False) -> tuple[int, dict[str, str], bytes]:
        line = self._file.readline()
        assert line, "the connection has ended"
        headers = {}
        while (field := self._file.readline().strip()) != b"":
            name, _, value = field.decode().partition(": ")
            headers[name.lower()] = value
        size = 0 if head else int(headers.get("content-length", 0))
        return int(line.split()[1]), headers, self._file.read(size)

    def ends(self) -> bool:
        return self._file.read(1) == b""

    def close(self) -> None:
        self._file.close()
        self.socket.close()


def _ask(front: FrontProcess, request: bytes) -> tuple[int, dict[str, str], bytes]:
    client = Client(front)
    client.send(request)
    answer = client.answer()
    client.close()
    return answer


def _data(answer: tuple[int, dict[str, str], bytes]) -> Any:
    assert answer[0] == 200, answer
    return json.loads(answer[2])["outputs"][0]["data"]


def test_pipelined_requests_are_answered_in_order(front: FrontProcess) -> None:
    rng = random.Random(1)
    models = [rng.choice(ANSWERING) for _ in range(200)]
    client = Client(front)
    client.send(b"".join(_post(model, _json(values=[i])) for i, model in enumerate(models)))
    for i, model in enumerate(models):
        answer = client.answer()
        assert json.loads(answer[2])["model_name"] == model
        assert _data(answer) == [i]
    client.close()


@pytest.mark.parametrize("seed", range(10))
def test_requests_in_any_pieces(front: FrontProcess, seed: int) -> None:
    rng = random.Random(seed)
    requests = []
    for i in range(20):
        body = _json(values=[i, seed])
        kind = rng.choice(["plain", "chunked", "gzip", "deflate"])
        model = rng.choice(ANSWERING)
        if kind == "plain":
            requests.append(_post(model, body))
        elif kind == "chunked":
            cut = rng.randrange(1, len(body))
            chunks = b"".join(
                b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:cut], body[cut:])
            )
            line = f"POST /v2/models/{model}/infer"
            requests.append(_head(line, ["Transfer-Encoding: chunked"]) + chunks + b"0\r\n\r\n")
        else:
            packed = (gzip if kind == "gzip" else zlib).compress(body)
            requests.append(_post(model, packed, f"Content-Encoding: {kind}"))
    client = Client(front)
    client.send(b"".join(requests), [rng.randrange(1, 200) for _ in range(100)])
    assert [_data(client.answer()) for _ in requests] == [[i, seed] for i in range(20)]
    client.close()


@pytest.mark.parametrize("model", ANSWERING)
@pytest.mark.parametrize("wanted", [False, True])
def test_binary_tensors(front: FrontProcess, model: str, wanted: bool) -> None:
    values = np.random.default_rng(1).random(200_000, np.float32)
    request = {
        "inputs": [
            {"name": "x", "shape": [len(values)], "datatype": "FP32", "parameters": {"binary_data_size": values.nbytes}}
        ],
        "parameters": {"binary_data_output": wanted},
    }  # fmt: skip
    head = json.dumps(request).encode()
    length = f"Inference-Header-Content-Length: {len(head)}"
    status, headers, body = _ask(front, _post(model, head + values.tobytes(), length))
    assert status == 200
    if wanted:
        json_size = int(headers["inference-header-content-length"])
        assert headers["content-type"] == "application/octet-stream"
        assert np.array_equal(np.frombuffer(body[json_size:], np.float32), values)
    else:
        read = json.loads(body)["outputs"][0]["data"]
        assert np.array_equal(np.array(read, np.float32), values)


def test_a_reader_that_is_slow_gets_all_of_it(front: FrontProcess) -> None:
    values = np.arange(200_000, dtype=np.float32)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(60)
    client.connect(front.http)
    text = '{"inputs":[{"name":"x","shape":[200000],"datatype":"FP32","parameters":{"binary_data_size":800000}}],'
    head = (text + '"parameters":{"binary_data_output":true}}').encode()
    request = _post(
        "thread", head + values.tobytes(), f"Inference-Header-Content-Length: {len(head)}"
    )
    client.sendall(request + _head("GET /v2/nothing"))
    read = b""
    while b'"Not Found"' not in read[-100:]:
        read += client.recv(1000 if len(read) < 100_000 else 1 << 20)
    assert values.tobytes() in read
    client.close()


@pytest.mark.parametrize(
    ("request_bytes", "status", "said"),
    [
        (_head("GET /v2/nothing"), 404, "Not Found"),
        (_head("GET /v2/models/echo/infer"), 405, "Method Not Allowed"),
        (_post("unknown", _json()), 404, "Request for unknown model"),
        (_post("refused", _json()), 503, "the queue is full"),
        (_post("failing", _json()), 500, "not today"),
        (_post("huge", _json()), 503, "all outputs of a request may have"),
        (_post("short", _json()), 500, "fewer than its shape says"),
        (_post("echo", b"{"), 400, "failed to parse the request JSON buffer"),
        (_post("echo", b'{"inputs":[],"inputs":[]}'), 400, "'inputs' is there twice"),
        (_post("echo", b'{"inputs":[{"name":"\xff"}]}'), 400, "Invalid UTF-8"),
        (_post("echo", b'{"inputs":' + b"[" * 150_000), 400, "an element is no object"),
        (_post("echo", b'{"x":' + b"[" * 150_000), 413, "deeper than the limit"),
        (_post("echo", _tensor([1, 2**62], "FP32", [1])), 400, "too many elements"),
        (_post("echo", _tensor([2**40], "FP32", [1])), 400, "Shape does not match"),
        (_post("echo", _tensor([2**40], "BYTES", ["1"])), 400, "Shape does not match"),
        (_post("echo", _json(), "Inference-Header-Content-Length: 1000"), 400, "should be in range"),
        (_post("echo", _json(), "Inference-Header-Content-Length: x"), 400, "is no number"),
        (_post("echo", b"rubbish", "Content-Encoding: gzip"), 400, "not valid gzip"),
        (_post("echo", b"rubbish", "Content-Encoding: br"), 415, "Unsupported Content-Encoding"),
        (_post("echo", gzip.compress(bytes(1 << 21), mtime=0), "Content-Encoding: gzip"), 413, "when it is expanded"),
        (_head("GET /%zz"), 400, "an escape that is none"),
    ],
)  # fmt: skip
def test_what_is_refused_leaves_the_connection_open(
    front: FrontProcess, request_bytes: bytes, status: int, said: str
) -> None:
    client = Client(front)
    client.send(request_bytes + _post("thread", _json(values=[7])))
    answer = client.answer()
    assert answer[0] == status, answer
    assert said in json.loads(answer[2])["error"]
    assert _data(client.answer()) == [7]
    client.close()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GARBAGE\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: h\n\n", 400),
        (_head("POST /", ["Content-Length: 1", "Content-Length: 1"]), 400),
        (_head("POST /", ["Content-Length: 1", "Transfer-Encoding: chunked"]), 400),
        (_head("POST /", ["Content-Length: 1048577"]), 413),
        (_head("POST /", ["Transfer-Encoding: chunked"]) + b"fffffff\r\n", 413),
        (_head("POST /", ["Transfer-Encoding: chunked"]) + b"x\r\n", 400),
        (_head("GET /", ["A: b"] * 20), 431),
        (_head("GET /", ["A: " + "b" * 2048]), 431),
        (b"A" * 3000, 431),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    ],
)
def test_what_leaves_no_way_to_go_on_ends_the_connection(
    front: FrontProcess, request_bytes: bytes, status: int
) -> None:
    client = Client(front)
    client.send(request_bytes + _head("GET /v2/nothing"))
    got, headers, body = client.answer()
    assert (got, headers["connection"]) == (status, "close")
    assert "error" in json.loads(body)
    assert client.ends()
    client.close()


@pytest.mark.parametrize("begun", [b"GET / HT", _post("echo", _json())[:-1]])
def test_what_does_not_come_in_time_is_refused(front: FrontProcess, begun: bytes) -> None:
    client = Client(front)
    client.send(begun)
    assert client.answer()[0] == 408
    assert client.ends()
    client.close()


def test_bytes_one_by_one_do_not_make_the_time_longer(front: FrontProcess) -> None:
    client = Client(front)
    client.send(b"GET / HTTP/1.1\r\n")
    client.socket.settimeout(0.2)
    said = b""
    while not said:
        client.send(b"A: b\r\n")
        try:
            said = client.socket.recv(100)
        except socket.timeout:
            continue
    assert said.startswith(b"HTTP/1.1 408 ")
    client.close()


def test_versions_and_methods(front: FrontProcess) -> None:
    client = Client(front)
    client.send(_head("HEAD /v2/nothing") + _post("echo", _json()))
    status, headers, _ = client.answer(head=True)
    assert (status, headers["content-length"]) == (404, "21")
    assert _data(client.answer()) == [1, 2]
    client.close()
    for line, ends in [("Connection: close", True), ("Connection: keep-alive", False)]:
        client = Client(front)
        body = _json()
        text = f"POST /v2/models/thread/infer HTTP/1.0\r\n{line}\r\nContent-Length: {len(body)}\r\n\r\n"
        client.send(text.encode() + body)
        status, headers, _ = client.answer()
        assert (status, headers["connection"]) == (200, "close" if ends else "keep-alive")
        assert not ends or client.ends()
        client.close()


def test_a_client_that_waits_to_be_told_to_go_on(front: FrontProcess) -> None:
    client = Client(front)
    body = _json()
    head = _head(
        "POST /v2/models/echo/infer", ["Expect: 100-continue", f"Content-Length: {len(body)}"]
    )
    client.send(head)
    assert client.answer()[0] == 100
    client.send(body)
    assert _data(client.answer()) == [1, 2]
    client.close()


def test_requests_of_clients_that_have_gone_are_cancelled(made: Built) -> None:
    """The model answers a request when it is cancelled, and not before: so the server could not end."""
    with running(made) as front:
        for _ in range(20):
            client = front.connect()
            client.sendall(_post("held", _json()))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        assert _data(_ask(front, _post("echo", _json()))) == [1, 2]


def test_the_end_says_goodbye(made: Built) -> None:
    with running(made) as front:
        idle, asking = Client(front), Client(front)
        for client in (idle, asking):
            client.send(_post("echo", _json()))
            assert "connection" not in client.answer()[1]
        front.process.send_signal(signal.SIGTERM)
        asking.send(_post("thread", _json()))
        status, headers, _ = asking.answer()
        assert status == 200
        assert headers.get("connection") in (None, "close")
        assert idle.ends()
        idle.close()
        asking.close()
        assert front.process.wait(60) == 0


def test_headers_that_are_handed_on_are_text(made: Built) -> None:
    with running(made, forward={"http": "(?i)X-Mine"}) as front:
        for name, value, status in (
            ("x-mine-too", b"x", 200),
            ("X-MINE", b"\xff\xfe", 400),
            ("other", b"\xff\xfe", 200),
        ):
            request = _post("echo", _json(), f"{name}: VALUE").replace(b"VALUE", value)
            answered = _ask(front, request)
            assert answered[0] == status, answered
            assert status == 200 or b"UTF-8" in answered[2]


def test_sagemaker_loads_lists_and_unloads_models(made: Built, tmp_path: Path) -> None:
    """In its folder only; an ensemble is the one that is asked for."""

    def bring(name: str, *configurations: str) -> bytes:
        for number, text in enumerate(configurations):
            folder = tmp_path / name / "model" / f"part-{number}"
            folder.mkdir(parents=True)
            (folder / "config.pbtxt").write_text(text)
        return json.dumps({"model_name": name, "url": f"{tmp_path}/{name}/model"}).encode()

    one, ensemble, many = (
        bring("echo", ""),
        bring("e", "", "ensemble_scheduling {", ""),
        bring("m", "", ""),
    )
    outside = json.dumps({"model_name": "x", "url": f"{tmp_path}/echo/../../x"}).encode()
    with running(made, protocol="sagemaker", sagemaker={"folder": str(tmp_path)}) as front:

        def ask(line: str, body: bytes = b"") -> tuple[int, bytes]:
            status, _, answer = _ask(front, _head(line, (), body))
            return status, answer

        assert ask("GET /ping")[0] == 200
        assert ask("POST /models/echo/invoke", _json())[0] == 404
        assert ask("POST /models", one) == (200, b"")
        assert ask("POST /models", one)[0] == 409
        assert ask("POST /models", ensemble)[0] == 200
        assert ask("POST /models", many)[0] == 400
        assert b"a folder in" in ask("POST /models", outside)[1]
        assert ask("POST /models", b"{}")[0] == 400
        named = {"modelName": "echo", "modelUrl": f"{tmp_path}/echo/model"}
        assert json.loads(ask("GET /models/echo")[1]) == named
        listed = json.loads(ask("GET /models")[1])["models"]
        assert [model["modelName"] for model in listed if model != named] == ["e"]
        assert ask("POST /models/echo/invoke", _json())[0] == 200
        assert ask("DELETE /models/echo")[0] == 200
        for line in (
            "DELETE /models/echo",
            "GET /models/echo",
            "GET /models/m",
            "GET /models/e/invoke/x",
        ):
            assert ask(line)[0] == 404
        assert ask("POST /models", one)[0] == 200
    with running(made, protocol="sagemaker") as front:
        assert _ask(front, _head("POST /models", (), one))[0] == 404


_CLOUDS = {
    "sagemaker": ("/invocations", "application/vnd.sagemaker-triton.binary+json;json-header-size="),
    "vertex_ai": ("/v1/predict", "application/vnd.vertex-ai-triton.binary+json;json-header-size="),
}


@pytest.mark.parametrize("cloud", _CLOUDS)
def test_the_paths_of_clouds(made: Built, cloud: str) -> None:
    """How much of a body is JSON, they say in its type, both ways."""
    path, binary_type = _CLOUDS[cloud]
    vertex = {"health": "/v1/health", "predict": "/v1/predict", "model": "echo"}
    text = '{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","parameters":{"binary_data_size":4}}],'
    body = (text + '"parameters":{"binary_data_output":true}}').encode()
    with running(made, protocol=cloud, vertex=vertex, sagemaker={"model": "echo"}) as front:
        assert _data(_ask(front, _head(f"POST {path}", (), _json()))) == [1, 2]
        typed = [f"Content-Type: {binary_type}{len(body)}"]
        status, headers, answer = _ask(
            front, _head(f"POST {path}", typed, body + struct.pack("<f", 5))
        )
        assert status == 200
        assert headers["content-type"].startswith(binary_type)
        json_size = int(headers["content-type"][len(binary_type) :])
        assert struct.unpack("<f", answer[json_size:]) == (5,)
        assert _ask(front, _head("GET /v2/health/live"))[0] == 404
        if cloud == "vertex_ai":
            redirect = ["X-Vertex-Ai-Triton-Redirect: v2/models/thread/infer"]
            answered = _ask(front, _head(f"POST {path}", redirect, _json()))
            assert json.loads(answered[2])["model_name"] == "thread"
            redirect = ["X-Vertex-Ai-Triton-Redirect: nowhere"]
            assert _ask(front, _head(f"POST {path}", redirect, _json()))[0] == 404
