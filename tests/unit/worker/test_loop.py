"""A worker's main loop: lanes open and close, batches are answered, and a protocol violation costs only its lane.

The loop runs in a thread; the test plays its proxies and dispatcher on real sockets.
"""

from __future__ import annotations

import errno
import os
import queue
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytriton._protocol import messages
from pytriton._protocol.control import ControlClient
from pytriton._protocol.lanes.lane import Lane, LaneClosed
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchDone,
    BatchFailed,
    Credit,
    RequestRef,
    ResponseRef,
)
from pytriton._protocol.lanes.stats_page import WorkerStatsPage
from pytriton.worker.loop import Loop
from pytriton.worker.model import Unrecoverable, WorkerModel
from pytriton.worker.request_log import CallLog, Part
from pytriton.worker.shutdown import EndSignal
from pytriton.worker.worker_limits import Allowance

_ANSWERED = [ResponseRef([], "answered")]


class Callable:
    """Replaces a model: records its batches, and does what a request id says."""

    name = "m"
    own_process = True
    may_poll = True
    decoupled = False
    log = CallLog()

    def __init__(self) -> None:
        self.batches: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        self.merges = False
        self.may_answer = threading.Event()
        self.may_answer.set()

    def has_excess_memory(self, lane: Lane) -> bool:
        return False

    def take_mergeable(self, batch: Batch, lanes: Sequence[Lane]) -> list[Part]:
        if not self.merges:
            return []
        return [Part(lane, other) for lane in lanes if isinstance(other := lane.receive(), Batch)]

    def answer(self, parts: Sequence[Part]) -> list[BatchDone | BatchFailed]:
        self.batches.put([part.batch.id for part in parts])
        assert self.may_answer.wait(30)
        if any(request.request_id == "last" for part in parts for request in part.batch.requests):
            raise Unrecoverable("the GPU is gone")
        return [BatchDone(part.batch.id, _ANSWERED * len(part.batch.requests)) for part in parts]


class Dispatcher:
    """The worker's connection to the dispatcher: a datagram is a message to the worker."""

    def __init__(self) -> None:
        self._far, self._near = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._near.setblocking(False)
        self.fileno = self._near.fileno()
        self.heard: queue.SimpleQueue[messages.AnyMessage] = queue.SimpleQueue()

    def withdraw(self) -> None:
        self._far.send(b"withdraw")

    def end_worker(self) -> None:
        self._far.send(b"end")

    def receive(self, timeout_ms: int) -> tuple[bytes, messages.AnyMessage] | None:
        try:
            said = self._near.recv(100)
        except BlockingIOError:
            return None
        return said, messages.EndWorker("m.0") if said == b"end" else messages.WithdrawLane()

    def send(self, message: messages.AnyMessage) -> None:
        self.heard.put(message)

    def close(self) -> None:
        self._far.close()
        self._near.close()


class Running:
    """A loop in a thread, and its peers."""

    def __init__(self, folder: Path, **spec: Any) -> None:
        self.model, self.dispatcher = Callable(), Dispatcher()
        self.path = str(folder / "lane")
        self.stats, descriptor = WorkerStatsPage.create()
        os.close(descriptor)
        self._reader, self._writer = os.pipe()
        self._proxies: list[Lane] = []
        config: dict[str, Any] = {"input": [], "output": []}
        declared = messages.ModelSpec("m", 1, config, messages.WorkerEnvironment("python"), **spec)
        self.loop = Loop(
            cast(WorkerModel, self.model),
            Allowance(declared),
            self.stats,
            cast(ControlClient, self.dispatcher),
            "m.0",
            self.path,
        )
        self.thread = threading.Thread(target=self.loop.run, args=(self._reader,))
        self.thread.start()

    def proxy(self) -> Lane:
        """Connect another proxy; it answers nothing by itself."""
        lane = Lane.connect(self.path, peer_trusted=False)
        lane.set_receive_timeout(30)
        self._proxies.append(lane)
        return lane

    def end(self) -> None:
        """Ask it to exit, as SIGTERM does."""
        os.write(self._writer, b"x")

    def close(self) -> None:
        self.end()
        self.model.may_answer.set()
        self.thread.join(30)
        assert not self.thread.is_alive()
        for lane in self._proxies:
            lane.close()
        self.dispatcher.close()
        self.stats.close()
        os.close(self._reader)
        os.close(self._writer)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    loop = Running(tmp_path)
    yield loop
    loop.close()


