"""A worker in a registrant's thread: the dispatcher can only send requests, and notice the process's exit."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, cast

import pytest
from fakes.virtual_time import VirtualLoop
from structlog.testing import capture_logs

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.lanes.stats_page import WorkerStatsPage
from pytriton.dispatcher.control.control_socket import Peer
from pytriton.dispatcher.workers.hosted_worker import HostedWorker, Registrant

_SPEC = messages.ModelSpec("m", 1, {}, messages.WorkerEnvironment("python"))
_PEER = cast(Peer, None)


class Process:
    """A registrant that records its messages."""

    def __init__(self) -> None:
        self.pid = 4242
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.got: list[messages.AnyMessage] = []

    async def send(self, message: messages.AnyMessage) -> None:
        self.got.append(message)


class Scene:
    """A worker in a thread of a process."""

    def __init__(self, loop: VirtualLoop, folder: Path) -> None:
        self.loop = loop
        self.lane = folder / "w1.lane"
        self.stats = folder / "w1.stats"
        self.process: Any = loop.ask(Process)
        self.worker = loop.ask(
            lambda: HostedWorker.start(
                "w1", _SPEC, 3, registrant=self._registrant, lane_path=self.lane
            )
        )
        loop.settle()

    @property
    def _registrant(self) -> Registrant:
        return cast(Registrant, self.process)

    def says_hello(self) -> None:
        self.loop.run(self.worker.hello(_PEER, lambda _: []))

    def is_unreachable(self, seconds: float) -> None:
        """Let a proxy report that it cannot connect, and time pass."""
        self.loop.ask(self.worker.connection_failed)
        self.loop.advance(seconds)

    def mark_ended(self, how: str = "ended") -> None:
        self.loop.ask(lambda: self.worker.mark_ended(how))
        self.loop.settle()


@pytest.fixture
def scene(loop: VirtualLoop, tmp_path: Path) -> Scene:
    return Scene(loop, tmp_path)


def test_the_registrant_is_asked_to_start_the_worker(scene: Scene) -> None:
    start = messages.StartWorker("w1", 3, str(scene.lane), str(scene.stats))
    assert scene.process.got == [start]
    assert (scene.worker.pid, scene.worker.alive, scene.worker.log_hint) == (4242, True, "")
    scene.mark_ended()


def test_the_statistics_file_is_removed_once_both_sides_have_opened_it(scene: Scene) -> None:
    own = WorkerStatsPage(os.open(scene.stats, os.O_RDWR))
    scene.says_hello()
    assert not scene.stats.exists()
    begun_ns = own.begin(1)
    assert scene.worker.stats.read().begun == 1
    with pytest.raises(RemoteFailure, match="worker w1 has already sent Hello"):
        scene.says_hello()
    scene.loop.ask(scene.worker.loaded)
    own.end(begun_ns)
    own.close()
    scene.mark_ended("returned")
    record = scene.worker.end_record()
    assert (record.how, record.batches, record.in_batch) == (
        "worker w1, a thread of process 4242, returned",
        1,
        False,
    )


@pytest.mark.parametrize(
    ("end", "how"),
    [
        (
            lambda one: one.loop.ask(lambda: one.process.ended.set_result(None)),
            "ended with that process",
        ),
        (lambda one: one.is_unreachable(5.0), "no longer listens"),
        (lambda one: (one.is_unreachable(1.0), one.mark_ended("raised")), "raised"),
        (lambda one: one.mark_ended("raised"), "raised"),
    ],
    ids=["its process has ended", "no proxy reaches it", "it says so later", "it says so"],
)
def test_how_a_hosted_worker_ends(scene: Scene, end: Any, how: str) -> None:
    end(scene)
    scene.loop.settle()
    assert not scene.worker.alive
    assert scene.worker.describe_end() == f"worker w1, a thread of process 4242, {how}"
    assert not scene.stats.exists()
    failure: Any = scene.worker.ready.exception()
    assert failure.text == (
        f"model m: worker w1, a thread of process 4242, {how} before its callable was loaded"
    )
    scene.mark_ended("and again")  # it ends once
    assert scene.worker.describe_end().endswith(how)


def test_the_end_of_a_registration_is_not_the_exit_of_its_process(scene: Scene) -> None:
    scene.loop.ask(scene.process.ended.cancel)
    scene.loop.settle()
    assert scene.worker.alive
    scene.mark_ended()


@pytest.mark.parametrize(
    ("greeted", "grace_s", "waited"),
    [(True, 30.0, 30.0), (True, 0.0, 2.0), (False, 30.0, 2.0)],
    ids=["has its grace", "cannot be killed, so it has a moment", "has perhaps never begun"],
)
def test_a_thread_that_does_not_end_is_abandoned(
    scene: Scene, greeted: bool, grace_s: float, waited: float
) -> None:
    if greeted:
        scene.says_hello()
    with capture_logs() as logs:
        scene.loop.run(scene.worker.stop(grace_s))
    assert scene.process.got[1:] == [messages.EndWorker("w1")]
    assert scene.loop.time() == waited
    assert "its batch is still running" in scene.worker.describe_end()
    assert [one["event"] for one in logs] == ["worker thread did not stop; abandoning it"]
    scene.loop.run(scene.worker.stop(grace_s))  # nothing is left to ask
    assert len(scene.process.got) == 2


def test_a_thread_that_ends_when_asked(scene: Scene) -> None:
    scene.says_hello()
    scene.loop.call_later(5.0, scene.worker.mark_ended, "returned")
    scene.loop.run(scene.worker.stop(30.0))
    assert scene.loop.time() == 5.0
    assert scene.worker.describe_end().endswith("returned")


def test_a_batch_is_waited_for_however_long_it_takes(scene: Scene) -> None:
    scene.loop.call_later(5000.0, scene.worker.mark_ended, "returned")
    scene.loop.run(scene.worker.end_after_batch())
    assert scene.loop.time() == 5000.0
    assert scene.process.got[1:] == [messages.EndWorker("w1")]


def test_a_hung_thread_is_asked_to_end_and_the_reason_recorded(scene: Scene) -> None:
    scene.loop.run(scene.worker.end_hung("its batch took longer than execution_timeout_s"))
    assert scene.worker.kill_reason == "its batch took longer than execution_timeout_s"
    assert not scene.worker.alive


def test_an_exited_registrant_runs_no_worker(loop: VirtualLoop, tmp_path: Path) -> None:
    def start() -> None:
        process: Any = Process()
        process.ended.set_result(None)
        HostedWorker.start("w1", _SPEC, 0, registrant=process, lane_path=tmp_path / "w1.lane")

    with pytest.raises(
        RemoteFailure, match="process 4242, which ran the model in its threads, has exited"
    ) as e:
        loop.ask(start)
    assert e.value.kind is ErrorKind.LOAD_FAILED
    assert list(tmp_path.iterdir()) == []


def test_a_runtime_directory_that_cannot_be_written_is_reported(
    loop: VirtualLoop, tmp_path: Path
) -> None:
    def start() -> None:
        process: Any = Process()
        HostedWorker.start(
            "w1", _SPEC, 0, registrant=process, lane_path=tmp_path / "no" / "w1.lane"
        )

    with pytest.raises(
        RemoteFailure, match=r"model m: cannot write .*/no/w1\.stats .*No such file"
    ):
        loop.ask(start)
