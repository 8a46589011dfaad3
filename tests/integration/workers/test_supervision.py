"""Supervision: what becomes of a batch whose worker exits or hangs, and other failures around workers."""

from __future__ import annotations

import faulthandler
import os
import queue
import re
import signal
import socket
import subprocess
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
import tritonclient.grpc
from support.load.under_load import under_load
from support.misbehaving_model import (
    HANG,
    KILL_ONCE,
    PID,
    SEGFAULT,
    MisbehavingModel,
    Serve,
    batches,
    serving,
)
from support.models.inference import Inference
from support.models.tensors import ONES
from support.real_daemon import RunningDaemon, eventually, halt
from tritonclient.utils import InferenceServerException

from pytriton._protocol.lanes.lane import Lane
from pytriton._protocol.lanes.lane_messages import Batch
from pytriton.model_config import DynamicBatcher, ModelConfig

#: What a batch may take that takes no time: long, where others want the same cores.
PATIENCE_S = 3.0


def _error_of(connection: Inference) -> str | None:
    try:
        connection.infer("model", {"x": ONES})
    except InferenceServerException as error:
        return str(error)
    return None


# ── batches of a worker that ended ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("instances", [1, 2])
def test_a_batch_is_retried_in_another_worker(
    inference: Inference, serve: Serve, tmp_path: Path, instances: int
) -> None:
    """By default clients notice nothing, even if the only worker has to be replaced first."""
    model = serve(MisbehavingModel(tmp_path), instances=instances)
    answer = inference.infer("model", {"x": ONES * KILL_ONCE})["y"]
    assert answer.tolist() == (ONES * KILL_ONCE).tolist()
    assert batches(tmp_path, KILL_ONCE) == 2
    # The other worker may have answered before the dispatcher has seen the end of this one.
    eventually(lambda: any(one.exits for one in model.instances), "the end is recorded")
    assert sum(len(instance.exits) for instance in model.instances) == 1


def test_a_batch_that_kills_two_workers_is_not_retried(
    inference: Inference, serve: Serve, tmp_path: Path
) -> None:
    """It is treated as poison, which its clients are told; the model survives."""
    model = serve(MisbehavingModel(tmp_path), instances=2)
    with pytest.raises(
        InferenceServerException, match=r"SIGSEGV.*1 worker crashed on the same request before"
    ):
        inference.infer("model", {"x": ONES * SEGFAULT})
    assert batches(tmp_path, SEGFAULT) == 2
    assert inference.infer("model", {"x": ONES})["y"].tolist() == ONES.tolist()
    model.wait_ready()


def test_batches_that_have_not_started_are_never_lost(
    daemon: RunningDaemon, serve: Serve, tmp_path: Path
) -> None:
    """Even with on_crash="fail": workers are killed under load, idle or busy; only started batches fail."""
    # One request in a batch, and one batch in a worker: each kill fails one at most.
    one = ModelConfig(max_batch_size=1)
    model = serve(
        MisbehavingModel(tmp_path), instances=2, on_crash="fail", config=one, max_inflight_batches=1
    )
    with under_load(daemon, tolerant=True) as load:
        for _ in range(6):
            model.wait_ready()
            load.wait(20)
            # One that has answered nothing would count as part of a crash loop.
            busiest = max(model.instances, key=lambda instance: instance.batches)
            assert busiest.pid is not None
            os.kill(busiest.pid, signal.SIGKILL)
    texts = load.errors
    assert all(re.search("SIGKILL.* while it ran this batch", text) for text in texts), texts
    assert len(texts) <= 6


def test_a_workers_exit_is_recorded(inference: Inference, serve: Serve, tmp_path: Path) -> None:
    """Signal, peak memory, number of batches, and faulthandler's trace."""
    model = serve(MisbehavingModel(tmp_path), on_crash="fail")
    inference.infer("model", {"x": ONES})
    with pytest.raises(InferenceServerException, match="SIGSEGV"):
        inference.infer("model", {"x": ONES * SEGFAULT})
    # Until the daemon has looked after its end, the instance counts as ready.
    (end,) = eventually(lambda: model.instances[0].exits, "the end is recorded")
    assert (end.signal, end.exit_code, end.batches, end.in_batch) == ("SIGSEGV", None, 1, True)
    assert end.peak_memory > 10 << 20
    trace = "\n".join(end.lines)
    assert "Segmentation fault" in trace
    assert "string_at" in trace


