"""Several lanes per worker, with a real daemon: defaults, merging, fairness, exits, scaling, timeouts."""

from __future__ import annotations

import array
import fcntl
import json
import os
import signal
import socket
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.models.inference import Array, Inference, infer_once
from support.models.tensors import Y
from support.real_daemon import RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

from pytriton._protocol.lanes.lane_messages import Batch, RequestRef
from pytriton.daemon import Model
from pytriton.exceptions import RegistrationError
from pytriton.model_config import ModelConfig, Tensor

X = [Tensor(name="x", dtype=np.float32, shape=(-1,), optional=True)]
PLAIN = ModelConfig(batching=False)
#: Every request is a batch of its own.
SINGLY = ModelConfig(max_batch_size=8, batcher=None)
#: The first element of a request: hold the call until so many batches wait on the worker's lanes,
#: and then perhaps end the worker.
HOLD, DIE = 1000, 2000
#: More than an announcement, less than any batch.
_ANNOUNCED_BYTES = 16


class Noting:
    """Records the first element of each request of each call, and returns the double."""

    def __init__(self, folder: Path) -> None:
        self.notes = str(folder / "calls")

    def __call__(self, requests: Any) -> Any:
        values = [int(r["x"].flat[0]) if "x" in r else None for r in requests]
        with open(self.notes, "a", encoding="ascii") as notes:
            notes.write(json.dumps(values) + "\n")
        what = values[0] or 0
        if what >= HOLD:
            while self._waiting() < what % HOLD:
                time.sleep(0.005)  # no event reports that a second message has arrived
        if what >= DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        return [{"y": r["x"] * 2 if "x" in r else np.zeros(1, np.float32)} for r in requests]

    def _waiting(self) -> int:
        """Count the lanes of this worker on which a batch waits."""
        waiting = 0
        for name in os.listdir("/proc/self/fd"):
            try:
                fd = os.dup(int(name))
            except OSError:
                continue  # the one with which the folder was listed
            try:
                with socket.socket(fileno=fd) as end:
                    left = array.array("i", [0])
                    if end.type == socket.SOCK_SEQPACKET and not end.getsockopt(
                        socket.SOL_SOCKET, socket.SO_ACCEPTCONN
                    ):
                        fcntl.ioctl(end.fileno(), termios.FIONREAD, left)
                    waiting += left[0] > _ANNOUNCED_BYTES
            except OSError:
                os.close(fd)  # no socket
        return waiting


@pytest.fixture
def serve(daemon: RunningDaemon) -> Iterator[Callable[..., Model]]:
    """Register a callable for one test."""
    served: list[Model] = []

    def register(infer: Any, config: ModelConfig, **options: Any) -> Model:
        model = daemon.client.register(infer, "model", X, Y, config, progress=False, **options)
        served.append(model)
        return model

    yield register
    for model in served[:1]:  # the others replaced it
        model.unregister()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as executor:
        yield executor


def ask(daemon: RunningDaemon, x: Array) -> Array:
    return infer_once(daemon, "model", {"x": x}, "grpc", client_timeout=60)["y"]


def calls(folder: Path) -> list[list[int | None]]:
    path = folder / "calls"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def hold(
    daemon: RunningDaemon,
    threads: ThreadPoolExecutor,
    folder: Path,
    first: Array,
    others: Sequence[Array],
) -> list[Future[Array]]:
    """Send `first`, which blocks its worker, and then the others, which wait on their lanes."""
    before = len(calls(folder))
    asked = [threads.submit(ask, daemon, first)]
    eventually(lambda: len(calls(folder)) > before, "the call is held")
    asked += [threads.submit(ask, daemon, other) for other in others]
    return asked


def row(value: float, columns: int = 2) -> Array:
    return np.full((1, columns), value, np.float32)


def default_lanes(daemon: RunningDaemon, instances: int = 1) -> int:
    """Return the number of lanes of each worker of a model without batching."""
    return 2 if daemon.config.proxy == "python" or instances > 1 else 4


