"""The dispatcher's view of a worker from start to exit, and the slots that a model's workers occupy.

There are two kinds of workers: child processes of the dispatcher (worker_process.py) and threads of a registrant
(hosted_worker.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from pytriton._protocol import messages
from pytriton._protocol.calls.call_connection import socket_path
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.exit_codes import WORKER_LOAD_FAILED
from pytriton._protocol.lanes.request_records import CollectedRecords
from pytriton._protocol.lanes.stats_page import Counts, StatsReading, WorkerStatsPage
from pytriton.dispatcher.control.control_socket import Peer

#: Why workers exit. By themselves: while serving ("crash") or before ("load"). Stopped by the dispatcher: hung in a batch
#: ("hang"), exceeded a hard limit ("limit"), recycled ("recycle"), scaled down ("scale"), model replaced ("replace"),
#: model idle ("idle"), any other request ("stop").
EXIT_REASONS = ("crash", "load", "hang", "limit", "recycle", "scale", "replace", "idle", "stop")

#: How long to wait for a message that a worker sent before its exit. The daemon may notice the exit first.
LAST_MESSAGE_TIMEOUT_S = 5.0
#: Interval between checks of the statistics page, which is shared memory and cannot notify.
STATS_POLL_INTERVAL_S = 0.25


class Worker:
    """One worker, from its start until after its exit.

    Attributes:
        name: Unique name in this daemon; also names its lane socket.
        instance: Number of the model's instance that it runs.
        pid: The process that it is, or that it runs in.
        exited: Resolves when the worker has exited.
        protocol: Protocol version that it speaks, possibly that of the daemon before an upgrade.
        parked: Whether it is prestarted: its model is suspended, so it waits for `unpark` before it loads.
        greeted: Resolves when the worker has said hello.
        ready: Resolves when the callable is loaded. Raises RemoteFailure if it cannot be loaded.
        lane_path: Socket on which it accepts lanes once it is ready.
        stats: The worker's statistics page; closed when it has exited.
        recycle_due: Resolves with the reason when the worker is due for recycling.
        kill_reason: Why the dispatcher kills it; None if it exits by itself or on request.
        expected_exit: Why the dispatcher stops it, one of EXIT_REASONS; None if the dispatcher does not.
        not_ready_reason: The reason given by its model's `is_ready`; None if it is ready or has no `is_ready`.
        log_hint: The end of an error text, saying where the worker's log is.
    """

    def __init__(
        self,
        name: str,
        pid: int,
        spec: messages.ModelSpec,
        instance: int,
        *,
        lane_path: Path,
        stats: WorkerStatsPage,
        exited: asyncio.Future[int],
    ) -> None:
        self.name = name
        self.pid = pid
        self.exited = exited
        self.lane_path = lane_path
        self.stats = stats
        self.protocol = messages.PROTOCOL
        self.parked = False
        self.kill_reason: str | None = None
        self.expected_exit: str | None = None
        self.started_at = time.time()
        self.not_ready_reason: str | None = None
        self.log_hint = f"; its log: pytriton-daemon logs {spec.name}"
        loop = asyncio.get_running_loop()
        self.greeted: asyncio.Future[None] = loop.create_future()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.recycle_due: asyncio.Future[messages.WorkerRecycleDue] = loop.create_future()
        self._spec = spec
        #: The version that it serves; the newest one if it serves all versions of the model.
        self.version = spec.version
        self.instance = instance
        self._peer: Peer | None = None
        self._done: StatsReading | None = None
        self._has_loaded = False
        self._counts: Counts | None = None
        #: Request records left at its exit, and the last custom metrics of its callable.
        self.last_records = CollectedRecords()
        self.last_user_metrics = b""
        exited.add_done_callback(self._ended)
        # A pool that is stopping never retrieves the exception. Retrieve it here, or asyncio logs a warning.
        self.ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())

    @property
    def alive(self) -> bool:
        return not self.exited.done()

    def counts(self) -> Counts:
        """Return the work that the worker has done, up to now or until its exit."""
        return self.stats.counts() if self._counts is None else self._counts

    def reading(self) -> StatsReading:
        """Return the current reading of the worker's statistics page, or the last reading before its exit."""
        return self.stats.read() if self._done is None else self._done

    def outcomes(self) -> tuple[int, tuple[int, ...]]:
        """Return how many requests the worker has started and how many failed, by kind, up to now or until its exit."""
        done = self._counts
        return self.stats.outcomes() if done is None else (done.requests, done.failed)

    def user_metrics(self) -> bytes:
        """Return the latest custom metrics of the worker's callable, undecoded; b"" if there are none."""
        return self._user_metrics() if self._counts is None else self.last_user_metrics

    def expect_exit(self, reason: str) -> None:
        """Record why the dispatcher is stopping the worker, one of EXIT_REASONS. The first reason is kept."""
        self.expected_exit = self.expected_exit or reason

    @property
    def exit_reason(self) -> str:
        """Why the worker exited, one of EXIT_REASONS."""
        if self.expected_exit is not None:
            return self.expected_exit
        ready = self.ready
        return "crash" if ready.done() and not (ready.cancelled() or ready.exception()) else "load"

    async def hello(self, peer: Peer, payloads_of: Callable[[int], Sequence[bytes]]) -> None:
        """Record the worker's hello. A subclass then sends what the worker needs to load its model.

        Raises:
            RemoteFailure: A worker of this name has already said hello.
        """
        if self.greeted.done():
            raise RemoteFailure(ErrorKind.INVALID, f"worker {self.name} has already sent Hello")
        self._peer = peer
        self.greeted.set_result(None)

    async def unpark(self) -> None:
        """Let a prestarted worker load its model now."""
        self.parked = False

    def loaded(self) -> None:
        """Record that the worker is ready to serve."""
        if not self.ready.done():
            self.ready.set_result(None)

    def failed(self, message: messages.WorkerFailed) -> None:
        """Record that the worker could not load its callable."""
        if not self.ready.done():
            text = f"model {self._spec.name} could not be loaded: {message.text}"
            failure = RemoteFailure(ErrorKind.LOAD_FAILED, text, message.traceback)
            self.ready.set_exception(failure)

    def request_recycle(self, reason: messages.WorkerRecycleDue) -> None:
        """Record that the worker is due for recycling. The first reason is kept."""
        if not self.recycle_due.done():
            self.recycle_due.set_result(reason)

    def connection_failed(self) -> None:
        """Handle a proxy's failure to connect. If the worker is a process, do nothing: its exit is detected anyway."""

    async def withdraw_lane(self) -> None:
        """Ask the worker to give up one of its proxies."""
        if self._peer is not None:
            await self._peer.send(messages.WithdrawLane())

    def last_lines(self) -> str:
        """Return the last lines of the worker's output; "" if the dispatcher cannot see its output."""
        return ""

    def describe_end(self) -> str:
        """Describe how the worker exited, for `status` and for the clients of its last batch."""
        raise NotImplementedError

    def end_record(self) -> messages.WorkerExit:
        """Return the record of the worker's exit. The worker must have exited."""
        raise NotImplementedError

    @property
    def is_unrecoverable(self) -> bool:
        """Whether the worker exited because its callable raised PyTritonUnrecoverableError."""
        return False

    async def end_after_batch(self) -> None:
        """Ask the worker to exit after its batch, and wait without a time limit until it has exited."""
        raise NotImplementedError

    async def end_hung(self, why: str) -> None:
        """Stop a worker that is hanging in a batch; `why` is the reason to report."""
        raise NotImplementedError

    async def stop(self, grace_s: float) -> None:
        """Stop the worker and its lanes after its batch, within `grace_s` seconds."""
        raise NotImplementedError

    def _user_metrics(self) -> bytes:
        pages = self.stats.user_metrics
        return pages.read() if pages is not None else b""

    async def _wait_for_output(self) -> None:
        """Wait until the last lines of the worker's output have arrived."""

    def _ended(self, _: asyncio.Future[int]) -> None:
        self._done, self._counts = self.stats.read(), self.stats.counts()
        self._has_loaded = self.stats.load_s > 0
        self.last_records = self.stats.records.take()
        self.last_user_metrics = self._user_metrics()
        self.stats.close()
        self.lane_path.unlink(missing_ok=True)
        Path(socket_path(str(self.lane_path))).unlink(missing_ok=True)
        if not self.ready.done():
            asyncio.get_running_loop().create_task(self._report_early_end())

    async def _report_early_end(self) -> None:
        await self._wait_for_output()  # the last lines contain the reason
        if self.exited.result() == WORKER_LOAD_FAILED:
            await asyncio.wait([self.ready], timeout=LAST_MESSAGE_TIMEOUT_S)
        if not self.ready.done():
            when = "right after" if self._has_loaded else "before"
            text = f"model {self._spec.name}: {self.describe_end()} {when} its callable was loaded"
            self.ready.set_exception(
                RemoteFailure(ErrorKind.LOAD_FAILED, text, self.last_lines() or None)
            )


