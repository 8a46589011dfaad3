"""A tritonserver that hangs is detected, killed and restarted; workers and their models are not affected."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from geventhttpclient.response import HTTPConnectionClosed
from support.models.inference import PROTOCOLS, Array, Inference
from support.models.tensors import X, Y
from support.real_daemon import FRONT, RunningDaemon, eventually, halt
from tritonclient.utils import InferenceServerException

from pytriton._protocol.exit_codes import ExitCode
from pytriton.decorators import batch

#: So that a test need not wait long; what a loaded machine makes late still counts as an answer.
SOON = {"server_probe_interval_s": 0.1, "server_probe_timeout_s": 15.0}
#: Requests of 4 MB from each of eight clients: seconds of load, in which the server is asked hundreds of times.
_ROUNDS = 8


@pytest.fixture(scope="module")
def watched() -> Iterator[RunningDaemon]:
    """A daemon that may have replaced its tritonserver already; the next restart comes quickly."""
    with RunningDaemon.start(**SOON, server_backoff_max_s=0.1) as running:
        yield running


@pytest.fixture
def daemon(watched: RunningDaemon) -> Iterator[RunningDaemon]:
    """The same daemon with an empty log, and without models after the test."""
    watched.forget_said()
    yield watched
    for model in watched.client.models():
        model.unregister()


def _factory(folder: Path) -> Any:
    """Return a factory that records each of its calls; its callable adds the worker's pid."""

    def factory() -> Any:
        with open(folder / "made", "a") as made:
            made.write("once ")

        @batch
        def infer(x: Array) -> dict[str, Array]:
            return {"y": x + os.getpid()}

        return infer

    return factory


def _register(daemon: RunningDaemon, folder: Path, name: str = "model", **options: Any) -> None:
    daemon.client.register(_factory(folder), name, X, Y, factory=True, progress=False, **options)


def _infer(address: str, protocol: str, **options: Any) -> float:
    connection = Inference(protocol, address)
    try:
        zero = np.zeros((1, 1), np.float32)
        return float(connection.infer("model", {"x": zero}, **options)["y"].item())
    finally:
        connection.close()


def _answers(daemon: RunningDaemon) -> bool:
    """Return whether the model answers, and not whether its server stood still and is being replaced again."""
    try:
        return _infer(daemon.grpc, "grpc") > 0
    except InferenceServerException:
        return False


def _server_pid(daemon: RunningDaemon) -> int:
    def pid() -> int | None:
        server = daemon.client.status().server
        return server.pid if server.state == "ready" else None

    found: int = eventually(pid, "tritonserver is up")  # one may be starting, on a busy machine
    return found


def test_a_hung_server_is_restarted_and_workers_keep_their_models(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    """Requests fail when the hung server is killed.

    With the native frontend, the next server answers them, as nothing has accepted their connections yet.
    """
    _register(daemon, tmp_path, instances=2)
    _register(daemon, tmp_path, "other")
    before = daemon.client.status()
    pid = _server_pid(daemon)
    addresses = {protocol: getattr(daemon, protocol) for protocol in PROTOCOLS}
    halt(pid)
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(_infer, addresses[protocol], protocol) for protocol in PROTOCOLS]
        for one in asked:
            if FRONT == "native":
                pids = [worker.pid for worker in before.models[0].instances]
                assert one.result(timeout=100) in pids
                continue
            with pytest.raises((InferenceServerException, OSError, HTTPConnectionClosed)):
                one.result(timeout=100)
    eventually(lambda: not psutil.pid_exists(pid), "the hanging one is ended")
    eventually(lambda: _serves_anew(daemon, pid), "another one is up")
    for model in before.models:
        daemon.client.model(model.name).wait_ready()
    after = daemon.client.status()

    def workers(status: Any) -> list[list[int]]:
        return [[one.pid for one in model.instances] for model in status.models]

    assert workers(after) == workers(before)
    assert (tmp_path / "made").read_text() == "once " * 3
    for protocol in PROTOCOLS:
        eventually(partial(_ready, daemon, protocol), "tritonserver serves the model")
        assert _infer(getattr(daemon, protocol), protocol) in workers(before)[0]
    said = daemon.said()
    assert "not answered for 15 s (server_probe_timeout_s); its state was T (stopped)" in said


def _serves_anew(daemon: RunningDaemon, former: int) -> bool:
    server = daemon.client.status().server
    assert server.state != "ready" or server.pid is not None
    return server.state == "ready" and server.pid != former


def _ready(daemon: RunningDaemon, protocol: str) -> bool:
    connection = Inference(protocol, getattr(daemon, protocol))
    try:
        return connection.is_ready("model")
    except (InferenceServerException, OSError, HTTPConnectionClosed):
        return False  # not listening yet
    finally:
        connection.close()


def test_without_probing_a_request_ends_by_its_own_timeout(tmp_path: Path) -> None:
    """A server that is stopped for a while, for example in a debugger, is not killed then."""
    with RunningDaemon.start(server_probe_timeout_s=0) as daemon:
        _register(daemon, tmp_path)
        pid, address = _server_pid(daemon), daemon.grpc
        halt(pid)
        with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
            _infer(address, "grpc", client_timeout=1.0)
        os.kill(pid, signal.SIGCONT)
        assert _infer(address, "grpc") > 0
        assert _server_pid(daemon) == pid


@pytest.mark.timeout(400)  # 0.3 GB go there and back
def test_a_busy_server_is_not_restarted(tmp_path: Path) -> None:
    """With all the load that this machine can produce, and constant probing."""
    with RunningDaemon.start(server_probe_interval_s=0.001, server_probe_timeout_s=30) as daemon:
        _register(daemon, tmp_path, instances=2)
        pid = _server_pid(daemon)
        addresses = {protocol: getattr(daemon, protocol) for protocol in PROTOCOLS}

        def load(protocol: str) -> int:
            connection = Inference(protocol, addresses[protocol])
            megabytes = np.ones((1, 1 << 20), np.float32)
            for _ in range(_ROUNDS):
                connection.infer("model", {"x": megabytes})
            connection.close()
            return _ROUNDS

        with ThreadPoolExecutor(8) as threads:
            assert sum(threads.map(load, PROTOCOLS * 4)) == 8 * _ROUNDS
        assert _server_pid(daemon) == pid


def test_a_registration_survives_a_hung_server(daemon: RunningDaemon) -> None:
    """As with a server that exited, the next one loads the model."""
    pid = _server_pid(daemon)

    def halting() -> Any:
        # By the worker, when all that it takes time for is done: else another tritonserver might be up before that.
        os.kill(pid, signal.SIGSTOP)
        return lambda requests: [{"y": request["x"] + 1} for request in requests]

    daemon.client.register(halting, "model", X, Y, factory=True, progress=False)
    assert _server_pid(daemon) != pid
    eventually(lambda: _answers(daemon), "it answers")


def test_a_model_is_unregistered_while_the_server_hangs(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    """The daemon kills the server, since it does not answer the request to unload the model."""
    _register(daemon, tmp_path)
    pid = _server_pid(daemon)
    halt(pid)
    daemon.client.unregister("model")
    assert daemon.client.models() == []
    eventually(lambda: _serves_anew(daemon, pid), "it is up again")
    _register(daemon, tmp_path)
    eventually(lambda: _answers(daemon), "it answers")


def test_shutdown_does_not_wait_for_a_hung_server(tmp_path: Path) -> None:
    with RunningDaemon.start(**SOON) as daemon:
        _register(daemon, tmp_path)
        halt(_server_pid(daemon))
        assert daemon.stop() == ExitCode.OK
        assert "batches still running after the grace period" not in daemon.said()
