"""A worker's main loop: one thread waits for lanes, batches, control messages and signals, and runs the callable.

    new lane ──▶ _accept        control message ──▶ _control_messages
    batch    ──▶ _serve         SIGTERM         ──▶ _signalled

Retiring: every batch that comes is sent back as Withdrawn, and the worker ends when its last lane
    is closed. SIGTERM ends
it after the batch at hand.
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
from pytriton.ipc.lane import Batch, BatchFailed, Lane, LaneClosed, LaneError, Withdrawn
from pytriton.worker.model import Model, Unrecoverable


class Loop:
    """Serves the lanes of one worker until it is told to end.

    Listens from construction on; `run` returns when the worker has to end. `unrecoverable` is set
    when the callable asked for the whole daemon to stop.
    """

    def __init__(self, model: Model, control: ControlClient, worker: str, lane_path: str) -> None:
        self.unrecoverable = False
        self._model = model
        self._control = control
        self._worker = worker
        self._retiring = False
        self._stopping = False
        self._lanes: dict[int, Lane] = {}
        self._withdraw = 0
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(lane_path)
        self._listener.listen()
        self._lane_path = lane_path
        os.register_at_fork(after_in_child=self._let_go)

    def run(self) -> None:
        """Serve until SIGTERM, until retired, or until the callable is unrecoverable."""
        self._watch(self._listener.fileno(), self._accept)
        self._watch(self._control.fileno, self._control_messages)
        self._watch(_signal_pipe(signal.SIGTERM), self._signalled)
        self._control_messages()  # ZeroMQ's descriptor tells of changes only: look once before waiting
        while not self._finished():
            for fd, _ in self._poll.poll():
                handler = self._handlers.get(fd)
                if handler is not None:
                    handler()
        self._close()

    def _finished(self) -> bool:
        return self._stopping or self.unrecoverable or (self._retiring and not self._lanes)

    def _watch(self, fd: int, handler: Callable[[], None]) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, select.POLLIN)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        lane = Lane(connection, peer_trusted=True)
        self._lanes[lane.fileno()] = lane
        self._watch(lane.fileno(), lambda: self._serve(lane))

    def _serve(self, lane: Lane) -> None:
        """Answer the batch that came on a lane; a lane that ended or went wrong is dropped."""
        try:
            batch = lane.receive()
            if not isinstance(batch, Batch):
                raise LaneError(f"{type(batch).__name__} is not for a worker")
            if self._retiring or self._stopping or self._withdraw > 0:
                self._withdraw = max(0, self._withdraw - 1)
                lane.send(Withdrawn(batch.id))
            else:
                self._answer(batch, lane)
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
            if isinstance(received[1], messages.RetireWorker):
                self._retiring = True
            elif isinstance(received[1], messages.WithdrawLane):
                self._withdraw += 1

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
