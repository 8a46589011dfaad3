"""Life of `Triton` objects: stop, restart, ports in use, threads, unrecoverable errors, no server."""

from __future__ import annotations

import http.client
import json
import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from support.models.inference import Array
from support.ports import lasting_port
from support.real_daemon import eventually
from support.scripts import local_config

from pytriton._protocol.exit_codes import ExitCode
from pytriton.client import ModelClient
from pytriton.client.exceptions import PyTritonClientInferenceServerError
from pytriton.decorators import batch
from pytriton.exceptions import DaemonStartError, PyTritonUnrecoverableError
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import RemoteTriton, Triton

X = [Tensor(dtype=np.float32, shape=(-1,))]
BATCHING = ModelConfig(max_batch_size=8)
ONES = np.ones(3, np.float32)


@batch
def double(**inputs: Array) -> list[Array]:
    (x,) = inputs.values()
    return [x * 2]


def ask(url: str, model: str = "model") -> list[float]:
    with ModelClient(url, model, inference_timeout_s=60) as client:
        values: list[float] = client.infer_sample(ONES)["OUTPUT_1"].tolist()
        return values


def idle_connection(url: str) -> http.client.HTTPConnection:
    """Return a client that has sent a request and keeps its connection open."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    connection.request("GET", "/v2/health/live")
    assert connection.getresponse().read() == b""
    return connection


def test_stop_finishes_requests_in_flight_and_run_starts_again(tmp_path: Path) -> None:
    """Also while a client keeps an idle connection open."""
    begun = tmp_path / "begun"

    @batch
    def slow(**inputs: Array) -> list[Array]:
        (x,) = inputs.values()
        begun.touch()
        time.sleep(1.0)
        return [x * 2]

    patient = local_config(exit_timeout_secs=90)
    triton = Triton(config=patient, workspace=tmp_path / "workspace")
    triton.bind("model", slow, X, X, config=BATCHING)
    starting = threading.Thread(target=triton.run)  # its end is not the server's
    starting.start()
    starting.join()
    try:
        idle = idle_connection(triton.http_url)
        with ThreadPoolExecutor(1) as asking:
            asked = asking.submit(ask, triton.http_url)
            eventually(begun.exists, "the batch has begun")
            started = time.monotonic()
            assert triton.stop() is True
            # Not a measure of speed: PyTriton waits for the connection's end, so long at the most.
            assert time.monotonic() - started < 60
            assert asked.result() == [2, 2, 2]
        idle.close()
        assert (triton.stop(), triton.is_alive(), triton.is_connected()) == (False, False, False)
        assert list(tmp_path.iterdir()) == [begun]
        triton.run()
        assert ask(triton.http_url) == [2, 2, 2]
    finally:
        triton.stop()


def test_a_port_in_use_is_reported_with_its_owner(tmp_path: Path) -> None:
    """Two servers run in one process; a third one wants a port of the first."""
    with Triton(config=local_config()) as first, Triton(config=local_config()) as second:
        for one in (first, second):
            one.bind("model", double, X, X, config=BATCHING, isolation="thread")
        assert ask(first.http_url) == ask(second.http_url) == [2, 2, 2]
        port = urlsplit(first.http_url).port
        assert port is not None
        third = Triton(config=local_config(http_port=port), workspace=tmp_path / "w")
        holder = rf"a Triton object of this process \(pid {os.getpid()}\)"
        wanted = rf"port {port} \(http_port\) on 127.0.0.1 is in use by {holder}; stop that"
        with pytest.raises(DaemonStartError, match=wanted) as caught:
            third.run()
        assert caught.value.exit_code == ExitCode.PORT_IN_USE
        assert not (tmp_path / "w").exists()
        assert ask(first.http_url) == [2, 2, 2]


def test_serving_in_a_thread_ends_with_stop_in_another(caplog: pytest.LogCaptureFixture) -> None:
    """A remote object that serves there ends, too."""
    triton = Triton(config=local_config(log_verbose=1))
    triton.bind("model", double, X, X, config=BATCHING)
    with caplog.at_level(logging.INFO, "pytriton"):
        serving = threading.Thread(target=triton.serve)
        serving.start()
        eventually(triton.is_connected, "it serves", 60)
        assert ask(triton.http_url) == [2, 2, 2]
        guest = RemoteTriton(triton.http_url)
        visiting = threading.Thread(target=guest.serve)
        visiting.start()
        eventually(guest.is_connected, "the guest is there")
        assert triton.stop() is True
        serving.join(60)
        visiting.join(60)
    assert not serving.is_alive()
    assert not visiting.is_alive()
    assert not guest.is_alive()
    assert "The server at http://127.0.0.1" in caplog.text
    assert "Infer function available as model: `/v2/models/model`" in caplog.text
    assert "(Press CTRL+C or use the command `kill -SIGINT" in caplog.text
    assert caplog.text.count("enabled verbose logs (log_verbose_level=1)") == 2


def test_an_unrecoverable_error_ends_the_server(caplog: pytest.LogCaptureFixture) -> None:
    """The request gets the error, `serve` returns, and nothing is left."""

    def broken(requests: object) -> None:
        raise PyTritonUnrecoverableError("the GPU is gone")

    triton = Triton(config=local_config())
    triton.bind("model", broken, X, X, config=BATCHING)
    triton.run()
    try:
        with pytest.raises(PyTritonClientInferenceServerError, match="the GPU is gone"):
            ask(triton.http_url)
        triton._ended.wait(60)
        assert not triton.is_alive()
        assert not triton.is_connected()
        assert triton.stop() is False
        assert "Triton Inference Server exited with failure. Please wait." in caplog.text
        assert "the GPU is gone" in caplog.text
    finally:
        triton.stop()


def test_a_failed_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    config = local_config(grpc_use_ssl=True, grpc_server_cert=tmp_path / "none.pem")
    triton = Triton(config=config, workspace=tmp_path / "w")
    with pytest.raises(DaemonStartError, match=r"Triton Inference Server did not start: .*grpc"):
        triton.run()
    assert list(tmp_path.iterdir()) == []
    assert not triton.is_connected()


def test_a_remote_object_reports_that_no_server_answers() -> None:
    remote = RemoteTriton("127.0.0.1:9")
    assert not remote.is_alive()
    assert not RemoteTriton("grpc://127.0.0.1:9").is_alive()
    remote._timeout_s = 0.0
    with pytest.raises(TimeoutError, match="Triton Inference Server is not ready after timeout"):
        remote.connect()


def test_vertex_ais_server_starts_with_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its frontend requires a loaded model at its start, and serves Vertex AI's routes."""
    port = lasting_port()
    routes = {"MODE": "PREDICTION", "HEALTH_ROUTE": "/health", "PREDICT_ROUTE": "/predict"}
    for name, value in {**routes, "HTTP_PORT": str(port)}.items():
        monkeypatch.setenv(f"AIP_{name}", value)
    with Triton(config=local_config(allow_vertex_ai=True, vertex_ai_port=port)) as triton:
        assert not triton.is_connected()
        triton.bind("model", double, X, X, config=BATCHING)
        triton.run()
        assert ask(triton.http_url) == [2, 2, 2]
        tensor = {"name": "INPUT_1", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
        connection = http.client.HTTPConnection(f"127.0.0.1:{port}")
        connection.request("POST", "/predict", json.dumps({"inputs": [tensor]}))
        answer = json.loads(connection.getresponse().read())
        connection.close()
        assert answer["outputs"][0]["data"] == [2, 4]