def test_a_cancelled_request_does_not_affect_its_batch(
    daemon: RunningDaemon, serve: Serve, tmp_path: Path
) -> None:
    """One of three batched requests is cancelled; the others are answered."""

    def slow(requests: Any) -> Any:
        (tmp_path / "begun").touch()
        eventually((tmp_path / "go").exists, "the client has gone")
        time.sleep(0.5)  # tritonserver has heard of it by now, mostly
        return [{"y": request["x"] * len(requests)} for request in requests]

    # However late the third comes, the batch waits for it.
    batcher = DynamicBatcher(max_queue_delay_microseconds=60_000_000)
    serve(slow, config=ModelConfig(max_batch_size=3, batcher=batcher))
    tensor = tritonclient.grpc.InferInput("x", list(ONES.shape), "FP32")
    tensor.set_data_from_numpy(ONES)
    with ExitStack() as clients:
        outcomes: list[queue.Queue[Any]] = [queue.Queue() for _ in range(3)]
        calls = []
        for outcome in outcomes:
            client = tritonclient.grpc.InferenceServerClient(daemon.grpc)
            clients.callback(client.close)
            calls.append(client.async_infer("model", [tensor], partial(_note, outcome)))
        eventually((tmp_path / "begun").exists, "the batch has begun")
        calls[1].cancel()
        gone = outcomes[1].get(timeout=60)
        (tmp_path / "go").touch()
        answers = [outcomes[number].get(timeout=60) for number in (0, 2)]
    assert "cancelled" in str(gone)
    assert [answer.as_numpy("y")[0, 0] for answer in answers] == [3, 3]


def _note(outcome: queue.Queue[Any], result: Any, error: Any) -> None:
    outcome.put(error or result)


def test_a_killed_proxy_is_restarted() -> None:
    """Triton would not restart it. The worker stays, and nothing waits for the proxy's shutdown."""
    with RunningDaemon.start(proxy="python") as daemon:  # the compiled one is no process of its own
        inference = Inference("grpc", daemon.grpc)
        with serving(daemon) as serve:
            model = serve(lambda requests: [{"y": request["x"]} for request in requests])
            worker = model.instances[0].pid
            for _ in range(2):
                _stub(daemon).kill()
                eventually(lambda: _error_of(inference) is None, "another proxy has been started")
            eventually(
                lambda: model.instances[0].lanes == 1, "the lane of the killed one is closed"
            )
            assert model.instances[0].pid == worker
            eventually(lambda: len(daemon.regions()) == 1, lambda: str(daemon.regions()))
            _stub(daemon).kill()
        inference.close()
        assert "batches still running after the grace period" not in daemon.said()


def _stub(daemon: RunningDaemon) -> psutil.Process:
    """Return the newest proxy process."""
    return max(daemon.stubs(), key=lambda stub: stub.create_time())


# ── standby workers ───────────────────────────────────────────────────────────────────────────────────────


def test_a_dead_worker_is_not_ready(daemon: RunningDaemon, serve: Serve, tmp_path: Path) -> None:
    """From its end on, though cleaning up takes a while: another process still has its output open."""

    def factory() -> Any:
        # It leaves the worker's process group.
        holder = subprocess.Popen(["sleep", "300"], start_new_session=True)
        with open(tmp_path / "holders", "a", encoding="ascii") as notes:
            notes.write(f"{holder.pid}\n")
        return lambda requests: [{"y": request["x"]} for request in requests]

    def is_ready() -> bool:
        info = model.instances[0]
        assert info.state != "ready" or info.pid is not None
        return info.state == "ready"

    model = serve(factory, factory=True)
    former = model.instances[0].pid
    assert former is not None
    try:
        os.kill(former, signal.SIGKILL)
        eventually(lambda: model.instances[0].pid != former, "its end is noticed")
        eventually(is_ready, "it is replaced")
    finally:
        for pid in (tmp_path / "holders").read_text().split():
            os.kill(int(pid), signal.SIGKILL)


