"""Supervision: what becomes of a batch whose worker ends or hangs, and of workers that use too much."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib import request as urlrequest
from urllib.error import HTTPError

import msgspec
import numpy as np
import psutil
import pytest
from support.inference import Inference
from support.running import RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

from pytriton.daemon import Model
from pytriton.exceptions import RegistrationError
from pytriton.ipc.lane import Batch, Lane
from pytriton.limits import Limits
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor

X = [Tensor(name="x", dtype=np.float32, shape=(-1,))]
Y = [Tensor(name="y", dtype=np.float32, shape=(-1,))]
ONES = np.ones((1, 2), np.float32)
#: First element of a request -> what the callable below does.
ECHO, KILL, KILL_ONCE, SEGFAULT, HANG, PID, LEAK, FORK = 1, 9, 10, 11, 12, 13, 14, 15


@pytest.fixture
def inference(daemon: RunningDaemon) -> Iterator[Inference]:
    connection = Inference("grpc", daemon.grpc)
    yield connection
    connection.close()


@pytest.fixture
def serve(daemon: RunningDaemon) -> Iterator[Callable[..., Model]]:
    """Register a callable for one test."""
    served: list[Model] = []

    def register(infer: Any, name: str = "model", **options: Any) -> Model:
        config = options.pop("config", ModelConfig(max_batch_size=8))
        model = daemon.client.register(infer, name, X, Y, config, progress=False, **options)
        served.append(model)
        return model

    yield register
    for model in served:
        model.unregister()


class Unruly:
    """Does what the first element of the first request says; keeps its notes in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.leaked: list[Any] = []

    def __call__(self, requests: Any) -> Any:
        what = int(requests[0]["x"][0, 0])
        with open(os.path.join(self.folder, "batches"), "a", encoding="ascii") as notes:
            notes.write(f"{what}\n")
        if what == KILL or (what == KILL_ONCE and not self._seen("killed")):
            os.kill(os.getpid(), signal.SIGKILL)
        if what == SEGFAULT:
            ctypes.string_at(0)
        if what == HANG:
            self._hang_on_purpose()
        if what == LEAK:
            self.leaked.append(np.ones(30 << 20, np.uint8))
        if what == FORK:
            for _ in range(20):
                if os.fork() == 0:
                    signal.pause()
            signal.pause()
        value = os.getpid() if what == PID else None
        return [
            {"y": request["x"] if value is None else np.full_like(request["x"], value)}
            for request in requests
        ]

    def _hang_on_purpose(self) -> None:
        threading.Event().wait()

    def _seen(self, name: str) -> bool:
        path = os.path.join(self.folder, name)
        seen = os.path.exists(path)
        Path(path).touch()
        return seen


def _answered(answered: list[int], more: int) -> None:
    """Wait until so many more requests have been answered."""
    wanted = answered[0] + more
    eventually(lambda: answered[0] > wanted, "requests are answered")


def _error_of(connection: Inference) -> str | None:
    try:
        connection.infer("model", {"x": ONES})
    except InferenceServerException as error:
        return str(error)
    return None


def _one_lane_each(model: Model) -> None:
    eventually(
        lambda: {instance.lanes for instance in model.instances} == {1},
        lambda: f"one lane each: {model.instances}",
    )


def batches(folder: Path, what: int) -> int:
    return (folder / "batches").read_text().split().count(str(what))


def is_ready(daemon: RunningDaemon, name: str) -> bool:
    try:
        urlrequest.urlopen(f"http://{daemon.http}/v2/models/{name}/ready", timeout=10).close()
    except HTTPError as error:
        error.close()
        return False
    return True


# ── batches of a worker that ended ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("instances", [1, 2])
def test_a_batch_is_tried_again_in_another_worker(
    inference: Inference, serve: Callable[..., Model], tmp_path: Path, instances: int
) -> None:
    """By default its clients never notice, also when there is only one worker, which is replaced."""
    model = serve(Unruly(tmp_path), instances=instances)
    answer = inference.infer("model", {"x": ONES * KILL_ONCE})["y"]
    assert answer.tolist() == (ONES * KILL_ONCE).tolist()
    assert batches(tmp_path, KILL_ONCE) == 2
    assert sum(len(instance.ends) for instance in model.instances) == 1


