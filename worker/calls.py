"""A worker's end of calls to other models: any thread sends them, one thread for each proxy hears the answers.

    infer() ──▶ Caller.begin ──▶ _Wire.send ──▶ proxy
    infer() ◀── _Pending.wait ◀── _Wire._read ◀── proxy        outputs are copied by who waits

Nothing of this runs in a worker that makes no calls, but for a socket that listens: proxies connect to it,
and are taken from its queue when the first call is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from pytriton import calls
from pytriton.calls import Delivery, ModelCall
from pytriton.exceptions import CallError
from pytriton.ipc import datatypes, tensors
from pytriton.ipc.arena import ArenaError
from pytriton.ipc.calls import (
    CHAIN_PARAMETER,
    MOVED,
    Answer,
    AnswerRead,
    Call,
    CallConnection,
    CallDropped,
    Calling,
    Link,
    Retiring,
    Slot,
    Slots,
    decode_chain,
    socket_path,
)
from pytriton.ipc.lane import LaneClosed, LaneError, TensorRef
from pytriton.ipc.tensors import Array
from pytriton.worker.model import Model, Part

#: The batch that a task of an event loop serves.
serving: ContextVar[Sequence[Part] | None] = ContextVar("pytriton_serving", default=None)
#: Connections that wait to be taken.
_BACKLOG = 1024
_NAMES = {dtype: name for name, dtype in datatypes.NUMERIC.items() if name != "BF16"}


class Caller:
    """Makes the calls of one worker; `close` ends it."""

    def __init__(self, worker: str, model: Model, lane_path: str) -> None:
        self._worker = worker
        self._model = model
        self._path = socket_path(lane_path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self._path)
        self._listener.listen(_BACKLOG)
        self._listener.setblocking(False)
        self._lock = threading.Lock()
        self._wires: list[_Wire] = []
        self._ids = itertools.count(1)
        self._thread = threading.get_ident()
        os.register_at_fork(after_in_child=self._let_go)
        calls.add_caller(self)

    def calls_for_this_thread(self) -> bool:
        """Whether this thread, or this task, serves a batch of this worker."""
        return self._thread == threading.get_ident()

    def begin(self, call: ModelCall) -> _Pending:
        """Send a call."""
        pending = _Pending(self, call)
        self.send(pending)
        return pending

    def send(self, pending: _Pending) -> None:
        """Send a call by one of the proxies.

        Raises:
            CallError: none is there.
        """
        while True:
            wire = self._wire(pending.call.model)
            if wire.send(next(self._ids), pending, self._chain()):
                return

    def close(self) -> None:
        """Make no more calls; those under way are lost."""
        calls.remove_caller(self)
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        for wire in self._wires:
            wire.hang_up()

    def _wire(self, model: str) -> _Wire:
        """Return the proxy with the fewest calls under way."""
        with self._lock:
            while True:
                try:
                    connection, _ = self._listener.accept()
                except OSError:  # nobody is waiting
                    break
                wire = _Wire(CallConnection(connection, peer_trusted=True))
                self._wires.append(wire)
            self._wires = [wire for wire in self._wires if wire.alive]
            usable = [wire for wire in self._wires if wire.usable]
        if not usable:
            raise CallError(
                f"call to model {model}: no proxy of model {self._model.name} is attached to this worker, "
                "so there is nobody to make it; call while a request is being served",
                model_name=model,
                code="UNAVAILABLE",
            )
        return min(usable, key=lambda wire: wire.busy)

    def _chain(self) -> list[Link]:
        """Return who waits for a call that is made now."""
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
        """In a child that the callable forked: it must not hide this worker's end from the proxies."""
        self._listener.close()
        for wire in self._wires:
            wire.let_go()


class _Pending:
    """A call under way: `pytriton.calls.Pending`."""

    def __init__(self, caller: Caller, call: ModelCall) -> None:
        self.call = call
        self._caller = caller
        self._changed = threading.Condition()
        self._answers: deque[tuple[_Wire | None, Answer]] = deque()
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
        self._sent: tuple[_Wire, int] | None = None
        self._ended = False

    def sent(self, wire: _Wire, number: int) -> None:
        """It is under way as this number."""
        self._sent = (wire, number)

    def put(self, wire: _Wire | None, answer: Answer) -> bool:
        """An answer has come (from no wire: it is ours); False if nobody waits for it."""
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
        """Wait for the next answer; None when it has not come in time."""
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
        """Wait for the next answer; one task at a time."""
        loop = asyncio.get_running_loop()
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
        """Give it up."""
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

    def _read(self, wire: _Wire | None, answer: Answer) -> Delivery | None:
        """Return what an answer holds; None if the call had to be sent again."""
        if answer.code == MOVED:
            if wire is not None:
                wire.has_read(answer)
            self._caller.send(self)
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
        return Delivery(outputs, answer.final, answer.error, answer.code)


