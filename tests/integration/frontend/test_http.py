"""The native frontend's HTTP beyond plain inference: streams, statistics, settings, shared memory, failing models."""

from __future__ import annotations

import gzip
import http.client
import json
import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import tritonclient.http
import tritonclient.utils.shared_memory as shm
from support.models.inference import Array
from support.real_daemon import RunningDaemon
from tritonclient.utils import InferenceServerException

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor

N = [Tensor(name="n", dtype=np.int32, shape=(1,))]
Y = [Tensor(name="y", dtype=np.int32, shape=(1,))]
TEXT = [Tensor(name="text", dtype=bytes, shape=(1,))]
_TOKEN = "a-token-that-is-long-enough"
_ONE = "generate expects model to produce exactly 1 response"


def _count(requests: Any) -> Iterator[list[Any]]:
    """Respond to n with 0, 1, … n-1."""
    for i in range(int(requests[0]["n"].max())):
        yield [{"y": np.full_like(requests[0]["n"], i)}]


@batch
def _next(n: Array) -> dict[str, Array]:
    if n.min() < 0:
        raise ValueError("n is negative")
    return {"y": n + 1}


def _parameters(requests: Any) -> list[dict[str, Array]]:
    texts = [json.dumps(request.parameters).encode() for request in requests]
    return [{"text": np.array([[text]], object)} for text in texts]


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    forwarded = {"http-header-forward-pattern": "(?i)x-mine.*"}
    with RunningDaemon.start(
        frontend="native", access_token=_TOKEN, tritonserver_options=forwarded
    ) as running:
        stream = ModelConfig(decoupled=True, batching=False)
        running.client.register(_count, "count", N, Y, stream, progress=False)
        running.client.register(_next, "next", N, Y, progress=False)
        running.client.register(_parameters, "parameters", N, TEXT, progress=False)
        yield running


def _ask(
    daemon: RunningDaemon, method: str, path: str, body: Any = None, **more: str
) -> tuple[int, str, bytes]:
    """Return the status, the content type and the body."""
    with closing(http.client.HTTPConnection(daemon.http, timeout=60)) as client:
        headers = {"triton-access-token": _TOKEN}
        headers.update({name.replace("_", "-"): value for name, value in more.items()})
        client.request(method, path, None if body is None else json.dumps(body), headers)
        response = client.getresponse()
        return response.status, response.headers["Content-Type"], response.read()


def _read(answer: tuple[int, str, bytes]) -> Any:
    assert answer[0] == 200, answer
    return json.loads(answer[2])


@pytest.mark.parametrize("count", [0, 1, 100])
def test_a_stream_is_sent_as_events(daemon: RunningDaemon, count: int) -> None:
    status, kind, body = _ask(daemon, "POST", "/v2/models/count/generate_stream", {"n": count})
    assert (status, kind) == (200, "text/event-stream; charset=utf-8")
    events = body.decode().split("\n\n")[:-1]
    assert [json.loads(event[len("data: ") :])["y"] for event in events] == list(range(count))


def test_generate_responds_once(daemon: RunningDaemon) -> None:
    for model, n, y in [("next", 5, 6), ("count", 1, 0)]:
        said = _read(_ask(daemon, "POST", f"/v2/models/{model}/generate", {"n": n, "id": "mine"}))
        assert said == {"id": "mine", "model_name": model, "model_version": "1", "y": y}
    for n in (0, 2):
        status, _, body = _ask(daemon, "POST", "/v2/models/count/generate", {"n": n})
        assert (status, json.loads(body)["error"].partition(",")[0]) == (400, _ONE)


@pytest.mark.parametrize("path", ["generate", "generate_stream"])
def test_a_model_s_error_reaches_the_client(daemon: RunningDaemon, path: str) -> None:
    status, _, body = _ask(daemon, "POST", f"/v2/models/next/{path}", {"n": -1})
    assert status == 500
    assert b"n is negative" in body
    for model, wrong, words in [
        ("next", "x", b"signed-integer"),
        ("count", [1, 2, 3], b"proper shape"),
        ("count", [], b"proper shape"),
    ]:
        status, kind, body = _ask(daemon, "POST", f"/v2/models/{model}/{path}", {"n": wrong})
        assert (status, kind) == (400, "application/json")
        assert words in body


def test_matching_headers_become_parameters(daemon: RunningDaemon) -> None:
    """As in Triton: case does not matter, and a match of a part of the name is enough."""
    request = {
        "inputs": [{"name": "n", "shape": [1, 1], "datatype": "INT32", "data": [1]}],
        "parameters": {"a": 1},
    }
    headers = {"X_MINE": "one", "not_x_mine_too": "two", "x_other": "three"}
    answer = _ask(daemon, "POST", "/v2/models/parameters/infer", request, **headers)
    reported = json.loads(_read(answer)["outputs"][0]["data"][0])
    assert reported == {"a": 1, "X-MINE": "one", "not-x-mine-too": "two"}