def test_a_standby_worker_takes_over(
    daemon: RunningDaemon, inference: Inference, serve: Serve, tmp_path: Path
) -> None:
    """A batch of a dead worker is answered by one that was loaded before."""
    model = serve(MisbehavingModel(tmp_path), standby_workers=1)
    infos = model.instances
    assert [(info.standby, info.lanes, info.state) for info in infos] == [
        (False, 1, "ready"),
        (True, 0, "ready"),
    ]
    inference.infer("model", {"x": ONES * KILL_ONCE})
    assert inference.infer("model", {"x": ONES * PID})["y"][0, 0] == np.float32(infos[1].pid)
    eventually(
        lambda: (
            [(info.state, info.lanes) for info in model.instances] == [("ready", 0), ("ready", 1)]
        ),
        lambda: f"the dead worker is replaced, as a standby: {model.instances}",
    )


# ── hanging ──────────────────────────────────────────────────────────────────────────────────────


def test_a_hung_batch_fails_and_its_worker_is_replaced(
    daemon: RunningDaemon, inference: Inference, serve: Serve, tmp_path: Path
) -> None:
    """The log has the stacks of the hung worker; the batch is not retried."""
    model = serve(MisbehavingModel(tmp_path), execution_timeout_s=PATIENCE_S)
    pid = model.instances[0].pid
    with pytest.raises(InferenceServerException, match=r"3 s \(execution_timeout_s\)"):
        inference.infer("model", {"x": ONES * HANG}, client_timeout=100)
    eventually(lambda: _error_of(inference) is None, "another worker answers in time")
    assert batches(tmp_path, HANG) == 1
    model.wait_ready()
    assert model.instances[0].pid != pid
    assert "_hang_on_purpose" in "\n".join(daemon.client.logs("model"))


def test_the_supervisor_waits_for_a_slow_stack_dump(
    daemon: RunningDaemon, inference: Inference, serve: Serve
) -> None:
    """As if the worker got no core at first."""

    def slow_to_print(requests: Any) -> Any:
        def late(*_: object) -> None:
            time.sleep(2)
            faulthandler.dump_traceback()

        signal.signal(signal.SIGQUIT, late)
        while True:
            time.sleep(60)

    model = serve(slow_to_print, execution_timeout_s=PATIENCE_S)
    with pytest.raises(InferenceServerException, match="execution_timeout_s"):
        inference.infer("model", {"x": ONES}, client_timeout=100)
    eventually(lambda: model.instances[0].exits, "the worker has ended")
    assert "in slow_to_print" in "\n".join(daemon.client.logs("model"))


def test_a_stopped_worker_is_replaced_and_its_batch_retried(
    inference: Inference, serve: Serve, tmp_path: Path
) -> None:
    """The worker had not read the batch, so nothing is lost."""
    model = serve(MisbehavingModel(tmp_path), execution_timeout_s=15)  # that of the next, too
    inference.infer("model", {"x": ONES})
    pid = model.instances[0].pid
    assert pid is not None
    halt(pid)
    assert inference.infer("model", {"x": ONES}, client_timeout=100)["y"].tolist() == ONES.tolist()
    assert model.instances[0].pid != pid


# ── what reaches a worker by its lane ────────────────────────────────────────────────────────────


def test_an_error_text_that_is_not_unicode_kills_no_worker(
    inference: Inference, serve: Serve
) -> None:
    """For example a file name that is not UTF-8 in an exception's text."""

    def infer(requests: Any) -> Any:
        raise FileNotFoundError(os.fsdecode(b"/data/\xff.bin"))

    model = serve(infer)
    with pytest.raises(InferenceServerException, match=r"FileNotFoundError: /data/\\udcff.bin"):
        inference.infer("model", {"x": ONES})
    assert model.instances[0].restarts == 0


def test_a_stalled_peer_does_not_block_a_worker(
    daemon: RunningDaemon, inference: Inference, serve: Serve
) -> None:
    """One lane announces memory and sends nothing more; another sends batches and never reads."""
    model = serve(lambda requests: [{"y": request["x"]} for request in requests])
    (path,) = daemon.config.rundir.lanes.glob("*.sock")
    silent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    greedy = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with silent, greedy:
        silent.connect(str(path))
        lane = Lane(silent, peer_trusted=True)
        lane.announce(7, os.open("/dev/null", os.O_RDONLY))
        greedy.connect(str(path))
        greedy.settimeout(60)
        with pytest.raises(ConnectionError):
            _send_without_end(greedy)
        assert inference.infer("model", {"x": ONES})["y"].tolist() == ONES.tolist()
    assert model.instances[0].restarts == 0


def _send_without_end(peer: socket.socket) -> None:
    while True:
        peer.send(msgspec.msgpack.encode(Batch(1, [])))
