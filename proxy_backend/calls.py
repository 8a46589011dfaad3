"""Calls to other models, made for the worker by the stub: `pb_utils.InferenceRequest(...).exec()`.

    worker ──▶ _Wire.run (one thread a connection) ──▶ _make (a thread for each call under way) ──▶ Triton

The stub (seen in Triton 2.51) lets any thread make calls at any time from `initialize`'s end to
`finalize`, many at once, while `execute` waits or not. The stub copies inputs into Triton's memory. Outputs
lie in memory that the stub shares with tritonserver; the worker reads them there, and the proxy keeps the
stub's response until it has.

A proxy that gets another worker, or ends, *retires* its connection: calls under way are answered, and
the worker makes new ones by its other proxies.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

import triton_python_backend_utils as pb_utils

from pytriton._protocol import messages
from pytriton._protocol.calls.call_connection import CallConnection, socket_path
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
from pytriton._protocol.calls.call_slots import Slots
from pytriton._protocol.errors import sendable
from pytriton._protocol.lanes.arena import ArenaError
from pytriton._protocol.lanes.lane import LaneClosed, LaneError, LaneSilent
from pytriton.proxy_backend import chains
from pytriton.proxy_backend.exec import Executor
from pytriton.proxy_backend.translate import Translator

#: Calls that one proxy makes at once; more wait. Each takes one of 32 threads that tritonserver has for the
#: stub, and when none is left, no answer of this model can be sent either (seen in 2.51).
_AT_ONCE = 24
#: Answers of one call that the worker may have unread.
_UNREAD = 8
#: Seconds that calls under way get when the model is unloaded; and those that were given up.
_END_S = 30.0
_DROPPED_S = 2.0
#: Seconds after which a call's waiting is looked into, and told to the dispatcher again.
_TICK_S = 1.0
_TELL_AGAIN_S = 10.0


class Calls:
    """All calls that a proxy makes."""

    def __init__(self, translator: Translator, control_endpoint: str) -> None:
        self._translator = translator
        self._endpoint = control_endpoint
        self._threads = _Threads()
        self._wire: _Wire | None = None
        self._retired: list[_Wire] = []

    def serve(self, lane_path: str) -> None:
        """Make the calls of the worker that listens for lanes at `lane_path`, until `retire`."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.setblocking(False)  # a full backlog: it has other proxies to call by
        try:
            connection.connect(socket_path(lane_path))
        except OSError:  # it is about to end, which its lane tells, too
            connection.close()
            return
        connection.setblocking(True)
        self._wire = _Wire(CallConnection(connection, peer_trusted=False), self)

    def executor(self, connection: CallConnection, slots: Slots) -> Executor:
        """Return the executor of the calls that come over a connection."""
        return Executor(self._translator, self._endpoint, connection, slots)

    def stuck(self, worker: str, models: list[str]) -> messages.StuckCalls:
        """Return those of a worker's waiting calls that can never be answered."""
        return chains.stuck(worker, models, self._endpoint)

    def run(self, work: Callable[[], None], *, may_wait: bool) -> bool:
        """Run `work` in a thread; return False if no thread is free and it may not wait for one."""
        return self._threads.run(work, may_wait=may_wait)

    def retire(self) -> None:
        """Make no new calls for the present worker."""
        wire, self._wire = self._wire, None
        self._retired = [one for one in self._retired if one.alive]
        if wire is not None:
            wire.retire()
            self._retired.append(wire)

    def part(self) -> Callable[[], None]:
        """Leave the present worker's calls as they are; what this returns retires them."""
        wire, self._wire = self._wire, None
        self._retired = [one for one in self._retired if one.alive]
        if wire is None:
            return lambda: None
        self._retired.append(wire)
        return wire.retire

    def end(self) -> None:
        """Retire, and wait for the calls under way."""
        self.retire()
        for wire in self._retired:
            wire.end(_END_S)
        self._threads.end(_DROPPED_S)


class _Threads:
    """Threads that make calls and stay for the next ones. Unlike an executor's, they do not delay the process's end."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._unfinished = 0
        self._threads: list[threading.Thread] = []

    def run(self, work: Callable[[], None], *, may_wait: bool) -> bool:
        """Run `work` in a thread, a new one if none is idle.

        Returns:
            False: all threads that there may be are busy, and the work may not wait for one.
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
        """Wait until the threads have finished their work, for at most `timeout_s`."""
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


