"""A worker's end of calls to other models. Any thread sends calls; one thread per proxy receives the answers.

    infer() ──▶ WorkerCaller.begin ──▶ Wire.send ──▶ proxy          a connection to one proxy
    infer() ◀── _PendingAnswer.wait ◀── Wire._read ◀── proxy        the waiting thread copies the outputs

Proxies connect to the worker's listening socket. The worker accepts the connections when it makes its first call.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pytriton import calls
from pytriton._protocol import numpy_types
from pytriton._protocol.calls.call_connection import CallConnection, Slot, Slots, socket_path
from pytriton._protocol.calls.call_messages import (
    MOVED,
    Answer,
    AnswerRead,
    Call,
    CallCancelled,
    CallDropped,
    Link,
    Retiring,
    decode_chain,
)
from pytriton._protocol.errors import described, shown
from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.arena import KEPT_S, ArenaError
from pytriton._protocol.lanes.lane import LaneClosed, LaneError, LaneSilent
from pytriton._protocol.lanes.lane_messages import TensorRef
from pytriton._protocol.lanes.tensors import Array
from pytriton._protocol.parameters import CHAIN_PARAMETER
from pytriton.calls import Delivery, ModelCall
from pytriton.exceptions import CallError
from pytriton.worker.fault_reports import report_error
from pytriton.worker.fork_hooks import call_in_forked_children
from pytriton.worker.model import WorkerModel
from pytriton.worker.request_log import serving

if TYPE_CHECKING:
    import asyncio


#: Connections waiting to be accepted.
_BACKLOG = 1024


class WorkerCaller:
    """Sends one worker's calls to other models, from construction until `close` is called."""

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
        call_in_forked_children(self._close_inherited)
        calls.add_caller(self)

    def calls_for_this_thread(self) -> bool:
        """Return True in the thread that serves this worker's batches."""
        return self._thread == threading.get_ident()

    def begin(self, call: ModelCall) -> _PendingAnswer:
        """Send a call through a proxy; return the pending answer."""
        pending = _PendingAnswer(self, call)
        self.send(pending)
        return pending

    def send(self, pending: _PendingAnswer) -> None:
        """Send a call through one of the proxies. Also used to resend it through another proxy.

        Raises:
            CallError: no proxy is attached, or there is no memory for the inputs.
        """
        while True:
            wire = self._choose_wire(pending.call.model)
            if wire.send(next(self._ids), pending, self._chain()):
                return

    def close(self) -> None:
        """Stop making calls. Calls in flight fail."""
        calls.remove_caller(self)
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        for wire in self._wires:
            wire.hang_up()

    def _choose_wire(self, model: str) -> Wire:
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
                "so the call cannot be sent; make calls only while a request is being served",
                model_name=model,
                code="UNAVAILABLE",
            )
        return min(usable, key=lambda wire: wire.busy)

    def _chain(self) -> list[Link]:
        """Return the chain for a call made now: the models that will wait for its answer, and their workers."""
        parts = serving.get()
        occupied = parts is None
        if parts is None:
            parts = self._model.current_parts
        chain: list[Link] = []
        for part in parts:
            for request in part.batch.requests:
                if CHAIN_PARAMETER in request.parameters:
                    chain += [
                        link for link in decode_chain(request.parameters) if link not in chain
                    ]
        return [*chain, Link(self._model.name, self._worker if occupied and parts else "")]

    def _close_inherited(self) -> None:
        """Close the sockets in a forked child: left open there, they would hide this worker's exit from the proxies."""
        self._listener.close()
        for wire in self._wires:
            wire.close_inherited()