def batch(number: int, *ids: str) -> Batch:
    return Batch(number, [RequestRef([], "", [], one) for one in ids or ("",)])


def ask(lane: Lane, number: int, *ids: str) -> object:
    lane.send(batch(number, *ids))
    return lane.receive()


def is_closed(lane: Lane) -> bool:
    try:
        lane.receive()
    except LaneClosed:
        return True
    return False


def test_batches_are_answered_and_counted(running: Running) -> None:
    lane = running.proxy()
    for number in (1, 2, 3):
        assert ask(lane, number, "a", "b") == BatchDone(number, _ANSWERED * 2)
    other = running.proxy()
    assert ask(other, 1) == BatchDone(1, _ANSWERED)
    assert running.loop.unrecoverable is False


def test_it_exits_when_the_dispatcher_says_so(running: Running) -> None:
    """Its callable may ignore SIGTERM, or have its own handler."""
    reader, writer = os.pipe()
    end = SimpleNamespace(woken=reader, read_signals=lambda: None, set=running.end)
    running.loop.watch_signals(cast(EndSignal, end))
    lane = running.proxy()
    assert ask(lane, 1) == BatchDone(1, _ANSWERED)
    running.dispatcher.end_worker()
    running.thread.join(30)
    assert not running.thread.is_alive()
    assert running.stats.read().ending
    assert is_closed(lane)
    os.close(reader)
    os.close(writer)


def test_the_stats_page_shows_the_current_batch(running: Running) -> None:
    running.model.may_answer.clear()
    lane = running.proxy()
    lane.send(batch(1, "a", "b"))
    assert running.model.batches.get(timeout=30) == [1]
    during = running.stats.read()
    assert (during.begun, during.answered, running.stats.counts().requests) == (1, 0, 2)
    assert during.busy_s is not None
    running.model.may_answer.set()
    assert lane.receive() == BatchDone(1, _ANSWERED * 2)
    assert ask(lane, 2) == BatchDone(2, _ANSWERED)  # the first one has ended by now
    assert running.stats.read().answered >= 1


def test_batches_of_other_lanes_are_merged(running: Running) -> None:
    running.model.may_answer.clear()
    lanes = [running.proxy() for _ in range(4)]
    lanes[0].send(batch(10))
    assert running.model.batches.get(timeout=30) == [10]
    running.model.merges = True
    for number, lane in enumerate(lanes[1:], 11):
        lane.send(batch(number))
    running.model.may_answer.set()
    assert sorted(running.model.batches.get(timeout=30)) == [11, 12, 13]
    assert [lane.receive() for lane in lanes] == [BatchDone(10 + i, _ANSWERED) for i in range(4)]


def test_lanes_are_served_in_turn(running: Running) -> None:
    running.model.may_answer.clear()
    first, second = running.proxy(), running.proxy()
    first.send(batch(1))
    assert running.model.batches.get(timeout=30) == [1]
    first.send(batch(2))
    second.send(batch(3))
    running.model.may_answer.set()
    assert [running.model.batches.get(timeout=30) for _ in range(2)] == [[3], [2]]


@pytest.mark.parametrize(
    "broken",
    [Credit(1), BatchDone(1, []), b"\xc1 no MessagePack", b""],
    ids=["a message out of place", "a worker's message", "no message", "nothing"],
)
def test_a_protocol_violation_closes_only_its_lane(running: Running, broken: Any) -> None:
    wrong, right = running.proxy(), running.proxy()
    if isinstance(broken, bytes):
        os.write(wrong.fileno(), broken) if broken else wrong.hang_up()
    else:
        wrong.send(broken)
    assert is_closed(wrong)
    assert ask(right, 1) == BatchDone(1, _ANSWERED)


