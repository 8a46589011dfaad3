"""http/: connections, from the bytes of requests to those of responses, in any pieces and for any kind of model."""

from __future__ import annotations

import gzip
import json
import random
import re
import signal
import socket
import struct
import zlib
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
from support.frontend.process import Built, OpenAIProcess, running
from support.frontend.raw_http import RawClient, ask, data_of, head, json_of, post, tensor

ANSWERING = ("echo", "thread", "early")


def test_pipelined_requests_are_answered_in_order(frontend: OpenAIProcess) -> None:
    rng = random.Random(1)
    models = [rng.choice(ANSWERING) for _ in range(200)]
    client = RawClient(frontend)
    client.send(b"".join(post(model, json_of(values=[i])) for i, model in enumerate(models)))
    for i, model in enumerate(models):
        answer = client.answer()
        assert json.loads(answer[2])["model_name"] == model
        assert data_of(answer) == [i]
    client.close()


@pytest.mark.parametrize("seed", range(10))
def test_requests_may_arrive_in_any_pieces(frontend: OpenAIProcess, seed: int) -> None:
    rng = random.Random(seed)
    requests = []
    for i in range(20):
        body = json_of(values=[i, seed])
        kind = rng.choice(["plain", "chunked", "gzip", "deflate"])
        model = rng.choice(ANSWERING)
        if kind == "plain":
            requests.append(post(model, body))
        elif kind == "chunked":
            cut = rng.randrange(1, len(body))
            chunks = b"".join(
                b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:cut], body[cut:])
            )
            line = f"POST /v2/models/{model}/infer"
            requests.append(head(line, ["Transfer-Encoding: chunked"]) + chunks + b"0\r\n\r\n")
        else:
            packed = (gzip if kind == "gzip" else zlib).compress(body)
            requests.append(post(model, packed, f"Content-Encoding: {kind}"))
    client = RawClient(frontend)
    client.send(b"".join(requests), [rng.randrange(1, 200) for _ in range(100)])
    assert [data_of(client.answer()) for _ in requests] == [[i, seed] for i in range(20)]
    client.close()


@pytest.mark.parametrize("model", ANSWERING)
@pytest.mark.parametrize("wanted", [False, True])
def test_binary_tensors(frontend: OpenAIProcess, model: str, wanted: bool) -> None:
    values = np.random.default_rng(1).random(200_000, np.float32)
    request = {
        "inputs": [
            {"name": "x", "shape": [len(values)], "datatype": "FP32", "parameters": {"binary_data_size": values.nbytes}}
        ],
        "parameters": {"binary_data_output": wanted},
    }  # fmt: skip
    head = json.dumps(request).encode()
    length = f"Inference-Header-Content-Length: {len(head)}"
    status, headers, body = ask(frontend, post(model, head + values.tobytes(), length))
    assert status == 200
    if wanted:
        json_size = int(headers["inference-header-content-length"])
        assert headers["content-type"] == "application/octet-stream"
        assert np.array_equal(np.frombuffer(body[json_size:], np.float32), values)
    else:
        read = json.loads(body)["outputs"][0]["data"]
        assert np.array_equal(np.array(read, np.float32), values)


def test_a_slow_reader_gets_the_whole_response(frontend: OpenAIProcess) -> None:
    values = np.arange(200_000, dtype=np.float32)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(60)
    client.connect(frontend.http)
    text = '{"inputs":[{"name":"x","shape":[200000],"datatype":"FP32","parameters":{"binary_data_size":800000}}],'
    described = (text + '"parameters":{"binary_data_output":true}}').encode()
    size = f"Inference-Header-Content-Length: {len(described)}"
    request = post("thread", described + values.tobytes(), size)
    client.sendall(request + head("GET /v2/nothing"))
    read = b""
    while b'"Not Found"' not in read[-100:]:
        read += client.recv(1000 if len(read) < 100_000 else 1 << 20)
    assert values.tobytes() in read
    client.close()