class _Wire:
    """The connection with one proxy."""

    def __init__(self, connection: CallConnection) -> None:
        self.usable = True
        self.alive = True
        self._connection = connection
        self._slots = Slots(connection)
        self._lock = threading.Lock()
        self._pending: dict[int, tuple[_Pending, Slot]] = {}
        self._unread = 0  #: answers whose memory somebody has to read
        with contextlib.suppress(LaneClosed):  # the reader sees it, too
            connection.send(Calling())
        threading.Thread(target=self._read, name="pytriton-calls", daemon=True).start()

    @property
    def busy(self) -> int:
        """How many calls are under way."""
        return len(self._pending)

    def send(self, number: int, pending: _Pending, chain: list[Link]) -> bool:
        """Send a call; False when the proxy is gone, or about to.

        Raises:
            CallError: it cannot be sent by any proxy.
        """
        call = pending.call
        try:
            slot = self._slots.take()
        except LaneClosed:
            self.usable = False
            return False
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
            return not self._take_back(number, slot)  # else the reader has told that it is lost
        except LaneError as error:
            self._take_back(number, slot)
            raise _unsendable(call.model, error) from error
        return True

    def copied(self, ref: TensorRef) -> Array:
        """Return an output as an array of the caller's own."""
        if ref.datatype == "BYTES":
            return tensors.decode_bytes(tensors.read_raw(self._connection, ref), ref.shape)
        dtype = datatypes.element_dtype(ref.datatype)
        copied: Array = tensors.read(self._connection, ref, dtype).copy()
        return copied

    def has_read(self, answer: Answer) -> None:
        """The memory of an answer is needed no longer."""
        with contextlib.suppress(LaneClosed):
            self._connection.send(AnswerRead(answer.id))
        with self._lock:
            self._unread -= 1
        self._end_if_done()

    def drop(self, number: int) -> None:
        """Nobody waits for this call any longer; if it has not ended, the proxy is told."""
        if number in self._pending:
            with contextlib.suppress(LaneClosed):
                self._connection.send(CallDropped(number))

    def hang_up(self) -> None:
        """End the connection."""
        with contextlib.suppress(OSError):
            self._connection.hang_up()

    def let_go(self) -> None:
        """In a forked child: close what it inherited."""
        self._connection.let_go()

    def _take_back(self, number: int, slot: Slot) -> bool:
        """A call was not sent after all; False if it has been taken back already."""
        with self._lock:
            known = self._pending.pop(number, None) is not None
        if known:
            self._slots.give_back(slot)
        return known

    def _read(self) -> None:
        try:
            while True:
                message = self._connection.receive()
                if isinstance(message, Answer):
                    self._answered(message)
                elif isinstance(message, Retiring):
                    with self._lock:
                        self.usable = False
                    self._end_if_done()
                else:
                    raise LaneError(f"a proxy said {message!r:.100}")
        except (LaneClosed, LaneError) as end:
            self._lost(str(end))
        self.alive = self.usable = False
        self._slots.close()
        self._connection.close()

    def _end_if_done(self) -> None:
        """Hang up when the proxy retires, and nothing that it has is needed any longer."""
        with self._lock:
            done = not self.usable and not self._pending and not self._unread
        if done:
            self.hang_up()

    def _answered(self, answer: Answer) -> None:
        with self._lock:
            self._unread += 1
            pending, slot = self._pending.get(answer.id, (None, None))
            if answer.final:
                self._pending.pop(answer.id, None)
        if pending is None or slot is None:
            raise LaneError(f"a proxy answered call {answer.id}, which is not under way")
        if answer.final:
            self._slots.give_back(slot)
        if not pending.put(self, answer):
            self.has_read(answer)

    def _lost(self, why: str) -> None:
        with self._lock:
            self.usable = False
            under_way, self._pending = self._pending, {}
        for number, (pending, slot) in under_way.items():
            self._slots.give_back(slot)
            text = (
                f"the proxy that made the call has ended ({why}): tritonserver has probably stopped"
            )
            pending.put(None, Answer(number, [], True, text, "UNAVAILABLE"))


def _unsendable(model: str, error: Exception) -> CallError:
    return CallError(f"call to model {model}: {error}", model_name=model, code="UNAVAILABLE")


def _message(number: int, call: ModelCall, slot: Slot, chain: list[Link]) -> Call:
    return Call(
        number,
        call.model,
        call.version,
        [_placed(call.model, name, array, slot) for name, array in call.inputs.items()],
        list(call.outputs),
        _parameters(call.parameters),
        call.request_id,
        call.correlation_id,
        call.flags,
        call.timeout_us,
        call.stream,
        chain,
    )


def _placed(model: str, name: str, array: Array, slot: Slot) -> TensorRef:
    """Lay an input down in memory that the proxy reads."""
    if array.dtype.kind in "OSU":
        try:
            data = tensors.encode_bytes(array)
        except TypeError as error:
            raise TypeError(f"call to model {model}: input {name}: {error}") from error
        return slot.placed(tensors.write_raw(slot, name, "BYTES", array.shape, data))
    dtype = array.dtype.newbyteorder("=")
    datatype = _NAMES.get(dtype) or ("BF16" if dtype.name == "bfloat16" else None)
    if datatype is None:
        raise TypeError(
            f"call to model {model}: input {name} has dtype {array.dtype}, which Triton has no type for"
        )
    return slot.placed(tensors.write(slot, name, datatype, array, dtype))


def _parameters(parameters: Mapping[str, Any]) -> str:
    for name, value in parameters.items():
        if not isinstance(value, (str, int, bool)):
            raise TypeError(
                f"request parameter {name}={value!r:.60}: Triton takes str, int and bool values only"
            )
    return json.dumps(dict(parameters))


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