class _PendingAnswer:
    """A call in flight. Implements `pytriton.calls.Pending`."""

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
        """Record the connection on which the call is in flight, and the call's number on that connection."""
        self._sent = (wire, number)

    def put(self, wire: Wire | None, answer: Answer) -> bool:
        """Queue an answer for the waiting caller. Return False if the call was cancelled.

        An answer without a `wire` comes from the worker itself, and needs no `Wire.acknowledge`.
        """
        with self._changed:
            if self._ended:
                return False
            self._answers.append((wire, answer))
            self._changed.notify()
            waiter, self._waiter = self._waiter, None
        if waiter is not None:
            loop, future = waiter
            with contextlib.suppress(RuntimeError):  # the waiter's event loop is closed
                loop.call_soon_threadsafe(_wake, future)
        return True

    def wait(self, timeout_s: float | None = None) -> Delivery | None:
        """Wait for the next answer and return it; None on timeout."""
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
        from asyncio import get_running_loop  # takes 30 ms, and few callables need it

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
        """Cancel the call, and drop its remaining answers."""
        with self._changed:
            if self._ended:
                return
            self._ended = True
            unread = [(wire, answer) for wire, answer in self._answers if wire is not None]
            self._answers.clear()
        for wire, answer in unread:
            wire.acknowledge(answer)
        if self._sent is not None:
            wire, number = self._sent
            wire.drop(number)

    def request_cancel(self) -> None:
        """Ask the called model to stop. Its remaining answers are still delivered."""
        self._cancelled = True
        if self._sent is not None and not self._ended:
            wire, number = self._sent
            wire.cancel(number)

    def _read(self, wire: Wire | None, answer: Answer) -> Delivery | None:
        """Return a copy of an answer's content, or None if the call had to be sent again through another proxy."""
        if answer.code == MOVED:
            if wire is not None:
                wire.acknowledge(answer)
            self._caller.send(self)
            if self._cancelled:
                self.request_cancel()
            return None
        if wire is None:
            return Delivery({}, True, answer.error, answer.code)
        try:
            outputs = {ref.name: wire.copy_output(ref) for ref in answer.outputs}
        except (LaneError, ArenaError) as error:
            text = f"its answer was lost: {error}"
            return Delivery({}, True, text, "UNAVAILABLE")
        finally:
            wire.acknowledge(answer)
        return Delivery(outputs, answer.final, answer.error, answer.code, answer.parameters)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Wire:
    """Connection to one proxy, with the calls in flight on it."""

    def __init__(self, connection: CallConnection) -> None:
        self.usable = True
        self.alive = True
        self._connection = connection
        self._slots = Slots(connection)
        self._lock = threading.Lock()
        self._pending: dict[int, tuple[_PendingAnswer, Slot]] = {}
        self._unread = 0  #: number of answers that have not been acknowledged yet
        threading.Thread(target=self._read, name="pytriton-calls", daemon=True).start()

    @property
    def busy(self) -> int:
        """Return the number of calls in flight."""
        return len(self._pending)

    def send(self, number: int, pending: _PendingAnswer, chain: list[Link]) -> bool:
        """Send a call. Return False if the proxy is gone or retiring, and another proxy must be used.

        Raises:
            CallError: there is no memory for the inputs, or the message cannot be sent.
        """
        call = pending.call
        try:
            slot = self._slots.take()
        except LaneClosed:
            self.usable = False
            return False
        except ArenaError as error:
            raise _unsendable(call.model, error) from error
        try:
            message = _message(number, call, slot, chain)
        except BaseException as error:
            self._slots.give_back(slot)
            if isinstance(error, ArenaError):
                raise _unsendable(call.model, error) from error
            raise
        with self._lock:
            registered = self.usable
            if registered:
                self._pending[number] = (pending, slot)
                pending.sent(self, number)
        if not registered:
            self._slots.give_back(slot)
            return False
        try:
            self._connection.send(message)
        except LaneClosed:
            self.usable = False
            # If the call is already gone, the reader has failed it.
            return not self._remove_unsent(number, slot)
        except LaneError as error:
            self._remove_unsent(number, slot)
            raise _unsendable(call.model, error) from error
        return True

    def copy_output(self, ref: TensorRef) -> Array:
        """Copy an output into an array owned by the caller."""
        if ref.datatype == "BYTES":
            return tensors.decode_bytes(tensors.read_raw(self._connection, ref), ref.shape)
        dtype = numpy_types.element_dtype(ref.datatype)
        copied: Array = tensors.read(self._connection, ref, dtype).copy()
        return copied

    def acknowledge(self, answer: Answer) -> None:
        """Notify the proxy that it may reuse the memory of an answer."""
        with contextlib.suppress(LaneClosed):
            self._connection.send(AnswerRead(answer.id))
        with self._lock:
            self._unread -= 1
        self._end_if_done()

    def drop(self, number: int) -> None:
        """Notify the proxy that a call in flight was cancelled, and that no more answers are wanted."""
        if number in self._pending:
            with contextlib.suppress(LaneClosed):
                self._connection.send(CallDropped(number))

    def cancel(self, number: int) -> None:
        """Ask the model that is answering a call to stop. Do nothing if the call has ended."""
        if number in self._pending:
            with contextlib.suppress(LaneClosed):
                self._connection.send(CallCancelled(number))

    def hang_up(self) -> None:
        """Shut down the connection."""
        with contextlib.suppress(OSError):
            self._connection.hang_up()

    def close_inherited(self) -> None:
        """Close the connection's descriptors in a forked child."""
        self._connection.close_after_fork()

    def _remove_unsent(self, number: int, slot: Slot) -> bool:
        """Remove a call that could not be sent. Return False if the reader has already removed it."""
        with self._lock:
            known = self._pending.pop(number, None) is not None
        if known:
            self._slots.give_back(slot)
        return known

    def _read(self) -> None:
        try:
            waits = False  # whether `receive` has a timeout, after which idle memory is released
            while True:
                if self._slots.large != waits:
                    waits = not waits
                    self._connection.set_receive_timeout(KEPT_S if waits else None)
                try:
                    message = self._connection.receive()
                except LaneSilent:
                    self._slots.release_idle()
                    continue
                if isinstance(message, Answer):
                    self._on_answer(message)
                elif isinstance(message, Retiring):
                    with self._lock:
                        self.usable = False
                    self._end_if_done()
                else:
                    raise LaneError(f"unexpected message from a proxy: {message!r:.100}")
        except (LaneClosed, LaneError) as end:
            self._fail_pending(str(end))
        except Exception as fault:
            # An internal error, or out of memory. Fail the pending calls, because nobody reads answers any more.
            report_error(fault, "calls to other models are lost")
            self._fail_pending(described(fault))
        self.alive = self.usable = False
        self._slots.close()
        self._connection.close()

    def _end_if_done(self) -> None:
        """Shut the connection down if the proxy is retiring and all its answers have been read."""
        with self._lock:
            done = not self.usable and not self._pending and not self._unread
        if done:
            self.hang_up()

    def _on_answer(self, answer: Answer) -> None:
        with self._lock:
            self._unread += 1
            pending, slot = self._pending.get(answer.id, (None, None))
            if answer.final:
                self._pending.pop(answer.id, None)
        if pending is None or slot is None:
            raise LaneError(f"a proxy answered call {answer.id}, which is not in flight")
        if answer.final:
            self._slots.give_back(slot)
        if not pending.put(self, answer):
            self.acknowledge(answer)

    def _fail_pending(self, why: str) -> None:
        with self._lock:
            self.usable = False
            lost, self._pending = self._pending, {}
        for number, (pending, slot) in lost.items():
            self._slots.give_back(slot)
            text = f"the proxy that made the call has exited ({why}): tritonserver has probably stopped"
            pending.put(None, Answer(number, [], True, text, "UNAVAILABLE"))