@pytest.mark.parametrize(
    ("request_bytes", "status", "said"),
    [
        (head("GET /v2/nothing"), 404, "Not Found"),
        (head("GET /v2/models/echo/infer"), 405, "Method Not Allowed"),
        (post("unknown", json_of()), 404, "Request for unknown model"),
        (post("refused", json_of()), 503, "the queue is full"),
        (post("failing", json_of()), 500, "not today"),
        (post("huge", json_of()), 503, "all outputs of a request may have"),
        (post("short", json_of()), 500, "fewer than its shape requires"),
        (post("echo", b"{"), 400, "failed to parse the request JSON buffer"),
        (post("echo", b'{"inputs":[],"inputs":[]}'), 400, "'inputs' occurs twice"),
        (post("echo", b'{"inputs":[{"name":"\xff"}]}'), 400, "Invalid UTF-8"),
        (post("echo", b'{"inputs":' + b"[" * 150_000), 400, "an element is not an object"),
        (post("echo", b'{"x":' + b"[" * 150_000), 413, "deeper than the limit"),
        (post("echo", tensor([1, 2**62], "FP32", [1])), 400, "too many elements"),
        (post("echo", tensor([2**40], "FP32", [1])), 400, "Shape does not match"),
        (post("echo", tensor([2**40], "BYTES", ["1"])), 400, "Shape does not match"),
        (post("echo", json_of(), "Inference-Header-Content-Length: 1000"), 400, "should be in range"),
        (post("echo", json_of(), "Inference-Header-Content-Length: x"), 400, "is not a number"),
        (post("echo", b"rubbish", "Content-Encoding: gzip"), 400, "not valid gzip"),
        (post("echo", b"rubbish", "Content-Encoding: br"), 415, "Unsupported Content-Encoding"),
        (post("echo", gzip.compress(bytes(1 << 21), mtime=0), "Content-Encoding: gzip"), 413, "after decompression"),
        (head("GET /%zz"), 400, "an invalid escape"),
    ],
)  # fmt: skip
def test_a_refused_request_keeps_the_connection_open(
    frontend: OpenAIProcess, request_bytes: bytes, status: int, said: str
) -> None:
    client = RawClient(frontend)
    client.send(request_bytes + post("thread", json_of(values=[7])))
    answer = client.answer()
    assert answer[0] == status, answer
    assert said in json.loads(answer[2])["error"]
    assert data_of(client.answer()) == [7]
    client.close()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GARBAGE\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: h\n\n", 400),
        (head("POST /", ["Content-Length: 1", "Content-Length: 1"]), 400),
        (head("POST /", ["Content-Length: 1", "Transfer-Encoding: chunked"]), 400),
        (head("POST /", ["Content-Length: 1048577"]), 413),
        (head("POST /", ["Transfer-Encoding: chunked"]) + b"fffffff\r\n", 413),
        (head("POST /", ["Transfer-Encoding: chunked"]) + b"x\r\n", 400),
        (head("GET /", ["A: b"] * 20), 431),
        (head("GET /", ["A: " + "b" * 2048]), 431),
        (b"A" * 3000, 431),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    ],
)
def test_an_unrecoverable_request_closes_the_connection(
    frontend: OpenAIProcess, request_bytes: bytes, status: int
) -> None:
    client = RawClient(frontend)
    client.send(request_bytes + head("GET /v2/nothing"))
    got, headers, body = client.answer()
    assert (got, headers["connection"]) == (status, "close")
    assert "error" in json.loads(body)
    assert client.ends()
    client.close()


@pytest.mark.parametrize("begun", [b"GET / HT", post("echo", json_of())[:-1]])
def test_a_request_that_arrives_too_slowly_is_refused(
    hasty_frontend: OpenAIProcess, begun: bytes
) -> None:
    client = RawClient(hasty_frontend)
    client.send(begun)
    assert client.answer()[0] == 408
    assert client.ends()
    client.close()


def test_single_bytes_do_not_extend_the_time_limit(hasty_frontend: OpenAIProcess) -> None:
    client = RawClient(hasty_frontend)
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


def test_versions_and_methods(frontend: OpenAIProcess) -> None:
    client = RawClient(frontend)
    client.send(head("HEAD /v2/nothing") + post("echo", json_of()))
    status, headers, _ = client.answer(head=True)
    assert (status, headers["content-length"]) == (404, "21")
    assert data_of(client.answer()) == [1, 2]
    client.close()
    for line, ends in [("Connection: close", True), ("Connection: keep-alive", False)]:
        client = RawClient(frontend)
        body = json_of()
        text = f"POST /v2/models/thread/infer HTTP/1.0\r\n{line}\r\nContent-Length: {len(body)}\r\n\r\n"
        client.send(text.encode() + body)
        status, headers, _ = client.answer()
        assert (status, headers["connection"]) == (200, "close" if ends else "keep-alive")
        assert not ends or client.ends()
        client.close()


def test_a_client_can_wait_for_100_continue(frontend: OpenAIProcess) -> None:
    client = RawClient(frontend)
    body = json_of()
    asking = head(
        "POST /v2/models/echo/infer", ["Expect: 100-continue", f"Content-Length: {len(body)}"]
    )
    client.send(asking)
    assert client.answer()[0] == 100
    client.send(body)
    assert data_of(client.answer()) == [1, 2]
    client.close()


