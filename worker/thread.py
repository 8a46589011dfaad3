"""A worker in a thread of the registrant's process. As in process.py, it says hello, loads the model, reports that it
is ready, and serves.

The thread does not change anything that belongs to the whole process: signals, search path, limits, output, heap. The
callable is the registrant's own object, so there is no payload.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import socket
import threading
import time
from collections.abc import Callable

from pytriton._protocol import messages
from pytriton._protocol.control import ControlClient
from pytriton.worker import tracing
from pytriton.worker.callables import Infer
from pytriton.worker.calls import WorkerCaller
from pytriton.worker.fault_reports import client_text, report_error, report_to, traceback_of
from pytriton.worker.loop_factory import create_loop
from pytriton.worker.model import WorkerModel
from pytriton.worker.request_log import RequestLog
from pytriton.worker.warmup import warm_up

#: Maximum time to wait until the last messages to the dispatcher are sent.
_FLUSH_S = 1.0

_logger = logging.getLogger("pytriton.worker")

#: Returns the callable to serve; called in the worker's thread.
Load = Callable[[], Infer]


class WorkerThread:
    """One worker in a thread. The thread starts when this object is created."""

    def __init__(
        self, start: messages.StartWorker, spec: messages.ModelSpec, load: Load, endpoint: str
    ) -> None:
        """Start the thread.

        Args:
            start: the dispatcher's request to start this worker
            spec: the specification of the model
            load: returns the callable
            endpoint: the dispatcher's endpoint
        """
        self._start = start
        self._spec = spec
        self._load = load
        self._endpoint = endpoint
        self._end_reader, self._end_writer = socket.socketpair()
        self._orphaned = False
        # A daemon thread, so that the registrant's script can exit. `end` lets the current batch finish.
        name = f"pytriton {spec.name}[{start.instance}]"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Return True if the thread is running."""
        return self._thread.is_alive()

    def end(self, *, orphaned: bool = False) -> None:
        """Make the worker end after the current batch. `orphaned` means that the dispatcher is gone: send nothing to it."""
        self._orphaned = self._orphaned or orphaned
        with contextlib.suppress(OSError):  # it has ended
            self._end_writer.send(b"\0", socket.MSG_DONTWAIT)

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until the thread has ended."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        report_to(_logger, self._spec.name)
        worker = self._start.worker
        how = "ended"
        try:
            with contextlib.closing(ControlClient(self._endpoint)) as control:
                try:
                    self._serve(control)
                # The callable raised SystemExit, or there is an internal error.
                except BaseException as error:
                    how = f"ended: {client_text(error)}"
                    report_error(error, "a worker thread ended with an exception")
                if not self._orphaned:
                    control.send(messages.WorkerEnded(worker, how))
                    control.flush(_FLUSH_S)
        finally:
            self._end_reader.close()
            self._end_writer.close()

    def _serve(self, control: ControlClient) -> None:
        worker, lane_path = self._start.worker, self._start.lane_path
        stats_fd = os.open(self._start.gauge_path, os.O_RDWR | os.O_CLOEXEC)
        log = RequestLog(stats_fd)
        with contextlib.closing(log.stats):
            control.send(messages.WorkerHello(worker, os.getpid(), platform.python_version()))
            try:
                model = self._load_model(log)
            except BaseException as error:
                control.send(messages.WorkerFailed(worker, client_text(error), traceback_of(error)))
                return
            with contextlib.closing(model):
                loop = create_loop(model, self._spec, log.stats, control, worker, lane_path)
                with contextlib.closing(loop):
                    with contextlib.closing(WorkerCaller(worker, model, lane_path)):
                        control.send(messages.WorkerReady(worker))
                        loop.run(self._end_reader.fileno())
                    if loop.unable is not None:
                        raise RuntimeError(loop.unable)

    def _load_model(self, log: RequestLog) -> WorkerModel:
        began_ns = time.monotonic_ns()
        model = WorkerModel(self._spec, self._load(), log, own_process=False)
        loaded_ns = time.monotonic_ns()
        try:
            tracing.add_variables(self._spec.world.env)
            warm_up(model, self._spec)
            log.stats.loaded(loaded_ns - began_ns, time.monotonic_ns() - loaded_ns)
        except BaseException:
            model.close()
            raise
        return model