def _unsendable(model: str, error: Exception) -> CallError:
    return CallError(f"call to model {model}: {error}", model_name=model, code="UNAVAILABLE")


def _message(number: int, call: ModelCall, slot: Slot, chain: list[Link]) -> Call:
    return Call(
        number,
        call.model,
        call.version,
        [_write_input(call.model, name, array, slot) for name, array in call.inputs.items()],
        list(call.outputs),
        _parameters(call.parameters),
        call.request_id,
        call.correlation_id,
        call.flags,
        call.timeout_us,
        call.stream,
        chain,
    )


def _write_input(model: str, name: str, array: Array, slot: Slot) -> TensorRef:
    """Write an input into memory that the proxy reads; return a reference to it."""
    if array.dtype.kind in "OSU":
        try:
            data = tensors.encode_bytes(array)
        except TypeError as error:
            raise TypeError(f"call to model {model}: input {name}: {error}") from error
        return slot.reference(tensors.write_raw(slot, name, "BYTES", array.shape, data))
    dtype = array.dtype.newbyteorder("=")
    datatype = numpy_types.BY_DTYPE.get(dtype) or ("BF16" if dtype.name == "bfloat16" else None)
    if datatype is None:
        raise TypeError(
            f"call to model {model}: input {name} has dtype {array.dtype}, which has no equivalent Triton type"
        )
    return slot.reference(tensors.write(slot, name, datatype, array, dtype))


def _parameters(parameters: Mapping[str, Any]) -> str:
    for name, value in parameters.items():
        if not isinstance(value, (str, int, bool)):
            raise TypeError(
                f"request parameter {name} is {shown(value, 60)}: Triton only accepts str, int and bool"
            )
    return json.dumps(dict(parameters))