def test_requests_of_disconnected_clients_are_cancelled(made: Built) -> None:
    """The model responds only when its request is cancelled: otherwise the server could not exit."""
    with running(made) as frontend:
        for _ in range(20):
            client = frontend.connect()
            client.sendall(post("held", json_of()))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        assert data_of(ask(frontend, post("echo", json_of()))) == [1, 2]


def test_shutdown_closes_idle_connections_and_answers_requests(made: Built) -> None:
    with running(made) as frontend:
        idle, asking = RawClient(frontend), RawClient(frontend)
        for client in (idle, asking):
            client.send(post("echo", json_of()))
            assert "connection" not in client.answer()[1]
        begun = post("thread", json_of())
        asking.send(begun[:-1])
        frontend.process.send_signal(signal.SIGTERM)
        asking.send(begun[-1:])
        status, headers, _ = asking.answer()
        assert status == 200
        assert headers.get("connection") in (None, "close")
        assert idle.ends()
        idle.close()
        asking.close()
        assert frontend.process.wait(60) == 0


def test_a_client_over_the_limit_gets_an_error(made: Built) -> None:
    """It gets the complete response: as many bytes as the head declares, and then the end."""
    with running(made, {"connections": 1}) as frontend, closing(RawClient(frontend)) as first:
        first.send(head("GET /v2/health/live"))
        assert first.answer()[0] == 200
        with frontend.connect() as second:
            said = b"".join(iter(lambda: second.recv(1000), b""))
    lines, _, body = said.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in lines.split(b"\r\n")
    assert json.loads(body) == {"error": "there are too many connections"}


def test_forwarded_headers_must_be_utf8(made: Built) -> None:
    with running(made, forward={"http": "(?i)X-Mine"}) as frontend:
        for name, value, status in (
            ("x-mine-too", b"x", 200),
            ("X-MINE", b"\xff\xfe", 400),
            ("other", b"\xff\xfe", 200),
        ):
            request = post("echo", json_of(), f"{name}: VALUE").replace(b"VALUE", value)
            answered = ask(frontend, request)
            assert answered[0] == status, answered
            assert status == 200 or b"UTF-8" in answered[2]


@pytest.fixture(scope="module")
def unlimited(made: Built) -> Iterator[OpenAIProcess]:
    """A running frontend with the default limits."""
    with running(made) as frontend:
        yield frontend


@pytest.mark.parametrize(("depth", "status"), [(100, 200), (101, 413)])
def test_json_nests_as_deep_as_triton_allows(
    unlimited: OpenAIProcess, depth: int, status: int
) -> None:
    """By default; three of the levels surround the data."""
    data = "[" * (depth - 3) + "1" + "]" * (depth - 3)
    body = f'{{"inputs":[{{"name":"IN","shape":[1],"datatype":"FP32","data":{data}}}]}}'
    answer = ask(unlimited, post("echo", body.encode()))
    assert answer[0] == status, answer


def test_client_shared_memory_can_be_disabled(made: Built) -> None:
    body = b'{"key": "/mine", "byte_size": 8}'
    request = head("POST /v2/systemsharedmemory/region/r/register", (), body)
    with running(made, {"regions": 0}) as frontend:
        answer = ask(frontend, request)
    assert answer[0] == 501
    assert b"does not accept clients' shared memory (setting allow_client_shm)" in answer[2]


_REPORTS = {
    "text": "TEXT named_metrics.requests_in_flight=1, named_metrics.kv_cache_utilization=0.250000, "
    "named_metrics.max_token_capacity=6400",
    "JSON": 'JSON {"named_metrics": {"requests_in_flight": 1, "kv_cache_utilization": 0.250000, '
    '"max_token_capacity": 6400}}',
    "xml": None,
}


@pytest.mark.parametrize("wanted", _REPORTS)
@pytest.mark.parametrize("method", ["infer", "generate_stream"])
def test_load_is_reported_on_request(unlimited: OpenAIProcess, wanted: str, method: str) -> None:
    """As load balancers request it (ORCA)."""
    asked = [f"Endpoint-Load-Metrics-Format: {wanted}"]
    line = f"POST /v2/models/echo/{method}"
    body = json_of() if method == "infer" else b'{"prompt": "hello"}'
    for _ in range(2):
        status, headers, _ = ask(unlimited, head(line, asked, body))
        assert status == 200
        report = headers.get("endpoint-load-metrics")
        # An earlier request may not have gone yet.
        counted = report and re.sub(r"(in_flight\W+)[1-9]\d*", r"\g<1>1", report)
        assert counted == _REPORTS[wanted]
    assert "endpoint-load-metrics" not in ask(unlimited, head(line, (), body))[1]
