"""Shutdown, and what follows when a part of the daemon exits, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.models.inference import Array, infer_once
from support.models.open_stream import open_stream
from support.models.stream_client import Streaming
from support.models.tensors import ONES, X, Y
from support.real_daemon import RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

from pytriton._protocol import messages
from pytriton._protocol.exit_codes import ExitCode
from pytriton.decorators import batch
from pytriton.exceptions import PyTritonUnrecoverableError, RegistrationError
from pytriton.model_config import ModelConfig


def _register(daemon: RunningDaemon, infer: Any, name: str = "model", **options: Any) -> None:
    options = {"progress": False, "config": ModelConfig(max_batch_size=1), **options}
    daemon.client.register(infer, name, X, Y, **options)


def _slow(folder: Path, seconds: float) -> Any:
    """Return a callable that creates a file when it begins, and takes `seconds`."""

    @batch
    def infer(x: Array) -> dict[str, Array]:
        (folder / "begun").touch()
        time.sleep(seconds)
        return {"y": x * 2}

    return infer


@pytest.fixture
def asking() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def _ask(daemon: RunningDaemon) -> Any:
    return infer_once(daemon, "model", {"x": ONES}, "grpc")["y"]


def _ask_and_wait(daemon: RunningDaemon, asking: ThreadPoolExecutor, folder: Path) -> Future[Any]:
    """Send a request, and return once its batch has begun."""
    asked = asking.submit(_ask, daemon)
    eventually((folder / "begun").exists, "the batch has begun")
    return asked


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_batch_in_flight_is_answered_at_shutdown(
    fresh_daemon: RunningDaemon, asking: ThreadPoolExecutor, tmp_path: Path, number: int
) -> None:
    """The daemon then exits with 0 and leaves nothing behind."""
    _register(fresh_daemon, _slow(tmp_path, 1.0))
    asked = _ask_and_wait(fresh_daemon, asking, tmp_path)
    assert fresh_daemon.stop(number) == ExitCode.OK
    assert asked.result().tolist() == (ONES * 2).tolist()
    runtime_dir = Path(fresh_daemon.config.runtime_dir)
    assert not (runtime_dir / "control.sock").exists()
    assert list((runtime_dir / "l").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_child_processes_of_a_callable_end_with_the_daemon(
    fresh_daemon: RunningDaemon, tmp_path: Path, number: int
) -> None:
    """Including those with their own session whose parents have exited."""
    pid_file = tmp_path / "pid"

    @batch
    def infer(x: Array) -> dict[str, Array]:
        command = f"setsid sh -c 'echo $$ > {pid_file}; exec sleep 1000' &"
        subprocess.run(["sh", "-c", command], start_new_session=True, check=True)
        return {"y": x}

    _register(fresh_daemon, infer)
    _ask(fresh_daemon)
    pid = eventually(lambda: pid_file.exists() and pid_file.read_text().strip(), "it has started")
    left = psutil.Process(int(pid))
    if number == signal.SIGTERM:
        assert fresh_daemon.stop(number) == ExitCode.OK
    else:
        fresh_daemon.process.send_signal(number)
        fresh_daemon.process.wait(60)
    _, alive = psutil.wait_procs([left], timeout=60)
    assert not alive


def test_a_drained_daemon_fails_no_request(
    fresh_daemon: RunningDaemon, asking: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """It is not ready, but serves; it waits for a stream that outlasts the settle time, and exits with 0."""
    _register(fresh_daemon, _slow(tmp_path, 0))
    with open_stream(fresh_daemon, tmp_path) as stream:
        fresh_daemon.client.drain(settle_s=600.0, timeout_s=60.0)
        assert not stream.client.is_server_ready()
        assert fresh_daemon.client.status().state == "draining"
        with pytest.raises(RegistrationError, match="the daemon is draining"):
            _register(fresh_daemon, _slow(tmp_path, 0), "late")
        assert asking.submit(_ask, fresh_daemon).result(60).tolist() == (ONES * 2).tolist()
        fresh_daemon.client.drain(settle_s=0.0, timeout_s=60.0)
        eventually(lambda: fresh_daemon.client.status().state == "stopping", "it stops")
        assert stream.is_held
        stream.finish()
    assert fresh_daemon.process.wait(100) == ExitCode.OK


def test_a_batch_fails_after_the_grace_period(asking: ThreadPoolExecutor, tmp_path: Path) -> None:
    """The batch fails with a reason, and the daemon exits."""
    with RunningDaemon.start(grace_period_s=0.5) as daemon:
        _register(daemon, _slow(tmp_path, 600))
        asked = _ask_and_wait(daemon, asking, tmp_path)
        assert daemon.stop() == ExitCode.OK
        with pytest.raises(InferenceServerException):
            asked.result()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_shutdown_ends_the_daemon_at_once(
    asking: ThreadPoolExecutor, tmp_path: Path, number: int
) -> None:
    """A second SIGTERM, or the first SIGINT, as `stop` suggests: batches are lost, but nothing is left behind."""
    with RunningDaemon.start(grace_period_s=600) as daemon:
        _register(daemon, _slow(tmp_path, 600))
        asked = _ask_and_wait(daemon, asking, tmp_path)
        if number == signal.SIGTERM:
            daemon.process.send_signal(number)
        else:
            daemon.client.shutdown()
        eventually(lambda: daemon.client.status().state == "stopping", "it stops")
        assert daemon.stop(number) == ExitCode.INTERRUPTED
        with pytest.raises(InferenceServerException):
            asked.result()


def test_a_killed_daemon_takes_everything_with_it(fresh_daemon: RunningDaemon) -> None:
    """After SIGKILL, tritonserver, its stubs, the workers, their child processes and shared memory are gone."""

    def factory() -> Any:
        subprocess.Popen(["sleep", "1000"])
        return _slow(Path("/"), 0)

    _register(fresh_daemon, factory, factory=True, instances=2)
    # tritonserver, 2 workers and what they have started
    assert len(fresh_daemon.children()) >= 5
    server = fresh_daemon.client.status().server.pid
    family = fresh_daemon.children()
    fresh_daemon.process.kill()
    fresh_daemon.process.wait()
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive
    assert server is not None

    eventually(
        lambda: not fresh_daemon.regions(), lambda: f"nothing left: {fresh_daemon.regions()}"
    )


def test_an_unrecoverable_error_ends_the_daemon_but_lets_others_finish(
    fresh_daemon: RunningDaemon, asking: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """The client gets the error, a batch of another model is answered, and the daemon exits with 70."""

    def infer(requests: Any) -> Any:
        raise PyTritonUnrecoverableError("the GPU has fallen off the bus")

    _register(fresh_daemon, _slow(tmp_path, 1.5))
    _register(fresh_daemon, infer, "broken")
    asked = _ask_and_wait(fresh_daemon, asking, tmp_path)
    with pytest.raises(InferenceServerException, match="the GPU has fallen off the bus"):
        infer_once(fresh_daemon, "broken", {"x": ONES}, "grpc")
    assert asked.result().tolist() == (ONES * 2).tolist()
    assert fresh_daemon.process.wait(100) == ExitCode.UNRECOVERABLE
    assert "the GPU has fallen off the bus" in fresh_daemon.said()


def test_an_unrecoverable_error_of_a_generator_ends_the_daemon(fresh_daemon: RunningDaemon) -> None:
    def infer(requests: Any) -> Iterator[list[Any]]:
        yield [{"y": request["x"]} for request in requests]
        raise PyTritonUnrecoverableError("the device is gone")

    _register(fresh_daemon, infer, config=ModelConfig(decoupled=True))
    with (
        Streaming(fresh_daemon.grpc, "model", {"x": ONES}) as stream,
        pytest.raises(InferenceServerException, match="the device is gone"),
    ):
        list(stream)
    assert fresh_daemon.process.wait(100) == ExitCode.UNRECOVERABLE


def test_a_shutdown_cancels_a_registration(fresh_daemon: RunningDaemon, tmp_path: Path) -> None:
    """The daemon does not wait for it."""

    def factory() -> Any:
        (tmp_path / "loading").touch()
        threading.Event().wait()

    with ThreadPoolExecutor(1) as threads:
        registering = threads.submit(_register, fresh_daemon, factory, factory=True)
        eventually((tmp_path / "loading").exists, "the worker loads")
        assert fresh_daemon.stop() == ExitCode.OK
        with pytest.raises(Exception, match=r"exited before it answered|stop"):
            registering.result()


def test_two_daemons_run_side_by_side(
    daemon: RunningDaemon, fresh_daemon: RunningDaemon, tmp_path: Path
) -> None:
    """Each has its own runtime directory, ports and models."""
    with daemon.without_new_models():
        _register(daemon, _slow(tmp_path, 0))
        assert "model" in [model.name for model in daemon.client.models()]
        assert fresh_daemon.client.models() == []
        assert fresh_daemon.http != daemon.http


def test_a_tritonserver_that_keeps_exiting_is_restarted() -> None:
    """The status reports the exits, and the same workers serve the model in the end."""
    with RunningDaemon.start(server_backoff_max_s=0.1) as daemon:
        _register(daemon, _slow(Path("/"), 0), instances=2)
        workers = _workers(daemon)
        _kill_server(daemon, 7)
        eventually(
            lambda: "SIGKILL" in "".join(daemon.client.status().problems), "status tells of it"
        )
        eventually(lambda: _answers(daemon), "the model is served again")
        assert _workers(daemon) == workers


@pytest.mark.timeout(600)  # twelve starts of tritonserver, and pauses
def test_a_registration_waits_for_tritonservers_restart() -> None:
    """Up to a timeout; the error then names the restart."""
    heard: list[messages.Progress] = []
    with RunningDaemon.start(server_wait_timeout_s=100) as daemon:
        _kill_server(daemon, 6)  # from the second time on, there is a pause; this is one of 8 s
        eventually(lambda: daemon.client.status().server.state == "starting", "its end is seen")
        _register(daemon, _slow(Path("/"), 0), progress=heard.append)
        assert _ask(daemon).tolist() == (ONES * 2).tolist()
    assert heard[0].text == "waiting: tritonserver is being started"
    with RunningDaemon.start(server_wait_timeout_s=0.1) as daemon:
        _kill_server(daemon, 6)
        eventually(lambda: daemon.client.status().server.state == "starting", "its end is seen")
        with pytest.raises(RegistrationError, match=r"0.1 s, because tritonserver is being"):
            _register(daemon, _slow(Path("/"), 0))


def _workers(daemon: RunningDaemon) -> list[int | None]:
    """Return the pids of the model's workers."""
    return [one.pid for one in daemon.client.status().models[0].instances]


def _answers(daemon: RunningDaemon) -> bool:
    try:
        return bool(_ask(daemon).tolist() == (ONES * 2).tolist())
    except InferenceServerException:  # not up yet
        return False


def _kill_server(daemon: RunningDaemon, times: int) -> None:
    """Kill `times` tritonservers in a row, each once it is ready."""
    former = None

    def another() -> int | None:
        server = daemon.client.status().server
        return None if server.pid == former or server.state != "ready" else server.pid

    for _ in range(times):
        former = int(eventually(another, "another tritonserver is up", 100))
        os.kill(former, signal.SIGKILL)
