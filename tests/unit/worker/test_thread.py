"""A worker in a registrant's thread; the test plays the dispatcher."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from fakes.fake_dispatcher import FakeDispatcher
from fakes.serving_worker import spec_of
from support.real_daemon import eventually

from pytriton._protocol import messages
from pytriton._protocol.lanes.stats_page import WorkerStatsPage
from pytriton.worker.thread import WorkerThread


def start(dispatcher: FakeDispatcher, load: Any) -> WorkerThread:
    folder = Path(dispatcher.rundir.path)
    stats = folder / "w1.stats"
    WorkerStatsPage.create_file(stats).close()
    start = messages.StartWorker("w1", 0, str(folder / "w1.sock"), str(stats))
    spec = spec_of(decoupled=False)
    return WorkerThread(start, spec, load, dispatcher.rundir.control_endpoint)


def said(dispatcher: FakeDispatcher) -> list[str]:
    return [type(one).__name__ for one in dispatcher.heard]


def test_it_loads_serves_and_ends_on_request(dispatcher: FakeDispatcher) -> None:
    threads: list[str] = []

    def load() -> Any:
        threads.append(threading.current_thread().name)
        return lambda requests: requests

    worker = start(dispatcher, load)
    eventually(lambda: "WorkerReady" in said(dispatcher), lambda: str(dispatcher.heard), 20)
    assert threads == ["pytriton m[0]"]
    assert worker.alive
    worker.end()
    worker.join(60)
    assert not worker.alive
    eventually(lambda: len(dispatcher.heard) == 3, "its end is told")
    assert dispatcher.heard[-1] == messages.WorkerEnded("w1", "ended")
    worker.end()  # it has ended: nothing happens


def test_a_load_failure_is_reported(dispatcher: FakeDispatcher) -> None:
    def load() -> Any:
        raise ValueError("no weights")

    start(dispatcher, load).join(60)
    eventually(lambda: len(dispatcher.heard) == 3, "its end is told")
    hello, failed, ended = dispatcher.heard
    assert isinstance(hello, messages.WorkerHello)
    assert isinstance(failed, messages.WorkerFailed)
    assert failed.text == "ValueError: no weights"
    assert "no weights" in failed.traceback
    assert ended == messages.WorkerEnded("w1", "ended")


def test_without_a_dispatcher_nothing_more_is_sent(dispatcher: FakeDispatcher) -> None:
    worker = start(dispatcher, lambda: lambda requests: requests)
    eventually(lambda: "WorkerReady" in said(dispatcher), lambda: str(dispatcher.heard), 20)
    worker.end(orphaned=True)
    worker.join(60)
    assert said(dispatcher) == ["WorkerHello", "WorkerReady"]