def test_a_proxy_that_disconnects_before_its_answer_affects_no_other(running: Running) -> None:
    running.model.may_answer.clear()
    gone, other = running.proxy(), running.proxy()
    gone.send(batch(1))
    assert running.model.batches.get(timeout=30) == [1]
    gone.hang_up()
    running.model.may_answer.set()
    assert ask(other, 2) == BatchDone(2, _ANSWERED)


def test_a_batch_of_an_exited_proxy_is_not_started(running: Running) -> None:
    """For example, after its server was killed while requests waited."""
    present, gone, next_one = running.proxy(), running.proxy(), running.proxy()
    running.model.may_answer.clear()
    present.send(batch(1, "a"))
    assert running.model.batches.get(timeout=30) == [1]
    gone.send(batch(2, "b"))
    gone.hang_up()
    next_one.send(batch(3, "c"))
    running.model.may_answer.set()
    assert running.model.batches.get(timeout=30) == [3]
    assert isinstance(next_one.receive(), BatchDone)


def test_a_lane_is_closed_at_the_dispatchers_request(running: Running) -> None:
    lanes = [running.proxy(), running.proxy()]
    for lane in lanes:
        assert ask(lane, 1) == BatchDone(1, _ANSWERED)
    running.dispatcher.withdraw()
    assert is_closed(lanes[0])  # the least recently served one
    assert ask(lanes[1], 2) == BatchDone(2, _ANSWERED)


def test_shutdown_finishes_started_batches_and_leaves_the_rest_unread(
    running: Running,
) -> None:
    running.model.may_answer.clear()
    begun, waiting = running.proxy(), running.proxy()
    begun.send(batch(1))
    assert running.model.batches.get(timeout=30) == [1]
    waiting.send(batch(2))
    running.end()
    running.model.may_answer.set()
    assert begun.receive() == BatchDone(1, _ANSWERED)
    with pytest.raises(LaneClosed) as closed:
        waiting.receive()
    assert closed.value.unread  # so its proxy sends it to another worker
    running.thread.join(30)
    assert not os.path.exists(running.path)


def test_an_unrecoverable_error_fails_all_requests_and_ends_the_worker(running: Running) -> None:
    lane = running.proxy()
    assert ask(lane, 1, "last") == BatchFailed(1, "the GPU is gone")
    assert running.dispatcher.heard.get(timeout=30) == messages.WorkerUnrecoverable(
        "m.0", "the GPU is gone"
    )
    running.thread.join(30)
    assert running.loop.unrecoverable


def test_a_worker_due_for_recycling_reports_it_once_and_keeps_serving(tmp_path: Path) -> None:
    running = Running(tmp_path, max_batches=2)
    lane = running.proxy()
    for number in (1, 2, 3):
        assert ask(lane, number) == BatchDone(number, _ANSWERED)
    said = running.dispatcher.heard.get(timeout=30)
    running.close()
    assert said == messages.WorkerRecycleDue(
        "m.0", messages.RecycleReason.MAX_BATCHES, "it has answered 2 batches (max_batches=2)"
    )
    assert running.dispatcher.heard.empty()


class _Full:
    """A listener in a process without free descriptors."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener

    def accept(self) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listener, name)


def test_without_descriptors_a_worker_that_has_answered_is_replaced(running: Running) -> None:
    lane = running.proxy()
    assert ask(lane, 1) == BatchDone(1, _ANSWERED)
    running.loop._listener = _Full(running.loop._listener)  # type: ignore[assignment]
    running.proxy()
    said = running.dispatcher.heard.get(timeout=30)
    assert isinstance(said, messages.WorkerRecycleDue)
    assert said.reason is messages.RecycleReason.NO_LANE
    assert "Too many open files" in said.text
    assert ask(lane, 2) == BatchDone(2, _ANSWERED)
    assert running.loop.unable is None


def test_without_descriptors_from_its_start_a_worker_fails(running: Running) -> None:
    """Its successor would fail, too: recycling would replace workers endlessly."""
    running.loop._listener = _Full(running.loop._listener)  # type: ignore[assignment]
    running.proxy()
    running.thread.join(30)
    assert not running.thread.is_alive()
    assert "Too many open files" in (running.loop.unable or "")
    assert running.dispatcher.heard.empty()
