"""Calls to other models, which the proxy makes for its worker through the stub: `pb_utils.InferenceRequest(...).exec()`.

    worker ──▶ _Wire.run (a thread per connection) ──▶ _make (a thread per call in flight) ──▶ Triton

The stub (seen in Triton 2.51) lets any thread make calls between `initialize` and `finalize`, many at once and
independently of `execute`. It copies inputs to Triton's memory. Outputs are in memory that it shares with tritonserver.
The worker reads them there, and the proxy keeps the stub's response until the worker has done so.

A proxy that gets another worker, or exits, *retires* its connection: calls in flight are answered, and the worker makes
new calls through its other proxies.
"""

from __future__ import annotations

import json
import math
import os
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from pytriton._protocol import numpy_types
from pytriton._protocol.calls.call_connection import CallConnection, Slot, Slots, socket_path
from pytriton._protocol.calls.call_messages import (
    MOVED,
    Answer,
    AnswerRead,
    Call,
    CallCancelled,
    CallDropped,
    CallMessage,
    Retiring,
)
from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.arena import ArenaError
from pytriton._protocol.lanes.lane import LaneClosed, LaneError, LaneSilent
from pytriton._protocol.lanes.lane_messages import TensorRef
from pytriton._protocol.messages import sendable
from pytriton._protocol.parameters import CHAIN_PARAMETER, HANDLE_PARAMETER
from pytriton.proxy_backend.python_proxy import chains, stub, translate
from pytriton.proxy_backend.python_proxy.chains import refusal_of, seal_chain
from pytriton.proxy_backend.python_proxy.translate import Regions, Translator

#: Maximum number of calls that one proxy makes at once; more calls wait. Each takes one of the 32 threads that
#: tritonserver has for the stub. Without a free one, the model could not send answers either (seen in 2.51).
_AT_ONCE = 24
#: Maximum number of unread answers of one call.
_UNREAD = 8
#: Maximum time, in seconds, that unloading the model waits for calls in flight, and then for cancelled calls.
_END_S = 30.0
_DROPPED_S = 2.0
#: Intervals in seconds at which waiting calls are checked, and reported to the dispatcher.
_TICK_S = 1.0
_REPORT_INTERVAL_S = 10.0


class ProxyCalls:
    """The calls to other models that a proxy makes for its workers."""

    def __init__(self, translator: Translator, control_endpoint: str) -> None:
        self._translator = translator
        self._endpoint = control_endpoint
        self._threads = _Threads()
        self._wire: _Wire | None = None
        self._retired: list[_Wire] = []

    def serve(self, lane_path: str) -> None:
        """Make the calls requested by the worker that listens for lanes at `lane_path`, until `retire` is called."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Do not wait if the backlog is full: the worker then has enough other proxies.
        connection.setblocking(False)
        try:
            connection.connect(socket_path(lane_path))
        except OSError:  # the worker is about to exit, which its lane will show
            connection.close()
            return
        connection.setblocking(True)
        self._wire = _Wire(
            CallConnection(connection, peer_trusted=False),
            self._threads,
            self._translator,
            self._endpoint,
        )

    def retire(self) -> None:
        """Accept no more calls from the current worker. Calls in flight are still answered."""
        wire, self._wire = self._wire, None
        self._retired = [one for one in self._retired if one.alive]
        if wire is not None:
            wire.retire()
            self._retired.append(wire)

    def detach(self) -> Callable[[], None]:
        """Detach the current worker's connection, and return a function that retires this connection later."""
        wire, self._wire = self._wire, None
        self._retired = [one for one in self._retired if one.alive]
        if wire is None:
            return lambda: None
        self._retired.append(wire)
        return wire.retire

    def end(self) -> None:
        """Retire the connection, and wait a limited time for the calls in flight."""
        self.retire()
        for wire in self._retired:
            wire.end(_END_S)
        self._threads.end(_DROPPED_S)