def test_a_batch_that_ends_two_workers_is_not_tried_again(
    inference: Inference, serve: Callable[..., Model], tmp_path: Path
) -> None:
    """It is taken for poison, which its clients are told; the model goes on."""
    model = serve(Unruly(tmp_path), instances=2)
    with pytest.raises(InferenceServerException, match=r"SIGSEGV.*so did 1 more before"):
        inference.infer("model", {"x": ONES * SEGFAULT})
    assert batches(tmp_path, SEGFAULT) == 2
    assert inference.infer("model", {"x": ONES})["y"].tolist() == ONES.tolist()
    model.wait_ready()


def test_a_model_can_say_that_its_batches_must_not_run_twice(
    inference: Inference, serve: Callable[..., Model], tmp_path: Path
) -> None:
    """on_crash="fail": the error comes at once."""
    serve(Unruly(tmp_path), instances=2, on_crash="fail")
    with pytest.raises(InferenceServerException, match="SIGKILL"):
        inference.infer("model", {"x": ONES * KILL_ONCE})
    assert batches(tmp_path, KILL_ONCE) == 1


def test_what_a_worker_had_not_begun_is_never_lost(
    daemon: RunningDaemon, serve: Callable[..., Model], tmp_path: Path
) -> None:
    """Even with on_crash="fail": workers are killed under load while idle or busy; only begun batches fail."""
    model = serve(Unruly(tmp_path), instances=2, on_crash="fail")
    stop = threading.Event()
    answered = [0]
    texts: list[str] = []

    def ask() -> None:
        connection = Inference("grpc", daemon.grpc)
        while not stop.is_set():
            text = _error_of(connection)
            answered[0] += text is None
            texts.extend([] if text is None else [text])
        connection.close()

    with ThreadPoolExecutor(3) as threads:
        asking = [threads.submit(ask) for _ in range(3)]
        try:
            for _ in range(6):
                model.wait_ready()
                _answered(answered, 20)
                # One that has answered nothing would count as part of a crash loop.
                busiest = max(model.instances, key=lambda instance: instance.batches)
                assert busiest.pid is not None
                os.kill(busiest.pid, signal.SIGKILL)
        finally:
            stop.set()
    for one in asking:
        one.result()
    assert all(re.search("SIGKILL.* while it ran this batch", text) for text in texts), texts
    assert len(texts) <= 6


def test_how_a_worker_ended_is_recorded(
    inference: Inference, serve: Callable[..., Model], tmp_path: Path
) -> None:
    """Signal, peak memory, batches answered, and faulthandler's trace."""
    model = serve(Unruly(tmp_path), on_crash="fail")
    inference.infer("model", {"x": ONES})
    with pytest.raises(InferenceServerException, match="SIGSEGV"):
        inference.infer("model", {"x": ONES * SEGFAULT})
    model.wait_ready()
    (end,) = model.instances[0].ends
    assert (end.signal, end.exit_code, end.batches, end.in_batch) == ("SIGSEGV", None, 1, True)
    assert end.peak_memory > 10 << 20
    trace = "\n".join(end.lines)
    assert "Segmentation fault" in trace
    assert "string_at" in trace


def test_a_client_that_goes_away_does_not_touch_its_batch_mates(
    daemon: RunningDaemon, serve: Callable[..., Model]
) -> None:
    """Three requests are batched; one client gives up meanwhile; the others are answered."""

    def slow(requests: Any) -> Any:
        time.sleep(1)
        return [{"y": request["x"] * len(requests)} for request in requests]

    batcher = DynamicBatcher(max_queue_delay_microseconds=300_000)
    serve(slow, config=ModelConfig(max_batch_size=3, batcher=batcher))

    def ask(timeout_s: float) -> Any:
        connection = Inference("grpc", daemon.grpc)
        try:
            return connection.infer("model", {"x": ONES}, client_timeout=timeout_s)["y"][0, 0]
        finally:
            connection.close()

    with ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(ask, timeout_s) for timeout_s in (30, 0.7, 30)]
    assert [one.result() for one in (asked[0], asked[2])] == [3, 3]
    with pytest.raises(InferenceServerException, match="Deadline"):
        asked[1].result()


