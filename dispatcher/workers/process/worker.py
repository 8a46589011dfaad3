"""The dispatcher's view of a worker, from its hello over loading and serving to its end.

There are two kinds: processes of the dispatcher's own (worker_process.py) and threads of a registrant
(hosted_worker.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pytriton._protocol import messages
from pytriton._protocol.calls.call_connection import socket_path
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.lanes.request_records import Taken
from pytriton._protocol.lanes.stats_page import Counts, Gauge, Reading
from pytriton.dispatcher.control.control_socket import Peer

#: Why workers end: by themselves, serving ("crash") or before ("load"); hung in a batch; past a hard limit; replaced
#: because they were spent; no longer needed because of a scaling or a replacement, or because nothing was asked of the
#: model ("idle"); for any other wish ("stop").
END_REASONS = ("crash", "load", "hang", "limit", "spent", "scale", "replace", "idle", "stop")


class Worker:
    """A worker from its start on. `ready` is done when it serves, or fails with why it does not.

    Attributes:
        name: unique in this daemon; names its lane socket.
        instance: of the model, that it runs.
        pid: the process that it is, or runs in.
        exited: is done once it ended.
        protocol: that it speaks: this version's, or a former one's.
        parked: it is not to load before `unpark`: its model sleeps.
        greeted: resolves when it has said hello.
        ready: resolves when the callable is loaded; raises RemoteFailure when it cannot be.
        lane_path: where it listens for lanes once ready.
        gauge: what it is doing; closed when it has ended.
        spent: resolves with the reason when it should be replaced though it serves.
        condemned: why the dispatcher ends it; None when it ends, or ended, by itself or on request.
        leaving: the kind of reason for which it is ended: one of END_REASONS; None when it ends by itself.
        unwilling: why its model says that it is not ready (`is_ready`); None when it is, or says nothing.
        log_hint: where its own words are to be found; completes an error's text.
    """

    def __init__(
        self,
        name: str,
        pid: int,
        spec: messages.ModelSpec,
        instance: int,
        *,
        lane_path: Path,
        gauge: Gauge,
        exited: asyncio.Future[int],
    ) -> None:
        self.name = name
        self.pid = pid
        self.exited = exited
        self.lane_path = lane_path
        self.gauge = gauge
        self.protocol = messages.PROTOCOL
        self.parked = False
        self.condemned: str | None = None
        self.leaving: str | None = None
        self.started_at = time.time()
        self.unwilling: str | None = None
        self.log_hint = f"; its log: pytriton-daemon logs {spec.name}"
        loop = asyncio.get_running_loop()
        self.greeted: asyncio.Future[None] = loop.create_future()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.spent: asyncio.Future[str] = loop.create_future()
        self._spec = spec
        #: The version that it serves; the newest, if it serves all versions of a model.
        self.version = spec.version
        self.instance = instance
        self._peer: Peer | None = None
        self._done: Reading | None = None
        self._counts: Counts | None = None
        #: Records of requests that it left when it ended, and the metrics of its callable's own.
        self.last_records = Taken()
        self.last_user_metrics = b""
        exited.add_done_callback(self._ended)
        # A pool that is being stopped does not ask for the exception: this does, or asyncio would warn of it.
        self.ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())

    @property
    def alive(self) -> bool:
        return not self.exited.done()

    def counts(self) -> Counts:
        """Return the work that it has done until now, or until its end."""
        return self.gauge.counts() if self._counts is None else self._counts

    def reading(self) -> Reading:
        """Return what it is doing, or was when it ended."""
        return self.gauge.read() if self._done is None else self._done

    def outcomes(self) -> tuple[int, tuple[int, ...]]:
        """Return how many requests it has begun until now, or until its end, and how many failed, by kind."""
        done = self._counts
        return self.gauge.outcomes() if done is None else (done.requests, done.failed)

    def user_metrics(self) -> bytes:
        """Return the latest metrics of its callable's own, undecoded; b"" where there are none."""
        return self._user_metrics() if self._counts is None else self.last_user_metrics

    def leave(self, reason: str) -> None:
        """Note why it is being ended, one of END_REASONS, if nothing else has been noted before."""
        self.leaving = self.leaving or reason

    @property
    def end_reason(self) -> str:
        """Why it ended, one of END_REASONS."""
        if self.leaving is not None:
            return self.leaving
        ready = self.ready
        return "crash" if ready.done() and not (ready.cancelled() or ready.exception()) else "load"

    async def hello(self, peer: Peer, payloads_of: Callable[[int], Sequence[bytes]]) -> None:
        """Note a worker's hello, and give it what it needs to load.

        Raises:
            RemoteFailure: somebody has said it before.
        """
        if self.greeted.done():
            raise RemoteFailure(ErrorKind.INVALID, f"worker {self.name} has said hello already")
        self._peer = peer
        self.greeted.set_result(None)

    async def unpark(self) -> None:
        """Have it load now."""
        self.parked = False

    def loaded(self) -> None:
        """Note that the worker serves."""
        if not self.ready.done():
            self.ready.set_result(None)

    def failed(self, message: messages.WorkerFailed) -> None:
        """Note that the worker could not load its callable."""
        if not self.ready.done():
            text = f"model {self._spec.name} could not be loaded: {message.text}"
            failure = RemoteFailure(ErrorKind.LOAD_FAILED, text, message.traceback)
            self.ready.set_exception(failure)

    def is_spent(self, text: str) -> None:
        """Note that the worker should be replaced, for the reason in `text`."""
        if not self.spent.done():
            self.spent.set_result(text)

    def is_deaf(self) -> None:
        """Do nothing about a failed connection: a process's end is noticed anyway."""

    async def withdraw_lane(self) -> None:
        """Have the worker send one of its proxies elsewhere."""
        if self._peer is not None:
            await self._peer.send(messages.WithdrawLane())

    def last_lines(self) -> str:
        """The worker's last lines as one text; "" where the dispatcher cannot see its output."""
        return ""

    def describe_end(self) -> str:
        """Say how the worker ended: for clients whose batch it had, and for status."""
        raise NotImplementedError

    def end_record(self) -> messages.WorkerEnd:
        """Return what is kept of a worker that has ended."""
        raise NotImplementedError

    @property
    def gave_up(self) -> bool:
        """Whether it ended because its callable said that only a fresh start helps (PyTritonUnrecoverableError)."""
        return False

    async def end_after_batch(self) -> None:
        """Ask the worker to end, and wait until it has ended, however long its batch takes."""
        raise NotImplementedError

    async def end_hung(self, why: str) -> None:
        """End a worker that does not come back from a batch."""
        raise NotImplementedError

    async def stop(self, grace_s: float) -> None:
        """End the worker after its batch, at most `grace_s` later; its lanes end with it."""
        raise NotImplementedError

    def _user_metrics(self) -> bytes:
        pages = self.gauge.user_metrics
        return pages.read() if pages is not None else b""

    async def _drained(self) -> None:
        """Return when its last lines have arrived."""

    def _ended(self, _: asyncio.Future[int]) -> None:
        self._done, self._counts = self.gauge.read(), self.gauge.counts()
        self.last_records = self.gauge.records.take()
        self.last_user_metrics = self._user_metrics()
        self.gauge.close()
        self.lane_path.unlink(missing_ok=True)
        Path(socket_path(str(self.lane_path))).unlink(missing_ok=True)
        if not self.ready.done():
            asyncio.get_running_loop().create_task(self._report_early_end())

    async def _report_early_end(self) -> None:
        await self._drained()  # its last lines say why
        if not self.ready.done():
            text = f"model {self._spec.name}: {self.describe_end()} before its callable was loaded"
            self.ready.set_exception(
                RemoteFailure(ErrorKind.LOAD_FAILED, text, self.last_lines() or None)
            )