class _Threads:
    """Pool of threads that make calls. Unlike those of an executor, they do not delay the process's exit."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._unfinished = 0
        self._threads: list[threading.Thread] = []

    def run(self, work: Callable[[], None], *, may_wait: bool) -> bool:
        """Run `work` in an idle thread, or in a new one up to the limit.

        Returns:
            False if all threads are busy and `work` must not wait, otherwise True.
        """
        with self._guard:
            if self._unfinished >= _AT_ONCE and not may_wait:
                return False
            if len(self._threads) <= self._unfinished < _AT_ONCE:
                self._threads.append(threading.Thread(target=self._loop, daemon=True))
                self._threads[-1].start()
            self._unfinished += 1
            self._work.put(work)
            return True

    def end(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` seconds for the threads to finish their work."""
        deadline = time.monotonic() + timeout_s
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _loop(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            with self._guard:
                self._unfinished -= 1


class CallInFlight:
    """A call in flight.

    Attributes:
        call: the worker's message
        begun_at: when it arrived (`time.monotonic`)
        dropped: whether it was cancelled, so that no more answers are wanted
        ended: whether the last answer was sent
        handle: the call's handle, for a decoupled model
        kept: the answers that the worker has not read, each with the function that releases its memory
    """

    def __init__(self, call: Call) -> None:
        self.call = call
        self.begun_at = time.monotonic()
        self.dropped = False
        self.ended = False
        self.handle = chains.Handle()
        self.kept: deque[tuple[Answer, Callable[[], None]]] = deque()
        self._room = threading.Semaphore(_UNREAD)

    def wait_for_room(self) -> None:
        """Wait until fewer than `_UNREAD` answers are unread."""
        self._room.acquire()

    def read(self) -> Answer:
        """Release and return the oldest outstanding answer, because the worker has read it."""
        answer, release = self.kept.popleft()
        release()
        self._room.release()
        return answer

    def drop(self) -> None:
        """Cancel the call: close its handle, and send no more answers."""
        self.dropped = True
        self.handle.close()
        self._room.release()

    def forget(self) -> None:
        """Cancel the call and release all its answers, because the worker is gone."""
        self.drop()
        while self.kept:
            self.read()


class _Wire:
    """Connection to one worker, and the calls received on it."""

    def __init__(
        self,
        connection: CallConnection,
        threads: _Threads,
        translator: Translator,
        control_endpoint: str,
    ) -> None:
        self._connection = connection
        self._threads = threads
        self._endpoint = control_endpoint
        self._slots = Slots(connection)
        self._executor = Executor(translator, control_endpoint, connection, self._slots)
        self._lock = threading.Lock()
        self._calls: dict[int, CallInFlight] = {}
        self._heard_of = False
        self._checked_at = self._reported_at = 0.0
        #: The models that the worker waits for, as last reported to the dispatcher.
        self._reported: list[str] = []
        self._worker = ""
        self._retired = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def alive(self) -> bool:
        """Whether the connection is open. If so, the worker may be waiting for answers."""
        return self._reader.is_alive()

    def retire(self) -> None:
        """Accept no more calls."""
        with self._lock:
            self._retired = True
            heard_of = self._heard_of
        try:
            if heard_of:  # the worker closes the connection when it has read all its answers
                self._connection.send(Retiring())
            else:
                self._connection.stop_receiving()
        except (LaneClosed, OSError):
            return  # the worker is already gone

    def end(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` until the worker has read all answers."""
        self._reader.join(timeout_s)

    # ── the reader ───────────────────────────────────────────────────────────────────────────────

    def _read(self) -> None:
        try:
            while True:
                try:
                    self._handle(self._connection.receive())
                except LaneSilent:
                    self._slots.release_idle()
                    if not self._calls and not self._reported and not self._slots.large:
                        self._connection.set_receive_timeout(None)
                if time.monotonic() - self._checked_at > _TICK_S:
                    self._check_waiting()
        except LaneClosed:
            pass
        except (LaneError, ArenaError) as error:
            pb_utils.Logger.log_error(f"a worker broke the protocol, so its calls fail: {error}")
        with self._lock:
            calls, self._calls = self._calls, {}
            for under in calls.values():
                under.forget()
        self._slots.close()
        self._connection.close()

    def _handle(self, message: CallMessage) -> None:
        if isinstance(message, Call):
            self._begin(message)
        elif isinstance(message, AnswerRead):
            with self._lock:
                under = self._calls.get(message.id)
                if under is None or not under.kept:
                    raise LaneError("the worker acknowledged an answer that was not sent")
                if under.read().final:
                    del self._calls[message.id]
        elif isinstance(message, CallCancelled):
            under = self._calls.get(message.id)
            if under is not None:
                under.handle.close()  # the called model detects that the caller no longer waits
        elif isinstance(message, CallDropped):
            under = self._calls.get(message.id)
            if under is not None:
                under.drop()
                self._answer(under, Answer(message.id, [], True))
        else:
            raise LaneError(f"the worker sent an unexpected message: {message!r:.100}")

    def _check_waiting(self) -> None:
        """Report the calls that have waited for more than `_TICK_S`, and fail those that can never be answered."""
        self._checked_at = now = time.monotonic()
        with self._lock:
            waiting = [
                under
                for under in self._calls.values()
                if not under.ended
                and under.call.chain[-1].worker
                and now - under.begun_at > _TICK_S
            ]
        models = sorted({under.call.model for under in waiting})
        if waiting:
            self._worker = waiting[0].call.chain[-1].worker
        if models == self._reported and (
            not models or now - self._reported_at < _REPORT_INTERVAL_S
        ):
            return
        self._reported, self._reported_at = models, now
        stuck = chains.report_waiting(self._worker, models, self._endpoint)
        for under in waiting:
            if under.call.model in stuck.models:
                under.drop()
                self._answer(under, Answer(under.call.id, [], True, stuck.text, "UNAVAILABLE"))

    def _begin(self, call: Call) -> None:
        under = CallInFlight(call)
        self._connection.set_receive_timeout(_TICK_S)
        with self._lock:
            self._heard_of = True
            moved = self._retired
            self._calls[call.id] = under
        if moved:
            self._answer(under, Answer(call.id, [], True, "this proxy is retiring", MOVED))
        elif not self._threads.run(partial(self._make, call, under), may_wait=len(call.chain) == 1):
            # An earlier call of this chain occupies a thread, and waits for this call.
            text = f"{_AT_ONCE} calls are already in flight, so this one, which is part of a call chain, cannot be made"
            self._answer(under, Answer(call.id, [], True, text, "UNAVAILABLE"))

    # ── the thread of a call ───────────────────────────────────────────────────────────────────────

    def _make(self, call: Call, under: CallInFlight) -> None:
        try:
            for answer, release in self._executor.answers(call, under):
                self._answer(under, answer, release)
        except Exception as error:  # also what pb_utils raises
            text = sendable(f"{type(error).__name__}: {error}")
            self._answer(under, Answer(call.id, [], True, text, "INTERNAL"))
        finally:
            under.handle.close()

    def _answer(
        self, under: CallInFlight, answer: Answer, release: Callable[[], None] = lambda: None
    ) -> None:
        with self._lock:
            # Otherwise, the call was dropped, or the worker is gone.
            wanted = not under.ended and answer.id in self._calls
            if wanted:
                under.ended = answer.final
                under.kept.append((answer, release))
        if not wanted:
            release()
            return
        try:
            self._connection.send(answer)
        except LaneClosed:
            return  # the reader detects the closed connection, too


# ── one call through the stub: tensors, request, answers, and errors ─────────────────────────────────
#
# The stub (Triton 2.51) forwards the text of an error but not its code, so the code of Triton's own errors is derived from
# their text. The iterator of a decoupled call never ends after an error (seen in 2.51), so an error counts as the end.

Release = Callable[[], None]


class Executor:
    """Executes the calls that a worker requests on one connection. Thread-safe."""

    def __init__(
        self,
        translator: translate.Translator,
        control_endpoint: str,
        connection: CallConnection,
        slots: Slots,
    ) -> None:
        self._translator = translator
        self._endpoint = control_endpoint
        self._connection = connection
        self._slots = slots
        self._placing = threading.Lock()
        self._regions = Regions()
        self._announced: dict[str, int] = {}

    def answers(self, call: Call, under: CallInFlight) -> Iterator[tuple[Answer, Release]]:
        """Make a call. Yield its answers, each with a function to call when the worker has read it.

        Raises:
            LaneError, ArenaError: one of the worker's references is invalid, or there is not enough memory.
        """
        refusal = refusal_of(call, self._endpoint)
        if refusal is not None:
            yield Answer(call.id, [], True, refusal, "UNAVAILABLE"), _nothing
            return
        request = self._request(call, under.handle.name() if call.stream else None)
        if not call.stream:
            yield self._answer(call, request.exec(), final=True)
            return
        responses, ended = request.exec(decoupled=True), False
        for response in responses:
            failed = response.has_error()
            if not failed and not response.output_tensors():
                continue  # the stub's marker of the end; we send our own below
            under.wait_for_room()
            if under.dropped:
                if hasattr(responses, "cancel"):  # only after Triton 2.51
                    responses.cancel()
                break
            yield self._answer(call, response, final=failed)
            if failed:
                return
        else:
            ended = True
        failure = under.handle.failure()
        text, code = failure if failure is not None else (None, "")
        try:
            yield Answer(call.id, [], True, text, code), _nothing
        finally:
            if ended:
                stub.hold_until_last_owner(responses)

    def _request(self, call: Call, handle: str | None) -> Any:
        parameters = json.loads(call.parameters)
        if handle is not None:
            parameters[HANDLE_PARAMETER] = handle
        parameters[CHAIN_PARAMETER] = seal_chain(call.chain)
        return pb_utils.InferenceRequest(
            model_name=call.model,
            model_version=call.version,
            requested_output_names=call.outputs,
            inputs=[self._translator.tensor(ref, self._connection) for ref in call.inputs],
            request_id=call.request_id,
            correlation_id=call.correlation_id,
            flags=call.flags,
            timeout=call.timeout_us,
            parameters=parameters,
        )

    def _answer(self, call: Call, response: Any, *, final: bool) -> tuple[Answer, Release]:
        if response.has_error():
            text, code = describe_error(call, response.error())
            return Answer(call.id, [], True, text, code), _nothing
        kept = _AnswerMemory(self._slots, response)
        try:
            outputs = [self._output(tensor, kept) for tensor in response.output_tensors()]
        except BaseException:
            kept.release()
            raise
        # Responses have parameters only after Triton 2.51.
        parameters = response.parameters() if hasattr(response, "parameters") else ""
        return Answer(call.id, outputs, final, parameters=parameters), kept.release

    def _output(self, tensor: Any, kept: _AnswerMemory) -> TensorRef:
        name = tensor.name()
        place = stub.place_of(tensor)
        if place is None:
            slot = kept.slot()
            return slot.reference(self._translator.serialized(name, tensor, slot))
        datatype, address = place
        shape = list(tensor.shape())
        nbytes = math.prod(shape) * numpy_types.NUMERIC[datatype].itemsize
        if nbytes == 0:
            return TensorRef(name, datatype, shape, 0, 0, 0)
        with self._placing:
            mapping = self._regions.find(address, nbytes)
            if mapping is not None:
                memory = self._announced.get(mapping.path)
                if memory is None:
                    fd = os.open(mapping.path, os.O_RDONLY | os.O_CLOEXEC)
                    memory = self._announced[mapping.path] = self._connection.announce(fd)
                offset = address - mapping.start + mapping.offset
                kept.tensors.append(tensor)
                return TensorRef(name, datatype, shape, memory, offset, nbytes)
        slot = kept.slot()
        dtype = numpy_types.NUMERIC[datatype]
        return slot.reference(tensors.write(slot, name, datatype, np.from_dlpack(tensor), dtype))


class _AnswerMemory:
    """The memory of one answer, kept until the worker has read it."""

    def __init__(self, slots: Slots, response: Any) -> None:
        self.tensors = [response]
        self._slots = slots
        self._slot: Slot | None = None

    def slot(self) -> Slot:
        """Return the proxy's own memory for outputs that are not in Triton's shared memory."""
        if self._slot is None:
            self._slot = self._slots.take()
        return self._slot

    def release(self) -> None:
        """Release the memory of the answer, which the worker has read."""
        self.tensors.clear()
        if self._slot is not None:
            self._slots.give_back(self._slot)
            self._slot = None


def _nothing() -> None:
    pass


def _is_unserved(text: str) -> bool:
    """Return True if an error text says that a model is unknown or not ready.

    Triton 2.51 has one text for both, and later versions have two. The stub replaces all codes with INTERNAL, so only the
    text shows this.
    """
    plain = text.rstrip(".'").lower()
    unknown = "unknown model" in plain or "failed to find" in plain
    return unknown or plain.endswith(("is not ready", "is not found", "no available versions"))


def describe_error(call: Call, error: Any) -> tuple[str, str]:
    """Return the text of an error for the caller, and the name of its code."""
    text = error.message().strip()
    code = translate.code_name(error)
    prefix = f"Model {call.model} - Error when running inference: "
    if not text.startswith(prefix):
        return sendable(text), code  # from the called model itself
    text = text[len(prefix) :].strip()
    if text.count("'") % 2:  # the stub leaves an unmatched quotation mark
        text = text.rstrip("'")
    if _is_unserved(text):
        version = f" version {call.version}" if call.version >= 0 else ""
        return f"model {call.model}{version} is not served here, or is not ready", "NOT_FOUND"
    if "decoupled transaction policy" in text:
        return (
            f"model {call.model} is decoupled: it may answer many times. Call it with pytriton.stream(...)"
        ), "UNSUPPORTED"
    if "maximum queue size" in text.lower():
        return sendable(text), "UNAVAILABLE"
    return sendable(text), "INVALID_ARG" if code == "INTERNAL" else code