def test_a_proxy_that_is_killed(daemon: RunningDaemon, inference: Inference) -> None:
    """Triton would leave it dead; another one is started, the worker stays; nobody waits for a farewell."""
    model = daemon.client.register(
        lambda requests: [{"y": request["x"]} for request in requests],
        "model",
        X,
        Y,
        progress=False,
    )
    worker = model.instances[0].pid
    for _ in range(2):
        _stub(daemon).kill()
        eventually(lambda: _error_of(inference) is None, "another proxy has been started")
    assert (model.instances[0].pid, model.instances[0].lanes) == (worker, 1)
    assert len(_regions(daemon)) == 1
    _stub(daemon).kill()
    model.unregister()
    assert "batches still run after the grace period" not in daemon.said()


def _regions(daemon: RunningDaemon) -> list[str]:
    return [e.name for e in os.scandir("/dev/shm") if f"-{daemon.process.pid}-" in e.name]


def _stub(daemon: RunningDaemon) -> psutil.Process:
    """The newest proxy's process."""
    stubs = [child for child in daemon.children() if "stub" in child.name()]
    return max(stubs, key=lambda stub: stub.create_time())


# ── spares ───────────────────────────────────────────────────────────────────────────────────────


def test_a_spare_takes_over(
    daemon: RunningDaemon, inference: Inference, serve: Callable[..., Model], tmp_path: Path
) -> None:
    """The batch of a worker that ended is answered by a worker that was loaded before it ended."""
    model = serve(Unruly(tmp_path), spares=1)
    infos = model.instances
    assert [(info.spare, info.lanes, info.state) for info in infos] == [
        (False, 1, "ready"),
        (True, 0, "ready"),
    ]
    inference.infer("model", {"x": ONES * KILL_ONCE})
    assert inference.infer("model", {"x": ONES * PID})["y"][0, 0] == np.float32(infos[1].pid)
    eventually(lambda: model.instances[0].state == "ready", "the dead worker is replaced")
    assert [info.lanes for info in model.instances] == [0, 1]


# ── hanging ──────────────────────────────────────────────────────────────────────────────────────


def test_a_batch_that_hangs_is_answered_and_its_worker_replaced(
    daemon: RunningDaemon, inference: Inference, serve: Callable[..., Model], tmp_path: Path
) -> None:
    """The log has the stacks of the hung worker; it is not tried again."""
    model = serve(Unruly(tmp_path), execution_timeout_s=0.5)
    pid = model.instances[0].pid
    with pytest.raises(InferenceServerException, match=r"0.5 s \(execution_timeout_s\)"):
        inference.infer("model", {"x": ONES * HANG}, client_timeout=30)
    assert inference.infer("model", {"x": ONES})["y"].tolist() == ONES.tolist()
    assert batches(tmp_path, HANG) == 1
    model.wait_ready()
    assert model.instances[0].pid != pid
    assert "_hang_on_purpose" in "\n".join(daemon.client.logs("model"))