def test_model_endpoints_answer(daemon: RunningDaemon) -> None:
    assert _read(_ask(daemon, "GET", "/v2"))["name"] == "triton"
    assert _read(_ask(daemon, "GET", "/v2/models/next"))["inputs"][0]["name"] == "n"
    assert _read(_ask(daemon, "GET", "/v2/models/next/config"))["name"] == "next"
    assert (
        _read(_ask(daemon, "GET", "/v2/models/next/versions/1/stats"))["model_stats"][0]["name"]
        == "next"
    )
    assert len(_read(_ask(daemon, "GET", "/v2/models/stats"))["model_stats"]) == 3
    assert {
        one["name"] for one in _read(_ask(daemon, "POST", "/v2/repository/index", {"ready": True}))
    } == {"next", "count", "parameters"}
    assert _ask(daemon, "GET", "/v2/models/next/ready")[0] == 200
    assert _ask(daemon, "GET", "/v2/models/none/ready")[0] == 400
    assert _ask(daemon, "GET", "/v2/models/none")[0] == 404


def test_only_inference_responses_are_compressed(daemon: RunningDaemon) -> None:
    """Triton's asyncio client sends `Accept-Encoding: gzip`, but decompresses only these."""
    config = _ask(daemon, "GET", "/v2/models/next/config", Accept_Encoding="gzip, deflate")
    assert _read(config)["name"] == "next"
    status, _, body = _ask(
        daemon, "POST", "/v2/models/" + "none" * 100 + "/infer", {}, Accept_Encoding="gzip"
    )
    assert (status, json.loads(body).keys()) == (404, {"error"})
    tensor = {"name": "n", "shape": [1, 1], "datatype": "INT32", "data": [1]}
    request = {"inputs": [tensor], "parameters": {"a": "b" * 1000}}
    path = "/v2/models/parameters/infer"
    status, _, body = _ask(daemon, "POST", path, request, Accept_Encoding="gzip")
    assert status == 200
    assert "b" * 1000 in gzip.decompress(body).decode()


def test_settings_can_be_changed_and_read(daemon: RunningDaemon) -> None:
    assert _read(_ask(daemon, "GET", "/v2/logging"))["log_verbose_level"] == 0
    assert (
        _read(_ask(daemon, "POST", "/v2/logging", {"log_verbose_level": 1}))["log_verbose_level"]
        == 1
    )
    assert (
        _read(_ask(daemon, "POST", "/v2/logging", {"log_verbose_level": 0}))["log_verbose_level"]
        == 0
    )
    assert _ask(daemon, "POST", "/v2/logging", {"log_info": "yes"})[0] == 400
    assert (
        _read(_ask(daemon, "POST", "/v2/trace/setting", {"trace_rate": "7"}))["trace_rate"] == "7"
    )
    assert (
        _read(_ask(daemon, "POST", "/v2/models/next/trace/setting", {"trace_rate": "9"}))[
            "trace_rate"
        ]
        == "9"
    )
    assert _read(_ask(daemon, "GET", "/v2/trace/setting"))["trace_rate"] == "7"


def test_tensors_in_shared_memory(daemon: RunningDaemon) -> None:
    headers = {"triton-access-token": _TOKEN}
    key = f"/front-http-test-{os.getpid()}"
    region = shm.create_shared_memory_region("mine", key, 64)
    try:
        shm.set_shared_memory_region(region, [np.array([[41]], np.int32)])
        with tritonclient.http.InferenceServerClient(daemon.http) as client:
            client.register_system_shared_memory("mine", key, 64, headers=headers)
            status = client.get_system_shared_memory_status(headers=headers)
            assert status == [{"name": "mine", "key": key, "offset": 0, "byte_size": 64}]
            given = tritonclient.http.InferInput("n", [1, 1], "INT32")
            given.set_shared_memory("mine", 4)
            wanted = tritonclient.http.InferRequestedOutput("y")
            wanted.set_shared_memory("mine", 4, offset=8)
            client.infer("next", [given], outputs=[wanted])
            assert shm.get_contents_as_numpy(region, np.int32, [1], 8).tolist() == [42]
            for size in (0, 64):  # truncated, then whole again
                os.truncate(f"/dev/shm{key}", size)
                with pytest.raises(InferenceServerException, match="was truncated while") as error:
                    client.infer("next", [given], outputs=[wanted])
                assert error.value.status() == "400"
            client.unregister_system_shared_memory("mine", headers=headers)
            client.register_system_shared_memory("mine", key, 64, headers=headers)
            client.infer("next", [given], outputs=[wanted])
            assert shm.get_contents_as_numpy(region, np.int32, [1], 8).tolist() == [1]
            client.unregister_system_shared_memory(headers=headers)
            assert client.get_system_shared_memory_status(headers=headers) == []
    finally:
        shm.destroy_shared_memory_region(region)
