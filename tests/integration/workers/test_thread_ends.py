"""isolation="thread": how the daemon ends, and a thread that hangs, with a daemon for each test."""

from __future__ import annotations

import logging
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fakes.in_process_models import pytriton_threads, serve
from support.models.inference import Array, Inference, infer_once
from support.models.tensors import ONES, X, Y
from support.real_daemon import ANSWER_S, RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

from pytriton.daemon import connect
from pytriton.decorators import batch


def test_nothing_is_persisted_and_the_daemon_s_exit_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = str(tmp_path / "state")
    with RunningDaemon.start(ephemeral=False, state_dir=state) as running:
        client = connect(running.config.runtime_dir, ANSWER_S)
        client.register(batch(lambda x: {"y": x}), "model", X, Y, progress=False)
        serve(client, batch(lambda x: {"y": x}), replace=True)
        assert not list((tmp_path / "state" / "models").iterdir())
        running.stop(signal.SIGKILL)
        eventually(lambda: not pytriton_threads(), "the threads have ended")
    [record] = [one for one in caplog.records if one.name == "pytriton._register.thread_host"]
    assert record.levelno == logging.WARNING
    assert f"the daemon in {running.config.runtime_dir} exited" in record.getMessage()


def test_an_unrecoverable_error_stops_the_daemon(
    fresh_daemon: RunningDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    from pytriton._protocol.exit_codes import ExitCode
    from pytriton.exceptions import PyTritonUnrecoverableError

    @batch
    def infer(x: Array) -> dict[str, Array]:
        raise PyTritonUnrecoverableError("the GPU fell off")

    serve(connect(fresh_daemon.config.runtime_dir, ANSWER_S), infer)
    with pytest.raises(InferenceServerException, match="the GPU fell off"):
        infer_once(fresh_daemon, "model", {"x": ONES}, "grpc")
    assert fresh_daemon.process.wait(60) == ExitCode.UNRECOVERABLE
    eventually(lambda: not pytriton_threads(), "the threads have ended")
    assert "no longer served by this process: the daemon is stopping" in caplog.text


def test_a_hung_thread_is_abandoned(caplog: pytest.LogCaptureFixture) -> None:
    begun, go = threading.Event(), threading.Event()

    @batch
    def infer(x: Array) -> dict[str, Array]:
        begun.set()
        go.wait(60)
        return {"y": x}

    with RunningDaemon.start(grace_period_s=1) as running, ThreadPoolExecutor(1) as executor:
        client = connect(running.config.runtime_dir, ANSWER_S)
        model = serve(client, infer)
        connection = Inference("grpc", running.grpc)
        executor.submit(connection.infer, "model", {"x": ONES})
        assert begun.wait(60)
        model.unregister()
        assert [name for name in pytriton_threads() if "[" in name]  # a thread cannot be killed
        assert "worker thread did not stop; abandoning it" in running.said()
        go.set()
        eventually(lambda: not pytriton_threads(), "it ends by itself")
        connection.close()