def test_a_stopped_worker_is_replaced_and_its_batch_tried_again(
    inference: Inference, serve: Callable[..., Model], tmp_path: Path
) -> None:
    """It had not taken the batch, so nothing is lost."""
    model = serve(Unruly(tmp_path), execution_timeout_s=0.5)
    inference.infer("model", {"x": ONES})
    pid = model.instances[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    assert inference.infer("model", {"x": ONES}, client_timeout=30)["y"].tolist() == ONES.tolist()
    assert model.instances[0].pid != pid


def test_waiting_for_another_batch_is_not_hanging(
    daemon: RunningDaemon, serve: Callable[..., Model], tmp_path: Path
) -> None:
    """Two proxies share one worker, the other has been given up: each batch has its own time."""
    marker = tmp_path / "loaded"

    def factory() -> Any:
        if marker.exists() and marker.read_text() == "no more":
            raise RuntimeError("no more workers")

        def slow(requests: Any) -> Any:
            time.sleep(0.7)
            return [{"y": request["x"]} for request in requests]

        return slow

    with RunningDaemon.start(worker_restart_limit=1, worker_backoff_s=0.01) as own:
        model = own.client.register(
            factory, "slow", X, Y, ModelConfig(max_batch_size=1), factory=True, instances=2,
            execution_timeout_s=1.0, progress=False,
        )  # fmt: skip
        marker.write_text("no more")
        pid = model.instances[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: model.instances[0].state == "failed", lambda: str(model.instances))

        def ask() -> Any:
            connection = Inference("grpc", own.grpc)
            try:
                return connection.infer("slow", {"x": ONES}, client_timeout=60)["y"]
            finally:
                connection.close()

        with ThreadPoolExecutor(4) as threads:
            asked = [threads.submit(ask) for _ in range(4)]
        assert all(one.result().tolist() == ONES.tolist() for one in asked)
        assert model.instances[1].restarts == 0


# ── limits ───────────────────────────────────────────────────────────────────────────────────────


def test_a_leaking_worker_is_replaced_between_batches(
    inference: Inference, serve: Callable[..., Model], tmp_path: Path
) -> None:
    """Soft limit: no request fails, and the new worker was loaded before the old one ended."""
    model = serve(Unruly(tmp_path), limits=Limits(memory="150MiB"))
    first = model.instances[0].pid
    for _ in range(12):
        inference.infer("model", {"x": ONES * LEAK})
    eventually(lambda: model.instances[0].restarts > 0, "the worker is replaced")
    inference.infer("model", {"x": ONES})
    assert model.instances[0].pid != first
    assert model.instances[0].ends == []


def test_a_worker_cannot_pass_its_hard_limit(
    inference: Inference, serve: Callable[..., Model]
) -> None:
    """The allocation fails in the callable; the worker and the model go on."""

    def allocate(requests: Any) -> Any:
        count = int(requests[0]["x"][0, 0])
        return [{"y": request["x"] + np.ones(count << 20, np.uint8)[0]} for request in requests]

    model = serve(allocate, limits=Limits(memory_hard="1GiB"))
    with pytest.raises(InferenceServerException, match=r"MemoryError|Unable to allocate"):
        inference.infer("model", {"x": ONES * 2000})
    assert inference.infer("model", {"x": ONES})["y"].tolist() == (ONES * 2).tolist()
    assert model.instances[0].restarts == 0


def test_a_model_that_forks_without_end_is_ended(
    inference: Inference, serve: Callable[..., Model], tmp_path: Path
) -> None:
    """With all that it started; the client is told why."""
    model = serve(Unruly(tmp_path), limits=Limits(processes=5), on_crash="fail")
    first = model.instances[0].pid
    with pytest.raises(InferenceServerException, match=r"\d+ processes, and may have 5 \(limits\)"):
        inference.infer("model", {"x": ONES * FORK}, client_timeout=30)
    model.wait_ready()
    assert first is not None
    eventually(lambda: not _alive_in_group(first), "all of them have ended")


def _alive_in_group(group: int) -> list[int]:
    return [
        process.pid
        for process in psutil.process_iter(["status"])
        if process.info["status"] != "zombie" and _group(process.pid) == group
    ]


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def test_limits_are_set_in_the_worker(inference: Inference, serve: Callable[..., Model]) -> None:
    """Files, CPUs, niceness; and where memory ends, the kernel takes workers first."""

    def look(requests: Any) -> Any:
        import resource
        from pathlib import Path as P

        values = [
            resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            *os.sched_getaffinity(0),
            os.nice(0),
            int(P("/proc/self/oom_score_adj").read_text()),
        ]
        return [{"y": np.array([values], np.float32)} for _ in requests]

    cpu = max(os.sched_getaffinity(0))
    serve(look, limits=Limits(open_files=300, cpus=[cpu], nice=3))
    assert inference.infer("model", {"x": ONES})["y"].tolist() == [[300, cpu, os.nice(0) + 3, 500]]


def test_a_cpu_that_is_not_there(daemon: RunningDaemon, tmp_path: Path) -> None:
    with pytest.raises(RegistrationError, match=r"cpus=\[4000\] cannot be used"):
        daemon.client.register(
            Unruly(tmp_path), "cpu", X, Y, limits=Limits(cpus=[4000]), progress=False
        )


def test_a_worker_is_replaced_after_so_many_batches(
    daemon: RunningDaemon, inference: Inference, serve: Callable[..., Model], tmp_path: Path
) -> None:
    """max_batches, under load: no request fails."""
    model = serve(Unruly(tmp_path), max_batches=20, instances=2, on_crash="fail")
    pids = set()
    for _ in range(150):
        pids.add(float(inference.infer("model", {"x": ONES * PID})["y"][0, 0]))
    eventually(lambda: sum(i.restarts for i in model.instances) >= 2, "workers are replaced")
    assert len(pids) > 1
    assert all(not instance.ends for instance in model.instances)


# ── readiness ────────────────────────────────────────────────────────────────────────────────────


def test_readiness_follows_the_workers(tmp_path: Path) -> None:
    """No worker for a while: not ready in Triton, requests fail at once; a worker is back: ready."""
    gate = tmp_path / "gate"
    gate.touch()

    def factory() -> Any:
        while not gate.exists():
            time.sleep(0.02)
        return lambda requests: [{"y": request["x"]} for request in requests]

    with RunningDaemon.start(unready_after_s=0.3) as daemon:
        model = daemon.client.register(factory, "gated", X, Y, factory=True, progress=False)
        assert is_ready(daemon, "gated")
        gate.unlink()
        pid = model.instances[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not is_ready(daemon, "gated"), "the model is not ready")
        assert model.info().state == "unready"
        inference = Inference("grpc", daemon.grpc)
        with pytest.raises(InferenceServerException, match="gated"):
            inference.infer("gated", {"x": ONES}, client_timeout=30)
        gate.touch()
        eventually(lambda: is_ready(daemon, "gated"), "the model is ready again")
        model.wait_ready()
        assert inference.infer("gated", {"x": ONES})["y"].tolist() == ONES.tolist()
        inference.close()


def test_a_model_that_was_given_up_is_not_ready_and_can_be_unregistered(tmp_path: Path) -> None:
    """Without waiting: no worker will come any more. A new registration takes its place."""
    marker = tmp_path / "loaded"

    def factory() -> Any:
        if marker.exists():
            raise RuntimeError("no second time")
        marker.touch()
        return Unruly(tmp_path)

    with RunningDaemon.start(
        worker_restart_limit=0, worker_backoff_s=0.01, unready_after_s=1000
    ) as daemon:
        model = daemon.client.register(factory, "once", X, Y, factory=True, progress=False)
        inference = Inference("grpc", daemon.grpc)
        with pytest.raises(InferenceServerException, match="SIGKILL"):
            inference.infer("once", {"x": ONES * KILL}, client_timeout=30)
        eventually(lambda: not is_ready(daemon, "once"), "the model is not ready")
        assert model.info().state == "unready"
        marker.unlink()
        daemon.client.register(factory, "once", X, Y, factory=True, replace=True, progress=False)
        assert inference.infer("once", {"x": ONES})["y"].tolist() == ONES.tolist()
        daemon.client.unregister("once")
        assert daemon.client.models() == []
        inference.close()


# ── scaling, checks ──────────────────────────────────────────────────────────────────────────────


def test_scaling_fails_no_request(
    daemon: RunningDaemon, serve: Callable[..., Model], tmp_path: Path
) -> None:
    """Up and down under load; then there are as many workers and proxies as asked for."""
    model = serve(Unruly(tmp_path), on_crash="fail")
    stop = threading.Event()
    answered = [0]

    def ask() -> None:
        connection = Inference("grpc", daemon.grpc)
        while not stop.is_set():
            connection.infer("model", {"x": ONES})
            answered[0] += 1
        connection.close()

    with ThreadPoolExecutor(3) as threads:
        asking = [threads.submit(ask) for _ in range(3)]
        try:
            for count in (3, 1, 2):
                model.scale(count)
                _answered(answered, 30)
                assert [i.state for i in model.instances] == ["ready"] * count
                _one_lane_each(model)
        finally:
            stop.set()
    for one in asking:
        one.result()


def test_scaling_that_cannot_be(daemon: RunningDaemon, serve: Callable[..., Model]) -> None:
    """Refused with a reason, and everything is as it was."""
    model = serve([lambda r: r, lambda r: r])
    with pytest.raises(RegistrationError, match="a list of 2 callables"):
        model.scale(3)
    with pytest.raises(RegistrationError, match="takes at least 1"):
        model.scale(0)
    assert [i.state for i in model.instances] == ["ready", "ready"]


def test_scaling_up_fails_when_a_worker_cannot_be_loaded(
    daemon: RunningDaemon, inference: Inference, serve: Callable[..., Model], tmp_path: Path
) -> None:
    marker = tmp_path / "full"

    def factory() -> Any:
        if marker.exists():
            raise RuntimeError("the device is full")
        return lambda requests: [{"y": request["x"]} for request in requests]

    model = serve(factory, factory=True)
    marker.touch()
    with pytest.raises(RegistrationError, match="the device is full"):
        model.scale(2)
    assert inference.infer("model", {"x": ONES})["y"].tolist() == ONES.tolist()
    assert [i.state for i in model.instances] == ["ready"]


def test_a_check_keeps_a_bad_replacement_out(
    daemon: RunningDaemon, inference: Inference, serve: Callable[..., Model]
) -> None:
    """It is called with the loaded callable, in the worker."""

    def check(infer: Any) -> None:
        (answer,) = infer([{"x": np.ones((1, 1), np.float32)}])
        if answer["y"][0, 0] != 2:
            raise ValueError(f"1 became {answer['y'][0, 0]}")

    def adder(step: float) -> Any:
        return lambda requests: [{"y": request["x"] + step} for request in requests]

    serve(adder(1), check=check)
    with pytest.raises(RegistrationError, match="ValueError: 1 became 6"):
        daemon.client.register(
            adder(5), "model", X, Y, ModelConfig(max_batch_size=8), replace=True, check=check,
            progress=False,
        )  # fmt: skip
    assert inference.infer("model", {"x": ONES})["y"].tolist() == (ONES + 1).tolist()


# ── what reaches a worker by its lane ────────────────────────────────────────────────────────────


def test_an_error_that_is_no_unicode_ends_nobody(
    inference: Inference, serve: Callable[..., Model]
) -> None:
    """A file name that is not UTF-8, say, in an exception's text."""

    def infer(requests: Any) -> Any:
        raise FileNotFoundError(os.fsdecode(b"/data/\xff.bin"))

    model = serve(infer)
    with pytest.raises(InferenceServerException, match=r"FileNotFoundError: /data/\\udcff.bin"):
        inference.infer("model", {"x": ONES})
    assert model.instances[0].restarts == 0


def test_a_peer_that_stalls_does_not_hold_a_worker_up(
    daemon: RunningDaemon, inference: Inference, serve: Callable[..., Model]
) -> None:
    """One lane announces memory and says no more; another sends batches and reads no answer."""
    model = serve(lambda requests: [{"y": request["x"]} for request in requests])
    (path,) = daemon.config.rundir.lanes.glob("*.sock")
    silent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    greedy = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with silent, greedy:
        silent.connect(str(path))
        lane = Lane(silent, peer_trusted=True)
        lane.announce(7, os.open("/dev/null", os.O_RDONLY))
        greedy.connect(str(path))
        greedy.settimeout(20)
        with pytest.raises(ConnectionError):
            _send_without_end(greedy)
        assert inference.infer("model", {"x": ONES})["y"].tolist() == ONES.tolist()
    assert model.instances[0].restarts == 0


def _send_without_end(peer: socket.socket) -> None:
    while True:
        peer.send(msgspec.msgpack.encode(Batch(1, [])))
