"""A worker's connection to one proxy for calls: a thread passes each answer to its call."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Mapping
from typing import Any, Protocol

from pytriton._protocol import datatypes
from pytriton._protocol.calls.call_chain import Link
from pytriton._protocol.calls.call_connection import CallConnection
from pytriton._protocol.calls.call_messages import (
    Answer,
    AnswerRead,
    Call,
    CallCancelled,
    CallDropped,
    Retiring,
)
from pytriton._protocol.calls.call_slots import Slot, Slots
from pytriton._protocol.errors import described, shown
from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.arena import KEPT_S, ArenaError
from pytriton._protocol.lanes.lane import LaneClosed, LaneError, LaneSilent
from pytriton._protocol.lanes.lane_messages import TensorRef
from pytriton._protocol.lanes.tensors import Array
from pytriton.calls import ModelCall
from pytriton.exceptions import CallError
from pytriton.worker.fault_reports import report_error

_NAMES = {dtype: name for name, dtype in datatypes.NUMERIC.items() if name != "BF16"}


class PendingCall(Protocol):
    """A call waiting for its answers."""

    call: ModelCall

    def sent(self, wire: Wire, number: int) -> None:
        """Record that the call is in flight with this number on this connection."""

    def put(self, wire: Wire | None, answer: Answer) -> bool:
        """Accept an answer, to be passed to `Wire.has_read` later; return False if it is not wanted.

        Without a `wire`, the answer comes from the worker itself and lies in no proxy's memory.
        """


class Wire:
    """The connection to one proxy."""

    def __init__(self, connection: CallConnection) -> None:
        self.usable = True
        self.alive = True
        self._connection = connection
        self._slots = Slots(connection)
        self._lock = threading.Lock()
        self._pending: dict[int, tuple[PendingCall, Slot]] = {}
        self._unread = 0  #: answers whose memory has not been read yet
        threading.Thread(target=self._read, name="pytriton-calls", daemon=True).start()

    @property
    def busy(self) -> int:
        """Return the number of calls in flight."""
        return len(self._pending)

    def send(self, number: int, pending: PendingCall, chain: list[Link]) -> bool:
        """Send a call. Return False if the proxy is gone, or is retiring.

        Raises:
            CallError: no proxy can send it.
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
            return not self._take_back(
                number, slot
            )  # otherwise the reader has already reported it as lost
        except LaneError as error:
            self._take_back(number, slot)
            raise _unsendable(call.model, error) from error
        return True

    def copied(self, ref: TensorRef) -> Array:
        """Copy an output into an array owned by the caller."""
        if ref.datatype == "BYTES":
            return tensors.decode_bytes(tensors.read_raw(self._connection, ref), ref.shape)
        dtype = datatypes.element_dtype(ref.datatype)
        copied: Array = tensors.read(self._connection, ref, dtype).copy()
        return copied

    def has_read(self, answer: Answer) -> None:
        """Notify the proxy that an answer has been read: its memory can be reused."""
        with contextlib.suppress(LaneClosed):
            self._connection.send(AnswerRead(answer.id))
        with self._lock:
            self._unread -= 1
        self._end_if_done()

    def drop(self, number: int) -> None:
        """Drop a call; if it is still in flight, notify the proxy."""
        if number in self._pending:
            with contextlib.suppress(LaneClosed):
                self._connection.send(CallDropped(number))

    def cancel(self, number: int) -> None:
        """Ask the model of a call in flight to stop."""
        if number in self._pending:
            with contextlib.suppress(LaneClosed):
                self._connection.send(CallCancelled(number))

    def hang_up(self) -> None:
        """Shut down the connection."""
        with contextlib.suppress(OSError):
            self._connection.hang_up()

    def let_go(self) -> None:
        """Close inherited descriptors in a forked child."""
        self._connection.let_go()

    def _take_back(self, number: int, slot: Slot) -> bool:
        """Remove a call that could not be sent; return False if that has already been done."""
        with self._lock:
            known = self._pending.pop(number, None) is not None
        if known:
            self._slots.give_back(slot)
        return known

    def _read(self) -> None:
        try:
            waits = False  # only for a while: after the last of many calls, nothing may arrive
            while True:
                if self._slots.large != waits:
                    waits = not waits
                    self._connection.set_patience(KEPT_S if waits else None)
                try:
                    message = self._connection.receive()
                except LaneSilent:
                    self._slots.give_back_idle()
                    continue
                if isinstance(message, Answer):
                    self._answered(message)
                elif isinstance(message, Retiring):
                    with self._lock:
                        self.usable = False
                    self._end_if_done()
                else:
                    raise LaneError(f"unexpected message from a proxy: {message!r:.100}")
        except (LaneClosed, LaneError) as end:
            self._lost(str(end))
        except Exception as fault:
            # An internal error, or out of memory: fail the waiting calls, since answers are no longer read.
            report_error(fault, "its calls of other models are lost")
            self._lost(described(fault))
        self.alive = self.usable = False
        self._slots.close()
        self._connection.close()

    def _end_if_done(self) -> None:
        """Shut down if the proxy is retiring, and nothing from it is needed any more."""
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
            raise LaneError(f"a proxy answered call {answer.id}, which is not in flight")
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
            text = f"the proxy that made the call has exited ({why}): tritonserver has probably stopped"
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
    """Write an input to memory that the proxy reads."""
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
                f"request parameter {name} is {shown(value, 60)}: Triton takes str, int and bool values only"
            )
    return json.dumps(dict(parameters))