# ── how many ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("config", "options", "lanes"),
    [
        (PLAIN, {}, None),
        (ModelConfig(max_batch_size=1), {}, None),
        (PLAIN, {"instances": 2}, 2),
        (PLAIN, {"max_inflight_batches": 2}, 2),
        (ModelConfig(max_batch_size=8), {}, 1),
        (
            ModelConfig(max_batch_size=8),
            {"max_inflight_batches": 3, "instances": 2, "standby_workers": 1},
            3,
        ),
    ],
    ids=[
        "no batching",
        "batches of one",
        "several workers",
        "two asked for",
        "batching",
        "asked for",
    ],
)
def test_the_number_of_lanes_of_a_worker(
    daemon: RunningDaemon,
    serve: Callable[..., Model],
    tmp_path: Path,
    config: ModelConfig,
    options: dict[str, int],
    lanes: int | None,
) -> None:
    """Four without batching, two with several workers, one with batching, unless the registrant chooses a number."""
    lanes = lanes or default_lanes(daemon)
    model = serve(Noting(tmp_path), config, **options)
    instances = options.get("instances", 1)
    (group,) = model.info().config["instance_group"]
    assert group["count"] == instances * lanes
    standby_workers = [0] * options.get("standby_workers", 0)
    assert sorted(i.lanes for i in model.instances) == [*standby_workers, *[lanes] * instances]


def test_too_many_lanes(serve: Callable[..., Model], tmp_path: Path) -> None:
    with pytest.raises(
        RegistrationError, match="max_inflight_batches=17: it must be between 1 and 16"
    ):
        serve(Noting(tmp_path), PLAIN, max_inflight_batches=17)


# ── merging ──────────────────────────────────────────────────────────────────────────────────────


