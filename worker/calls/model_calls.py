"""A worker's end of calls to other models: any thread sends them; one thread per proxy receives the answers.

    infer() ──▶ Caller.begin ──▶ Wire.send ──▶ proxy           call_wire.py
    infer() ◀── _Pending.wait ◀── Wire._read ◀── proxy         the waiting thread copies the outputs

A worker that makes no calls only has a listening socket: proxies connect to it, and the connections are accepted
when the first call is made.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING

from pytriton import calls
from pytriton._protocol.calls.call_chain import Link, decode_chain
from pytriton._protocol.calls.call_connection import CallConnection, socket_path
from pytriton._protocol.calls.call_messages import MOVED, Answer
from pytriton._protocol.lanes.arena import ArenaError
from pytriton._protocol.lanes.lane import LaneError
from pytriton._protocol.parameters import CHAIN_PARAMETER
from pytriton.calls import Delivery, ModelCall
from pytriton.exceptions import CallError
from pytriton.worker.calls.call_wire import Wire
from pytriton.worker.model import WorkerModel
from pytriton.worker.request_log import serving

if TYPE_CHECKING:
    import asyncio

#: Connections waiting to be accepted.
_BACKLOG = 1024


class WorkerCaller:
    """Makes the calls of one worker, until `close`."""

    def __init__(self, worker: str, model: WorkerModel, lane_path: str) -> None:
        self._worker = worker
        self._model = model
        self._path = socket_path(lane_path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self._path)
        os.chmod(self._path, 0o600)  # regardless of the umask of the user's process
        self._listener.listen(_BACKLOG)
        self._listener.setblocking(False)
        self._lock = threading.Lock()
        self._wires: list[Wire] = []
        self._ids = itertools.count(1)
        self._thread = threading.get_ident()
        _let_go_in_children(self)
        calls.add_caller(self)

    def calls_for_this_thread(self) -> bool:
        """Return True if this thread or task serves a batch of this worker."""
        return self._thread == threading.get_ident()

    def begin(self, call: ModelCall) -> _PendingAnswer:
        """Send a call."""
        pending = _PendingAnswer(self, call)
        self.send(pending)
        return pending

    def send(self, pending: _PendingAnswer) -> None:
        """Send a call through one of the proxies.

        Raises:
            CallError: there is no proxy.
        """
        while True:
            wire = self._wire(pending.call.model)
            if wire.send(next(self._ids), pending, self._chain()):
                return

    def close(self) -> None:
        """Make no more calls; those in flight are lost."""
        calls.remove_caller(self)
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        for wire in self._wires:
            wire.hang_up()

    def _wire(self, model: str) -> Wire:
        """Return the connection to the proxy with the fewest calls in flight."""
        with self._lock:
            while True:
                try:
                    connection, _ = self._listener.accept()
                except OSError:  # no connection is waiting
                    break
                wire = Wire(CallConnection(connection, peer_trusted=True))
                self._wires.append(wire)
            self._wires = [wire for wire in self._wires if wire.alive]
            usable = [wire for wire in self._wires if wire.usable]
        if not usable:
            raise CallError(
                f"call to model {model}: no proxy of model {self._model.name} is attached to this worker, "
                "so the call cannot be sent; call while a request is being served",
                model_name=model,
                code="UNAVAILABLE",
            )
        return min(usable, key=lambda wire: wire.busy)

    def _chain(self) -> list[Link]:
        """Return the chain of models that would wait for a call made now."""
        parts = serving.get()
        occupied = parts is None
        if parts is None:
            parts = self._model.now
        chain: list[Link] = []
        for part in parts:
            for request in part.batch.requests:
                if CHAIN_PARAMETER in request.parameters:
                    chain += [
                        link for link in decode_chain(request.parameters) if link not in chain
                    ]
        return [*chain, Link(self._model.name, self._worker if occupied and parts else "")]

    def _let_go(self) -> None:
        """Close sockets in a child forked by the callable, which would hide this worker's exit from the proxies."""
        self._listener.close()
        for wire in self._wires:
            wire.let_go()


def _let_go_in_children(caller: WorkerCaller) -> None:
    """Register a fork hook. It lasts as long as the process, so it must not keep a closed caller alive."""
    reference = weakref.ref(caller)

    def let_go() -> None:
        caller = reference()
        if caller is not None:
            caller._let_go()

    os.register_at_fork(after_in_child=let_go)


class _PendingAnswer:
    """A call in flight: `pytriton.calls.Pending`."""

    def __init__(self, caller: WorkerCaller, call: ModelCall) -> None:
        self.call = call
        self._caller = caller
        self._changed = threading.Condition()
        self._answers: deque[tuple[Wire | None, Answer]] = deque()
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
        self._sent: tuple[Wire, int] | None = None
        self._ended = False
        self._cancelled = False

    def sent(self, wire: Wire, number: int) -> None:
        """Record that the call is in flight with this number on this connection."""
        self._sent = (wire, number)

    def put(self, wire: Wire | None, answer: Answer) -> bool:
        """Accept an answer (without a `wire`, the worker's own); return False if it is not wanted."""
        with self._changed:
            if self._ended:
                return False
            self._answers.append((wire, answer))
            self._changed.notify()
            waiter, self._waiter = self._waiter, None
        if waiter is not None:
            loop, future = waiter
            with contextlib.suppress(RuntimeError):  # that loop has ended
                loop.call_soon_threadsafe(_wake, future)
        return True

    def wait(self, timeout_s: float | None = None) -> Delivery | None:
        """Wait for the next answer; None on timeout."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._changed:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not self._changed.wait_for(lambda: self._answers, left):
                    return None
                wire, answer = self._answers.popleft()
            delivery = self._read(wire, answer)
            if delivery is not None:
                return delivery

    async def wait_async(self) -> Delivery:
        """Wait for the next answer. Only one task may wait at a time."""
        from asyncio import get_running_loop  # few callables need it, and it takes 30 ms

        loop = get_running_loop()
        while True:
            future = None
            with self._changed:
                if self._answers:
                    wire, answer = self._answers.popleft()
                else:
                    future = loop.create_future()
                    self._waiter = (loop, future)
            if future is not None:
                await future
                continue
            delivery = self._read(wire, answer)
            if delivery is not None:
                return delivery

    def cancel(self) -> None:
        """Cancel the call."""
        with self._changed:
            if self._ended:
                return
            self._ended = True
            unread = [(wire, answer) for wire, answer in self._answers if wire is not None]
            self._answers.clear()
        for wire, answer in unread:
            wire.has_read(answer)
        if self._sent is not None:
            wire, number = self._sent
            wire.drop(number)

    def request_cancel(self) -> None:
        """Ask the model to stop; its remaining answers are still delivered."""
        self._cancelled = True
        if self._sent is not None and not self._ended:
            wire, number = self._sent
            wire.cancel(number)

    def _read(self, wire: Wire | None, answer: Answer) -> Delivery | None:
        """Return the content of an answer; None if the call had to be sent again."""
        if answer.code == MOVED:
            if wire is not None:
                wire.has_read(answer)
            self._caller.send(self)
            if self._cancelled:
                self.request_cancel()
            return None
        if wire is None:
            return Delivery({}, True, answer.error, answer.code)
        try:
            outputs = {ref.name: wire.copied(ref) for ref in answer.outputs}
        except (LaneError, ArenaError) as error:
            text = f"its answer was lost: {error}"
            return Delivery({}, True, text, "UNAVAILABLE")
        finally:
            wire.has_read(answer)
        return Delivery(outputs, answer.final, answer.error, answer.code, answer.parameters)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
