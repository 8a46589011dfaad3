"""Readiness is reliable, and clients of a registered model never get "unknown model"."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from support.models.tensors import X, Y
from support.ports import lasting_port
from support.real_daemon import FRONT, RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

from pytriton.model_config import ModelConfig

_REQUEST = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}
#: Between a client's requests: without, they have the CPU time that a start needs.
_PAUSE_S = 0.01
pytestmark = pytest.mark.timeout(400)


def _gated(gate: Path) -> Any:
    """Return a factory that waits until a file exists."""

    def factory() -> Any:
        while not gate.exists():
            threading.Event().wait(0.02)
        return lambda requests: [{"y": request["x"]} for request in requests]

    return factory


def _status(address: str, path: str, body: object = None) -> int | None:
    """Return the HTTP status of a request, or None if nothing answers."""
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request("GET" if body is None else "POST", path, json.dumps(body))
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _ready(daemon: RunningDaemon) -> int | None:
    return _status(daemon.http, "/v2/health/ready")


def _register(daemon: RunningDaemon, name: str, factory: Any, **options: Any) -> None:
    config = ModelConfig(max_batch_size=8)
    daemon.client.register(factory, name, X, Y, config, factory=True, progress=False, **options)


@pytest.mark.parametrize("proxy", ["native", "python"])
def test_the_server_is_ready_once_all_registrations_are_restored(
    tmp_path: Path, proxy: str
) -> None:
    """Not earlier; and the model that blocked readiness in the meantime is gone."""
    gate = tmp_path / "gate"
    gate.touch()
    settings = {"state_dir": str(tmp_path / "state"), "proxy": proxy, "restricted_endpoints": ()}
    with RunningDaemon.start(**settings) as daemon:
        eventually(lambda: "tritonserver reports ready" in daemon.said(), daemon.said)
        _register(daemon, "model", _gated(gate))
        assert _ready(daemon) == 200
        gate.unlink()
    with RunningDaemon.start(**settings) as daemon:
        assert _ready(daemon) == 400
        assert _status(daemon.http, "/v2/health/live") == 200
        gate.touch()
        eventually(lambda: _ready(daemon) == 200, "it is ready")
        eventually(lambda: "tritonserver reports ready" in daemon.said(), daemon.said)
        assert _status(daemon.http, "/v2/models/model/infer", _REQUEST) == 200
        with tritonclient.grpc.InferenceServerClient(daemon.grpc) as client:
            assert [model.name for model in client.get_model_repository_index().models] == ["model"]
        assert "pytriton.starting" not in daemon.said()


@pytest.mark.parametrize(
    ("when", "ready"), [("all_loaded", 400), ("all_attempted", 200), ("server_up", 200)]
)
def test_a_model_that_cannot_be_restored_blocks_readiness_if_configured(
    tmp_path: Path, when: str, ready: int
) -> None:
    folder = tmp_path / "bad" / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text("raise RuntimeError('no')")
    tensors = 'name: "{}" data_type: TYPE_FP32 dims: [1]'
    (folder.parent / "config.pbtxt").write_text(
        f'backend: "python"\ninput {{ {tensors.format("x")} }}\noutput {{ {tensors.format("y")} }}'
    )
    with RunningDaemon.start(
        model_repository=(str(tmp_path),), python_backend_model=("*",), readiness=when
    ) as daemon:
        eventually(lambda: "repository model was not loaded" in daemon.said(), daemon.said)
        if ready == 200:
            eventually(lambda: _ready(daemon) == 200, "it is ready")
        else:
            assert _ready(daemon) == 400


def _code(client: tritonclient.grpc.InferenceServerClient, tensor: Any) -> object:
    try:
        client.infer("model", [tensor], client_timeout=60)
    except InferenceServerException as error:
        return error.status()
    return 200


@contextmanager
def _asking(daemon: RunningDaemon) -> Iterator[set[object]]:
    """Send requests over both protocols continuously; yield the set of results."""
    outcomes: set[object] = set()
    http_address, grpc_address = daemon.http, daemon.grpc
    over = threading.Event()
    tensor = tritonclient.grpc.InferInput("x", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 1), np.float32))

    def ask_http() -> None:
        while not over.wait(_PAUSE_S):
            outcomes.add(_status(http_address, "/v2/models/model/infer", _REQUEST))

    def ask_grpc() -> None:
        with tritonclient.grpc.InferenceServerClient(grpc_address) as client:
            while not over.wait(_PAUSE_S):
                outcomes.add(_code(client, tensor))

    threads = [threading.Thread(target=one) for one in (ask_http, ask_grpc)]
    for thread in threads:
        thread.start()
    try:
        yield outcomes
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _is_ready_anew(daemon: RunningDaemon, former: int) -> bool:
    return daemon.client.status().server.pid not in (None, former) and _ready(daemon) == 200


def test_a_known_model_stays_known_while_tritonserver_restarts(tmp_path: Path) -> None:
    """It is loaded before the ports are opened."""
    (tmp_path / "gate").touch()
    with RunningDaemon.start() as daemon:
        _register(daemon, "model", _gated(tmp_path / "gate"))
        with _asking(daemon) as outcomes:
            for _ in range(2):
                former = daemon.client.status().server.pid
                assert former is not None
                os.kill(former, signal.SIGKILL)
                eventually(partial(_is_ready_anew, daemon, former), "another tritonserver is ready")
            eventually(lambda: 200 in outcomes, "a request is answered")
        assert outcomes <= {200, None, "StatusCode.UNAVAILABLE"}


def test_a_known_model_stays_known_during_shutdown(tmp_path: Path) -> None:
    """Requests get 503 while batches in flight are answered, and the readiness probe fails."""
    begun, go = tmp_path / "begun", tmp_path / "go"

    def infer(requests: Any) -> Any:
        if requests[0]["x"][0, 0] == 2:
            begun.touch()
            while not go.exists():
                threading.Event().wait(0.02)
        return [{"y": request["x"]} for request in requests]

    slow = {"inputs": [{**_REQUEST["inputs"][0], "data": [2]}]}
    with RunningDaemon.start() as daemon:
        _register(daemon, "model", lambda: infer, instances=2)
        address = daemon.http
        answers: list[int | None] = []
        asking = threading.Thread(
            target=lambda: answers.append(_status(address, "/v2/models/model/infer", slow))
        )
        asking.start()
        eventually(begun.exists, "a batch is under way")
        with _asking(daemon) as outcomes:
            daemon.process.send_signal(signal.SIGTERM)
            eventually(
                lambda: 503 in outcomes and _status(address, "/v2/health/ready") == 400, "503"
            )
            reported = set(
                outcomes
            )  # from its own end on, tritonserver says what it likes over gRPC
            go.touch()
            asking.join()
            assert daemon.process.wait(100) == 0
        assert answers == [200]
        assert reported <= {200, 503, "StatusCode.UNAVAILABLE"}


def test_vertex_ai_serves_once_its_model_is_loaded(tmp_path: Path) -> None:
    """NVIDIA's frontend opens its port once the model is loaded, without a Python inside tritonserver.

    The native frontend's port is open from the start, but reports that it is not ready.
    """
    unready = {None} if FRONT == "triton" else {None, 400, 404}
    port = lasting_port()
    routes = {"MODE": "PREDICTION", "HEALTH_ROUTE": "/health", "PREDICT_ROUTE": "/predict"}
    (tmp_path / "gate").touch()
    options = {
        "allow-vertex-ai": "true",
        "vertex-ai-default-model": "m",
        "vertex-ai-port": str(port),
    }
    seen: set[int | None] = set()
    over = threading.Event()

    def ask() -> None:
        while not over.wait(_PAUSE_S):
            seen.add(_status(f"127.0.0.1:{port}", "/predict", _REQUEST))

    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**routes, "HTTP_PORT": str(port)}.items():
            patch.setenv(f"AIP_{name}", value)
        asking = threading.Thread(target=ask)
        asking.start()
        try:
            with RunningDaemon.start(
                tritonserver_options=options, proxy="native", state_dir=str(tmp_path / "state")
            ) as daemon:
                assert _status(f"127.0.0.1:{port}", "/health") in unready
                _register(daemon, "m", _gated(tmp_path / "gate"))
                health = partial(_status, f"127.0.0.1:{port}", "/health")
                eventually(lambda: health() == 200, "tritonserver says that it is ready")
                eventually(lambda: 200 in seen, lambda: f"it is asked: {seen}")
                assert seen <= unready | {200}
                assert not list(daemon.config.rundir.path.glob("proxy-python"))
        finally:
            over.set()
            asking.join()