# ── Slots: which instance and which version of a model each worker serves ──
#
# Each version of a Triton Python model is a separate program, whose globals and helper modules may clash with those of
# other versions. So each version has its own workers, and a crash of one version does not affect the others. Slots are
# numbered instance by instance, with all versions of each, so that scaling adds and removes slots at the end. A worker
# of any other model serves all versions.


def own_versions(spec: messages.ModelSpec) -> list[int]:
    """Return the versions that have their own workers; empty if each worker serves all versions."""
    return spec.versions if spec.python_model is not None else []


def slot_count(spec: messages.ModelSpec) -> int:
    """Return the number of workers of a model, including standby workers."""
    return (spec.instances + spec.standby_workers) * max(1, len(own_versions(spec)))


def instance_of(spec: messages.ModelSpec, slot: int) -> int:
    """Return the instance number of a slot. Standby workers have the numbers from `spec.instances` upward."""
    return slot // max(1, len(own_versions(spec)))


def spec_of_slot(spec: messages.ModelSpec, slot: int) -> messages.ModelSpec:
    """Return the declaration for the worker in a slot, limited to the worker's version if it serves only one."""
    versions = own_versions(spec)
    if not versions:
        return spec
    version = versions[slot % len(versions)]
    return msgspec.structs.replace(spec, version=version, versions=[])