class _Under:
    """A call under way. `kept` holds the memory of each answer that the worker has not read."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.begun_at = time.monotonic()
        self.dropped = False
        self.ended = False
        self.handle = chains.Handle()
        self.kept: deque[tuple[Answer, Callable[[], None]]] = deque()
        self._room = threading.Semaphore(_UNREAD)

    def wait_for_room(self) -> None:
        """Wait until the worker has read enough of its answers."""
        self._room.acquire()

    def read(self) -> Answer:
        """Release the oldest answer, which the worker has read, and return it."""
        answer, release = self.kept.popleft()
        release()
        self._room.release()
        return answer

    def drop(self) -> None:
        """Give the call up: close its handle and send no more answers."""
        self.dropped = True
        self.handle.close()
        self._room.release()

    def forget(self) -> None:
        """Give the call up and release all its answers: the worker is gone."""
        self.drop()
        while self.kept:
            self.read()


class _Wire:
    """The connection with one worker, and the calls that came over it."""

    def __init__(self, connection: CallConnection, calls: Calls) -> None:
        self._connection = connection
        self._proxy = calls
        self._slots = Slots(connection)
        self._executor = calls.executor(connection, self._slots)
        self._lock = threading.Lock()
        self._calls: dict[int, _Under] = {}
        self._heard_of = False
        self._looked_at = self._told_at = 0.0
        self._told: list[str] = []  #: models that the dispatcher knows the worker to wait for
        self._worker = ""
        self._retired = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def alive(self) -> bool:
        """Whether the connection still has a reader: the worker may wait for answers."""
        return self._reader.is_alive()

    def retire(self) -> None:
        """Take no new calls."""
        with self._lock:
            self._retired = True
            heard_of = self._heard_of
        try:
            if heard_of:  # it hangs up when it has read all its answers
                self._connection.send(Retiring())
            else:
                self._connection.take_no_more()
        except (LaneClosed, OSError):
            return  # it is gone already

    def end(self, timeout_s: float) -> None:
        """Wait until the worker has all its answers, for at most this time."""
        self._reader.join(timeout_s)

    # ── the reader ───────────────────────────────────────────────────────────────────────────────

    def _read(self) -> None:
        try:
            while True:
                try:
                    self._heard(self._connection.receive())
                except LaneSilent:
                    self._slots.give_back_idle()
                    if not self._calls and not self._told and not self._slots.large:
                        self._connection.set_patience(None)
                if time.monotonic() - self._looked_at > _TICK_S:
                    self._look_around()
        except LaneClosed:
            pass
        except (LaneError, ArenaError) as error:
            pb_utils.Logger.log_error(
                f"a worker's calls are given up, it broke the protocol: {error}"
            )
        with self._lock:
            calls, self._calls = self._calls, {}
            for under in calls.values():
                under.forget()
        self._slots.close()
        self._connection.close()

    def _heard(self, message: CallMessage) -> None:
        if isinstance(message, Call):
            self._begin(message)
        elif isinstance(message, AnswerRead):
            with self._lock:
                under = self._calls.get(message.id)
                if under is None or not under.kept:
                    raise LaneError("the worker has read what it was not sent")
                if under.read().final:
                    del self._calls[message.id]
        elif isinstance(message, CallCancelled):
            under = self._calls.get(message.id)
            if under is not None:
                under.handle.close()  # its model sees that nobody waits
        elif isinstance(message, CallDropped):
            under = self._calls.get(message.id)
            if under is not None:
                under.drop()
                self._answer(under, Answer(message.id, [], True))
        else:
            raise LaneError(f"the worker said {message!r:.100}")

    def _look_around(self) -> None:
        """Fail the calls that have waited for a while and can never be answered."""
        self._looked_at = now = time.monotonic()
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
        if models == self._told and (not models or now - self._told_at < _TELL_AGAIN_S):
            return
        self._told, self._told_at = models, now
        stuck = self._proxy.stuck(self._worker, models)
        for under in waiting:
            if under.call.model in stuck.models:
                under.drop()
                self._answer(under, Answer(under.call.id, [], True, stuck.text, "UNAVAILABLE"))

    def _begin(self, call: Call) -> None:
        under = _Under(call)
        self._connection.set_patience(_TICK_S)
        with self._lock:
            self._heard_of = True
            moved = self._retired
            self._calls[call.id] = under
        if moved:
            self._answer(under, Answer(call.id, [], True, "this proxy goes elsewhere", MOVED))
        elif not self._proxy.run(partial(self._make, call, under), may_wait=len(call.chain) == 1):
            # What it waited for may wait for it: an earlier call of its chain.
            text = f"{_AT_ONCE} calls are under way already, so this one, of a chain of calls, cannot be made"
            self._answer(under, Answer(call.id, [], True, text, "UNAVAILABLE"))

    # ── a thread of a call ───────────────────────────────────────────────────────────────────────

    def _make(self, call: Call, under: _Under) -> None:
        try:
            for answer, release in self._executor.answers(call, under):
                self._answer(under, answer, release)
        except Exception as error:  # also what pb_utils raises
            text = sendable(f"{type(error).__name__}: {error}")
            self._answer(under, Answer(call.id, [], True, text, "INTERNAL"))
        finally:
            under.handle.close()

    def _answer(
        self, under: _Under, answer: Answer, release: Callable[[], None] = lambda: None
    ) -> None:
        with self._lock:
            wanted = not under.ended and answer.id in self._calls  # else the worker is gone
            if wanted:
                under.ended = answer.final
                under.kept.append((answer, release))
        if not wanted:
            release()
            return
        try:
            self._connection.send(answer)
        except LaneClosed:
            return  # the reader sees it, too
