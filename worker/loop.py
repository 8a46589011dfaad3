"""A worker's main loop: one thread waits for lanes, batches, control messages and signals, and runs the callable.

    new lane ──▶ _accept        control message ──▶ _control_messages
    batch    ──▶ _serve         SIGTERM         ──▶ _signalled

SIGTERM ends it after the batch at hand. Closing a lane between batches is always safe: a batch that
comes at that moment stays unread, and its proxy takes it elsewhere.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from collections.abc import Callable

from pytriton.ipc import messages
from pytriton.ipc.arena import ArenaError
from pytriton.ipc.control import ControlClient
from pytriton.ipc.gauge import Gauge
from pytriton.ipc.lane import Batch, BatchFailed, Lane, LaneClosed, LaneError, LaneSilent
from pytriton.worker.limits import Allowance
from pytriton.worker.model import Model, Unrecoverable


class Loop:
    """Serves the lanes of one worker until it is told to end.

    Listens from construction on; `run` returns when the worker has to end. `unrecoverable` is set
    when the callable asked for the whole daemon to stop.
    """

    def __init__(
        self,
        model: Model,
        allowance: Allowance,
        gauge: Gauge,
        control: ControlClient,
        worker: str,
        lane_path: str,
    ) -> None:
        self.unrecoverable = False
        self._model = model
        self._allowance = allowance
        self._gauge = gauge
        self._control = control
        self._worker = worker
        self._stopping = False
        self._lanes: dict[int, Lane] = {}
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(lane_path)
        self._listener.listen()
        self._lane_path = lane_path
        os.register_at_fork(after_in_child=self._let_go)

    def run(self) -> None:
        """Serve until SIGTERM, or until the callable is unrecoverable."""
        self._watch(self._listener.fileno(), self._accept)
        self._watch(self._control.fileno, self._control_messages)
        self._watch(_signal_pipe(signal.SIGTERM), self._signalled)
        self._control_messages()  # ZeroMQ's descriptor tells of changes only: look once before waiting
        while not self._finished():
            for fd, _ in self._poll.poll():
                handler = self._handlers.get(fd)
                if handler is not None and not self._finished():
                    handler()
        self._close()

    def _finished(self) -> bool:
        return self._stopping or self.unrecoverable

    def _watch(self, fd: int, handler: Callable[[], None]) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, select.POLLIN)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:  # no descriptors left: the callable has leaked them
            self._poll.unregister(self._listener.fileno())
            text = f"it cannot take another lane: {error}"
            self._control.send(messages.WorkerSpent(self._worker, text))
            return
        lane = Lane(connection, peer_trusted=True)
        self._lanes[lane.fileno()] = lane
        self._watch(lane.fileno(), lambda: self._serve(lane))

    def _serve(self, lane: Lane) -> None:
        """Answer the batch that came on a lane; a lane that ended or went wrong is dropped."""
        try:
            batch = lane.receive(wait=False)  # what woke us may be a descriptor of memory only
            if not isinstance(batch, Batch):
                raise LaneError(f"{type(batch).__name__} is not for a worker")
            self._gauge.begin(len(batch.requests))
            try:
                self._answer(batch, lane)
            except Exception:  # not SystemExit: then the worker ends in its batch
                self._gauge.end()
                raise
            spent = self._allowance.spent(self._gauge.end())
            if spent is not None:
                self._control.send(messages.WorkerSpent(self._worker, spent))
        except LaneSilent:
            return
        except LaneClosed:
            self._drop(lane)
        except (LaneError, ArenaError) as error:
            print(f"worker {self._worker} drops a lane: {error}", file=sys.stderr)
            self._drop(lane)

    def _answer(self, batch: Batch, lane: Lane) -> None:
        lane.arena.reset()
        try:
            answer: object = self._model.answer(batch, lane)
        except Unrecoverable as end:
            self.unrecoverable = True
            self._control.send(messages.WorkerUnrecoverable(self._worker, end.text))
            answer = end.answer
        try:
            lane.send(answer)  # type: ignore[arg-type]
        except ArenaError as error:
            lane.send(BatchFailed(batch.id, f"{self._model.name}: {error}"))

    def _drop(self, lane: Lane) -> None:
        fd = lane.fileno()
        self._poll.unregister(fd)
        del self._handlers[fd], self._lanes[fd]
        lane.close()

    def _control_messages(self) -> None:
        while (received := self._control.receive(0)) is not None:
            if isinstance(received[1], messages.WithdrawLane) and self._lanes:
                self._drop(next(iter(self._lanes.values())))

    def _signalled(self) -> None:
        self._stopping = True

    def _let_go(self) -> None:
        """In a child that the callable forked: a lane that it held open would hide this worker's end from the proxy."""
        for lane in self._lanes.values():
            lane.close()
        self._listener.close()

    def _close(self) -> None:
        for lane in list(self._lanes.values()):
            self._drop(lane)
        self._listener.close()
        os.unlink(self._lane_path)


def _signal_pipe(number: int) -> int:
    """Return a descriptor that becomes readable when the signal comes; the handler itself does nothing."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(number, lambda *_: None)
    return reader
