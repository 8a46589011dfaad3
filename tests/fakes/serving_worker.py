"""A worker with its real loop in a thread; the test plays its dispatcher and proxies."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from support.real_daemon import eventually

from fakes.fake_dispatcher import FakeDispatcher
from pytriton._protocol import messages
from pytriton._protocol.control import ControlClient
from pytriton._protocol.lanes.lane import Lane
from pytriton._protocol.lanes.lane_messages import Room
from pytriton._protocol.lanes.stats_page import WorkerStatsPage
from pytriton.worker.loop import Loop
from pytriton.worker.loop_factory import create_loop
from pytriton.worker.python_model.batches import LoadedPythonModel
from pytriton.worker.python_model.decoupled_loop import DecoupledModelLoop
from pytriton.worker.request_log import CallLog
from pytriton.worker.thread import WorkerThread


class ServingWorker(NamedTuple):
    """A serving worker from the test's point of view."""

    path: str  #: where its lanes connect
    is_alive: Callable[[], bool]
    #: Stops the worker; the fixture does so, too.
    end: Callable[[], object]
    #: The exception that ended the loop, for workers that are only a loop.
    raised: Sequence[BaseException] = ()

    def proxy(self, *, streams: bool) -> Lane:
        """Connect as a proxy; for streams, wait until the worker has announced its room."""
        lane = Lane.connect(self.path, peer_trusted=False)
        lane.set_receive_timeout(60)
        if streams:
            assert isinstance(lane.receive(), Room)
        return lane


def spec_of(*, decoupled: bool, **more: Any) -> messages.ModelSpec:
    """Return a model without inputs and with one FP32 output `y`."""
    config: dict[str, Any] = {
        "name": "m",
        "max_batch_size": 0,
        "input": [],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}],
        "model_transaction_policy": {"decoupled": decoupled},
    }
    return messages.ModelSpec("m", 1, config, messages.WorkerEnvironment("python"), **more)


@contextlib.contextmanager
def worker_of(
    infer: Any, spec: messages.ModelSpec, dispatcher: FakeDispatcher, *, loads: bool = False
) -> Iterator[ServingWorker]:
    """Serve a callable; at the end, the worker must exit when asked. With `loads`, `infer` returns the callable."""
    folder = Path(dispatcher.rundir.path)
    WorkerStatsPage.create_file(folder / "w1.stats").close()
    start = messages.StartWorker("w1", 0, str(folder / "w1.sock"), str(folder / "w1.stats"))
    thread = WorkerThread(
        start, spec, infer if loads else lambda: infer, dispatcher.rundir.control_endpoint
    )
    eventually(
        lambda: any(isinstance(one, messages.WorkerReady) for one in dispatcher.heard),
        lambda: str(dispatcher.heard),
    )
    try:
        yield ServingWorker(start.lane_path, lambda: thread.alive, thread.end)
    finally:
        thread.end()
        thread.join(60)
        assert not thread.alive


@contextlib.contextmanager
def python_model_worker(
    instance: Any, dispatcher: FakeDispatcher, *, streams: bool, decoupled: bool = False
) -> Iterator[ServingWorker]:
    """Serve a Triton Python model, which never runs in a registrant's thread."""
    spec = spec_of(decoupled=decoupled, python_model=messages.PythonModel("{}", streams=streams))
    model = LoadedPythonModel(spec, instance, "m_0_0", CallLog())
    path = str(Path(dispatcher.rundir.path) / "w1.sock")
    stats, descriptor = WorkerStatsPage.create()
    os.close(descriptor)
    reader, writer = os.pipe()
    with (
        contextlib.closing(ControlClient(dispatcher.rundir.control_endpoint)) as control,
        contextlib.closing(stats),
    ):
        loop = create_loop(model, spec, stats, control, "w1", path)
        raised: list[BaseException] = []

        def run() -> None:
            try:
                loop.run(reader)
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield ServingWorker(path, thread.is_alive, lambda: os.write(writer, b"\0"), raised)
        finally:
            os.write(writer, b"\0")
            thread.join(60)
            os.close(writer)
            os.close(reader)
            assert not thread.is_alive()
            if raised:  # its process would end
                _end_lanes(loop)
            if isinstance(loop, DecoupledModelLoop) and loop._events is not None:
                assert loop._events_thread is not None
                loop._events.call_soon_threadsafe(loop._events.stop)
                loop._events_thread.join(60)


def _end_lanes(loop: Loop) -> None:
    if not isinstance(loop, DecoupledModelLoop):
        loop.close()
        return
    loop._closing = True
    loop._waker.send(b"\0")
    eventually(
        lambda: all(one.name != "lanes" for one in threading.enumerate()), "its thread has ended"
    )
    with loop.changed:
        loop.close()
    loop._woken.close()
    loop._waker.close()