def test_waiting_batches_are_merged_into_one_call(
    daemon: RunningDaemon, serve: Callable[..., Model], threads: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """Each client gets its own response."""
    serve(Noting(tmp_path), SINGLY, max_inflight_batches=3)
    # In the first round, memory is announced on the lanes, which is not merged.
    for one, other in ((1, 2), (3, 4)):
        sent = [row(HOLD + 2), row(one), row(other)]
        asked = hold(daemon, threads, tmp_path, sent[0], sent[1:])
        assert [each.result().tolist() for each in asked] == [(x * 2).tolist() for x in sent]
    last = calls(tmp_path)[-2:]
    assert last[0] == [HOLD + 2]
    assert sorted(value or 0 for value in last[1]) == [3, 4]


def test_batches_of_different_shapes_are_not_merged(
    daemon: RunningDaemon, serve: Callable[..., Model], threads: ThreadPoolExecutor, tmp_path: Path
) -> None:
    serve(Noting(tmp_path), SINGLY, max_inflight_batches=3)
    for one, other in ((1, 2), (3, 4)):
        sent = [row(HOLD + 2), row(one, 2), row(other, 3)]
        asked = hold(daemon, threads, tmp_path, sent[0], sent[1:])
        assert [each.result().tolist() for each in asked] == [(x * 2).tolist() for x in sent]
    assert sorted(len(call) for call in calls(tmp_path)) == [1] * 6


def test_lanes_are_served_fairly(
    daemon: RunningDaemon, serve: Callable[..., Model], threads: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """One lane always has batches ready; the only batch of the other one is still next."""
    serve(Noting(tmp_path), PLAIN)
    ask(daemon, np.ones(1, np.float32))
    (path,) = daemon.config.rundir.lanes.glob("*.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as greedy:
        greedy.connect(str(path))
        held = threads.submit(ask, daemon, np.full(1, HOLD + 2, np.float32))  # until both wait
        eventually(lambda: calls(tmp_path)[-1] == [HOLD + 2], "the call is held")
        for id in range(5):
            greedy.send(msgspec.msgpack.encode(Batch(id, [RequestRef([], "", [])])))
        other = threads.submit(ask, daemon, np.full(1, 3, np.float32))
        assert other.result().tolist() == [6]
        held.result()
        eventually(lambda: len(calls(tmp_path)) == 8, "all are answered")
    assert calls(tmp_path)[2:].index([3]) <= 1


# ── ends ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("standby_workers", [0, 1])
def test_a_waiting_batch_survives_its_worker(
    daemon: RunningDaemon,
    serve: Callable[..., Model],
    threads: ThreadPoolExecutor,
    tmp_path: Path,
    standby_workers: int,
) -> None:
    """It had not begun, so another worker answers it."""
    model = serve(Noting(tmp_path), PLAIN, standby_workers=standby_workers, on_crash="fail")
    dying, waiting = hold(
        daemon, threads, tmp_path, np.full(1, DIE + 1, np.float32), [np.full(1, 3, np.float32)]
    )
    assert waiting.result().tolist() == [6]
    with pytest.raises(InferenceServerException, match=r"SIGKILL.* while it ran this batch"):
        dying.result()
    assert calls(tmp_path) == [[DIE + 1], [3]]
    # The client hears of the end before what the worker had started is ended, too, and the end is noted.
    eventually(lambda: sum(len(instance.exits) for instance in model.instances), "the end is noted")
    assert sum(len(instance.exits) for instance in model.instances) == 1


# ── scaling ──────────────────────────────────────────────────────────────────────────────────────


class Load:
    """Clients that send requests without pause; an error ends their thread."""

    def __init__(self, daemon: RunningDaemon, threads: ThreadPoolExecutor, clients: int) -> None:
        self._daemon = daemon
        self._stop = threading.Event()
        self._answered = 0
        self._lock = threading.Lock()
        self._asking = [threads.submit(self._ask) for _ in range(clients)]

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for asking in self._asking:
            asking.result()

    def go_on(self, more: int = 100) -> None:
        """Wait for more responses; fail if a client has failed."""
        wanted = self._answered + more

        def reached() -> bool:
            for asking in self._asking:
                if asking.done():
                    asking.result()
            return self._answered > wanted

        eventually(reached, "requests are answered")

    def _ask(self) -> None:
        connection = Inference("grpc", self._daemon.grpc)
        x = np.ones(1, np.float32)
        try:
            while not self._stop.is_set():
                y = connection.infer("model", {"x": x}, client_timeout=60)["y"]
                assert y.tolist() == (x * 2).tolist()
                with self._lock:
                    self._answered += 1
        finally:
            connection.close()


def slow(requests: Any) -> Any:
    time.sleep(0.005)
    return [{"y": request["x"] * 2} for request in requests]


def all_have_their_lanes(
    daemon: RunningDaemon, model: Model, instances: int, standby_workers: int = 0
) -> None:
    wanted = [0] * standby_workers + [default_lanes(daemon, instances)] * instances
    eventually(
        lambda: sorted(i.lanes for i in model.instances if i.state == "ready") == wanted,
        lambda: f"lanes {wanted}: {[(i.state, i.lanes) for i in model.instances]}",
    )


@pytest.mark.slow
@pytest.mark.timeout(300)  # tritonserver ends proxies one after the other, over a second each
def test_scaling_and_replacing_fails_no_request(
    daemon: RunningDaemon, serve: Callable[..., Model], threads: ThreadPoolExecutor
) -> None:
    """In the end every worker has its lanes, and a worker that stays has loaded its callable once.

    There are more clients than proxies, so that requests always wait in the model's queue: tritonserver (2.51) starts
    and stops its threads through a separate queue, which it reads only while the model's queue is empty.
    """
    model = serve(slow, PLAIN, on_crash="fail")
    pid = model.instances[0].pid
    with Load(daemon, threads, 8) as load:
        for count in (2, 1):
            model.scale(count)
            load.go_on()
            all_have_their_lanes(daemon, model, count)
            assert model.instances[0].pid == pid
        model = serve(slow, PLAIN, on_crash="fail", instances=2, standby_workers=1, replace=True)
        load.go_on()
        all_have_their_lanes(daemon, model, 2, standby_workers=1)
    assert [i.restarts for i in model.instances] == [0, 0, 0]


def _until_restarts(model: Model, count: int) -> None:
    eventually(lambda: sum(i.restarts for i in model.instances) == count, "it is replaced")


def test_replaced_workers_get_their_lanes_back(
    daemon: RunningDaemon, serve: Callable[..., Model], threads: ThreadPoolExecutor
) -> None:
    """Workers are killed under load, without standby workers: the others return the lanes that they took over."""
    model = serve(slow, PLAIN, instances=3)
    with Load(daemon, threads, 8) as load:
        for index in (0, 2):
            before = sum(i.restarts for i in model.instances)
            pid = model.instances[index].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            _until_restarts(model, before + 1)
            model.wait_ready()
            load.go_on()
            all_have_their_lanes(daemon, model, 3)
    assert sum(i.restarts for i in model.instances) == 2


# ── time-outs ────────────────────────────────────────────────────────────────────────────────────


def test_waiting_on_a_lane_is_not_hanging(
    daemon: RunningDaemon, serve: Callable[..., Model], threads: ThreadPoolExecutor
) -> None:
    """The last batch waits longer than execution_timeout_s, though each runs for a fraction of it."""
    lanes, lasts_s = 15, 1.5

    def slower(requests: Any) -> Any:
        time.sleep(lasts_s)
        return [{"y": request["x"] * 2} for request in requests]

    model = serve(
        slower, PLAIN, max_inflight_batches=lanes, execution_timeout_s=20, on_crash="fail"
    )
    asked = [threads.submit(ask, daemon, np.full(1, k, np.float32)) for k in range(lanes)]
    assert [one.result().tolist() for one in asked] == [[2.0 * k] for k in range(lanes)]
    assert [(i.restarts, i.exits) for i in model.instances] == [(0, [])]
