"""A worker's main loop: one thread waits for lanes, batches, control messages and signals, and runs the callable.

    new lane ──▶ _accept        control message ──▶ _control_messages
    batch    ──▶ _serve         end signal      ──▶ _begin_shutdown

A worker may have several lanes. When it becomes free, it merges the batches that wait on them where the model allows,
and sends each proxy its part of the answer.

On an end signal (SIGTERM or EndWorker for a process), the worker exits after the current batch. Closing a lane between
batches is always safe: a batch that arrives at that moment stays unread, and its proxy sends it to another worker.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable, Sequence

from pytriton._protocol import linux, messages
from pytriton._protocol.control import ControlClient
from pytriton._protocol.lanes.arena import KEPT_S, ArenaError
from pytriton._protocol.lanes.lane import Lane, LaneClosed, LaneError, LaneSilent
from pytriton._protocol.lanes.lane_messages import Batch, BatchDone, BatchFailed, BatchLent, Credit
from pytriton._protocol.lanes.stats_page import WorkerStatsPage
from pytriton.worker.fault_reports import report
from pytriton.worker.fork_hooks import call_in_forked_children
from pytriton.worker.model import Unrecoverable, WorkerModel
from pytriton.worker.request_log import Answers, Part
from pytriton.worker.shutdown import EndSignal
from pytriton.worker.spin import Events, SpinningPoll
from pytriton.worker.worker_limits import Allowance


class Loop:
    """Main loop of a worker, and the base of the other loops. Serves one batch, or several merged ones, at a time.

    Accepts connections from construction on. `run` returns when the worker must exit.

    Attributes:
        unrecoverable: whether the callable raised PyTritonUnrecoverableError, which stops the daemon
        unable: why the worker cannot serve at all; None if it can
    """

    def __init__(
        self,
        model: WorkerModel,
        allowance: Allowance,
        stats: WorkerStatsPage,
        control: ControlClient,
        worker: str,
        lane_path: str,
    ) -> None:
        self.unrecoverable = False
        self.unable: str | None = None
        self._model = model
        self._allowance = allowance
        self._stats = stats
        self._control = control
        self._worker = worker
        self._end_signal: EndSignal | None = None
        self._stopping = False
        self._closed = False
        self._lanes: dict[int, Lane] = {}  #: the lane served last comes last
        self._withdrawals = Withdrawals()
        self._end_fd = -1  #: becomes readable when the worker must end
        self._poll = select.epoll()
        self._spinning_poll: SpinningPoll | None = None
        #: When to check again for unused memory, and the poll timeout until then; None if no lane has excess memory.
        self._memory_check_at: float | None = None
        self._idle_s: float | None = None
        self._handlers: dict[int, Callable[[], None]] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(lane_path)
        os.chmod(lane_path, 0o600)  # regardless of the umask of the user's process
        self._listener.listen()
        self._listener.setblocking(False)
        self._lane_path = lane_path
        call_in_forked_children(self._close_inherited)

    def run(self, end_fd: int) -> None:
        """Serve until the descriptor `end_fd` becomes readable, or the callable reports an unrecoverable error."""
        self._start_watching(end_fd)
        poll, lanes, handlers = self._choose_poll(), self._lanes, self._handlers
        while not self._is_finished():
            awake, gone = [], []
            for fd, event in poll(self._idle_s):
                if fd in handlers:
                    handlers[fd]()
                elif event & select.EPOLLHUP:
                    gone.append(fd)
                else:
                    awake.append(fd)
            if gone:
                self._drop_gone(gone)
            if awake and not self._is_finished():  # a handler may have dropped one of them
                self._serve([lane for fd, lane in lanes.items() if fd in awake])
            if self._memory_check_at is not None and time.monotonic() > self._memory_check_at:
                self._release_unused_memory()
        self.close()

    def _choose_poll(self) -> Callable[[float | None], Events]:
        """Return the function that waits for events."""
        if not self._model.may_poll or not linux.max_active_waits():
            return self._poll.poll
        self._spinning_poll = SpinningPoll(self._poll.poll)
        return self._spinning_poll

    def watch_signals(self, end: EndSignal) -> None:
        """Handle the signals of this process. Call this before `run(end.fd)`."""
        self._end_signal = end
        self._watch(end.woken, end.read_signals)

    def _schedule_memory_check(self) -> None:
        """Schedule a check that releases memory that lanes have not used for `KEPT_S`."""
        if self._memory_check_at is None:
            self._idle_s = KEPT_S + 0.1
            self._memory_check_at = time.monotonic() + self._idle_s

    def _release_unused_memory(self) -> None:
        self._memory_check_at = self._idle_s = None
        for lane in self._lanes.values():
            self._model.release_unused(lane)
            if self._model.has_excess_memory(lane):
                self._schedule_memory_check()

    def _is_finished(self) -> bool:
        return self._stopping or self.unrecoverable

    def _start_watching(self, end_fd: int) -> None:
        self._end_fd = end_fd
        self._watch(self._listener.fileno(), self._accept)
        self._watch(self._control.fileno, self._control_messages)
        self._watch(end_fd, self._begin_shutdown)
        self._control_messages()  # ZeroMQ's descriptor only reports changes: check once before waiting

    def _watch(self, fd: int, handler: Callable[[], None]) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, select.EPOLLIN)

    def _unwatch(self, fd: int) -> None:
        del self._handlers[fd]
        self._poll.unregister(fd)

    def _accept(self) -> None:
        """Accept all new lanes together, so that their first batches can be merged with those of other lanes."""
        while self._take_lane():
            pass

    def _take_lane(self) -> bool:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return False
        except OSError as error:  # no descriptors left, probably because the callable leaks them
            self._unwatch(self._listener.fileno())
            self._cannot_take_lanes(f"it cannot take another lane: {error}")
            return False
        connection.setblocking(True)
        lane = Lane(connection, peer_trusted=True, on_arena_change=self._report_arena_memory)
        if self._is_finished():  # the proxy was assigned to this worker too late: it asks again
            lane.close()
            return True
        self._lanes[lane.fileno()] = lane
        self._poll.register(lane.fileno(), select.EPOLLIN)
        self._prepare_lane(lane)
        return True

    def _cannot_take_lanes(self, why: str) -> None:
        if self._stats.read().answered:
            self._report_recycle_due(messages.RecycleReason.NO_LANE, why)
        elif not self._is_finished():
            # A replacement would fail, too. Exiting as a failure delays its start.
            self.unable = why
            self._begin_shutdown()

    def _prepare_lane(self, lane: Lane) -> None:
        """Allow a new proxy to read this process's memory, unless this is the registrant's process."""
        if self._model.own_process:
            linux.allow_reading(lane.peer_pid())

    def _serve(self, ready: list[Lane]) -> None:
        """Answer the batch on the first of these lanes, if possible together with batches on the other lanes.

        The lanes are sorted by when they were last served. In epoll's order, the same busy lane might always come first.
        """
        if not ready:
            return
        lane = ready[0]
        self._move_to_end(lane)
        try:
            batch = lane.receive(wait=False)  # only a memory descriptor may have arrived
            if not isinstance(batch, Batch):
                raise LaneError(f"unexpected message from the proxy: {type(batch).__name__}")
        except LaneSilent:
            return
        except (LaneClosed, LaneError) as error:
            self._drop(lane, error)
            return
        parts = [Part(lane, batch)]
        if len(ready) > 1:
            parts += self._model.take_mergeable(batch, ready[1:])
            for part in parts[1:]:
                self._move_to_end(part.lane)
        self._run(parts)

    def _run(self, parts: list[Part]) -> None:
        begun_ns = self._record_start(parts)
        if self._spinning_poll is not None and _requests(parts) > 1:
            # Other processes have work, too, for which polling would take the processor.
            self._spinning_poll.sleep_next()
        for part in parts:
            part.lane.reads = part.batch.reads
        try:
            try:
                answers = self._model.answer(parts)
            except Unrecoverable as end:
                self._report_unrecoverable(end.text)
                self._model.log.failed("unrecoverable", _requests(parts), end.__cause__)
                answers = [BatchFailed(part.batch.id, end.text) for part in parts]
            for part, answer in zip(parts, answers):
                self._send_answer(part, answer)
            for part in parts:
                if part.lane.lent:
                    self._wait_until_read(part.lane)
        except Exception:  # not SystemExit, after which the worker exits in the middle of its batch
            self._stats.end(begun_ns)
            raise
        self._record_end(begun_ns, parts, answers)

    def _record_start(self, parts: Sequence[Part]) -> int:
        """Record the start of a call on the statistics page; return the time."""
        stats, batch = self._stats, parts[0].batch
        if len(parts) == 1:
            return stats.begin(len(batch.requests), batch.rows, batch.taken_ns)
        rows = sum([part.batch.rows for part in parts])
        begun_ns = stats.begin(_requests(parts), rows, batch.taken_ns)
        for part in parts[1:]:
            stats.merged(part.batch.taken_ns)
        return begun_ns

    def _record_end(self, begun_ns: int, parts: Sequence[Part] = (), answers: Answers = ()) -> None:
        exceeded = self._allowance.exceeded(self._stats.end(begun_ns, parts, answers))
        if exceeded is not None:
            self._report_recycle_due(*exceeded)

    def _report_recycle_due(self, reason: messages.RecycleReason, text: str) -> None:
        self._control.send(messages.WorkerRecycleDue(self._worker, reason, text))

    def _report_unrecoverable(self, text: str) -> None:
        self.unrecoverable = True
        self._control.send(messages.WorkerUnrecoverable(self._worker, text))

    def _send_answer(self, part: Part, answer: BatchDone | BatchFailed) -> None:
        lane = part.lane
        message: BatchDone | BatchLent | BatchFailed = answer
        if self._model.has_excess_memory(lane):
            self._schedule_memory_check()
            if lane.reads:  # the proxy then reports when it has read, and memory can be released
                lane.lent.append(lane.arena)
        if isinstance(answer, BatchFailed):
            lane.lent.clear()
        elif lane.lent:
            message = BatchLent(answer.id, answer.responses)
        try:
            try:
                lane.send(message)
            except ArenaError as error:
                lane.lent.clear()
                lane.send(BatchFailed(part.batch.id, f"{self._model.name}: {error}"))
        except (LaneClosed, LaneError, ArenaError) as error:
            self._drop(lane, error)

    def _wait_until_read(self, lane: Lane) -> None:
        """Wait until the proxy has read the memory lent to it, so that the callable may use this memory again."""
        try:
            if lane.fileno() in self._lanes:  # the answer could be sent
                message = lane.receive()
                if not isinstance(message, Credit):
                    raise LaneError(
                        f"{type(message).__name__} arrived while outputs were being read"
                    )
                self._model.on_answer_read(lane)
        except (LaneClosed, LaneError) as error:
            self._drop(lane, error)
        lane.lent.clear()

    def _move_to_end(self, lane: Lane) -> None:
        fd = lane.fileno()
        self._lanes[fd] = self._lanes.pop(fd)

    def _drop_gone(self, gone: list[int]) -> None:
        """Drop lanes whose proxies have exited. Their unread batches are dropped, too: no one is waiting for the answers."""
        for lane in [lane for fd, lane in self._lanes.items() if fd in gone]:
            self._drop(lane)

    def _drop(self, lane: Lane, error: Exception | None = None) -> None:
        """Close a lane because of `error`, which is reported unless it only says that the proxy is gone."""
        if error is not None and not isinstance(error, LaneClosed):
            report(f"worker {self._worker} closed a lane: {error}")
        fd = lane.fileno()
        self._poll.unregister(fd)
        del self._lanes[fd]
        lane.close()
        self._report_arena_memory()

    def _report_arena_memory(self) -> None:
        self._stats.holds(sum([lane.arena.backed for lane in self._lanes.values()]))

    def _control_messages(self) -> None:
        while (received := self._control.receive(0)) is not None:
            if isinstance(received[1], messages.WithdrawLane):
                self._withdraw_one()
            elif isinstance(received[1], messages.EndWorker) and self._end_signal:
                self._end_signal.set()

    def _withdraw_one(self) -> None:
        self._withdrawals.want(len(self._lanes))
        self._close_withdrawn_lanes()

    def _close_withdrawn_lanes(self) -> None:
        """Close idle lanes, up to the number that the dispatcher has withdrawn."""
        for lane in self._withdrawals.due(self._idle_lanes()):
            self._drop(lane)

    def _idle_lanes(self) -> list[Lane]:
        """Return the lanes that have no batch in flight. In this loop, these are all lanes, because no batch is running."""
        return list(self._lanes.values())

    def _begin_shutdown(self) -> None:
        self._stats.mark_ending()
        self._stopping = True
        self._unwatch(self._end_fd)  # it stays readable, and the loop may have to finish batches

    def _close_inherited(self) -> None:
        """Close all lanes in a forked child: left open there, they would hide the worker's exit from the proxies."""
        for lane in self._lanes.values():
            lane.close()
        self._listener.close()
        self._poll.close()

    def close(self) -> None:
        """Close all lanes and stop accepting connections. `run` calls this before it returns."""
        if self._closed:
            return
        self._closed = True
        if not self._stopping:  # an exception ends the worker, perhaps in the middle of batches
            self._stats.mark_ending()
        for lane in list(self._lanes.values()):
            self._drop(lane)
        self._listener.close()
        self._poll.close()
        with contextlib.suppress(FileNotFoundError):  # the daemon has exited and removed it
            os.unlink(self._lane_path)


def _requests(parts: Sequence[Part]) -> int:
    return sum([len(part.batch.requests) for part in parts])


class Withdrawals:
    """The number of lanes that the dispatcher has withdrawn but the worker has not closed yet.

    A lane is closed while it is idle, because closing it aborts its batches in flight.
    """

    def __init__(self) -> None:
        self._wanted = 0

    def want(self, lanes: int) -> None:
        """Count one more withdrawn lane, up to the number of lanes that the worker has."""
        self._wanted = min(self._wanted + 1, lanes)

    def due(self, idle: Sequence[Lane]) -> list[Lane]:
        """Return the idle lanes to close now, and subtract them from the count."""
        closed = list(idle[: self._wanted])
        self._wanted -= len(closed)
        return closed
