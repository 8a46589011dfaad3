"""A worker that runs as a thread of its registrant.

The dispatcher asks the registrant to start and stop the worker. The worker also ends when the registrant exits.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from pytriton._protocol import linux, messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.lanes.stats_page import WorkerStatsPage
from pytriton.dispatcher.control.control_socket import Peer
from pytriton.dispatcher.workers.worker import LAST_MESSAGE_TIMEOUT_S, Worker

_log = structlog.get_logger(__name__)

#: Minimum grace period of a thread, which cannot be killed, unlike a process.
_MIN_GRACE_S = 2.0


class HostedWorker(Worker):
    """A worker in a thread of the registrant, the process that registered its model."""

    def __init__(
        self,
        name: str,
        spec: messages.ModelSpec,
        instance: int,
        *,
        registrant: Registrant,
        lane_path: Path,
        stats: WorkerStatsPage,
        stats_path: Path,
    ) -> None:
        loop = asyncio.get_running_loop()
        exited: asyncio.Future[int] = loop.create_future()
        super().__init__(
            name,
            registrant.pid,
            spec,
            instance,
            lane_path=lane_path,
            stats=stats,
            exited=exited,
        )
        self.log_hint = ""  # its output belongs to the registrant's process
        self._registrant = registrant
        self._stats_path = stats_path
        self._how = ""
        registrant.ended.add_done_callback(self._registrant_ended)
        start = messages.StartWorker(name, instance, str(lane_path), str(stats_path))
        # Sent from a task, so that this worker is registered before its first message arrives.
        self._starting = loop.create_task(registrant.send(start))

    @classmethod
    def start(
        cls,
        name: str,
        spec: messages.ModelSpec,
        instance: int,
        *,
        registrant: Registrant,
        lane_path: Path,
    ) -> HostedWorker:
        """Ask the registrant to run a worker, and return the worker. It then says hello.

        Raises:
            RemoteFailure: The registrant has exited, or the file of the statistics page cannot be written.
        """
        if registrant.ended.done():
            raise RemoteFailure(
                ErrorKind.LOAD_FAILED,
                f"model {spec.name}: process {registrant.pid}, which ran the model in its threads, has exited",
            )
        stats_path = lane_path.with_suffix(".stats")
        try:
            stats = WorkerStatsPage.create_file(stats_path)
        except OSError as error:
            raise RemoteFailure(
                ErrorKind.LOAD_FAILED,
                f"model {spec.name}: cannot write {stats_path} in the runtime directory: {error.strerror}",
            ) from error
        return cls(
            name,
            spec,
            instance,
            registrant=registrant,
            lane_path=lane_path,
            stats=stats,
            stats_path=stats_path,
        )

    async def hello(self, peer: Peer, payloads_of: Callable[[int], Sequence[bytes]]) -> None:
        """Record the worker's hello. The daemon sends no model, because the registrant already has it. Raises the
        same exceptions as `Worker.hello`.
        """
        await super().hello(peer, payloads_of)
        self._stats_path.unlink(missing_ok=True)

    def mark_ended(self, how: str) -> None:
        """Record that the worker or its registrant has exited; `how` completes the sentence "worker w1 …"."""
        if not self.exited.done():
            self._how = how
            self._stats_path.unlink(missing_ok=True)
            self.exited.set_result(0)

    def connection_failed(self) -> None:
        """Treat the worker as ended, for example after its process called exec, unless it soon reports why it ended."""
        asyncio.get_running_loop().call_later(
            LAST_MESSAGE_TIMEOUT_S, self.mark_ended, "no longer listens"
        )

    def describe_end(self) -> str:
        """Describe how the worker exited, for `status` and for the clients of its last batch."""
        return f"worker {self.name}, a thread of process {self.pid}, {self._how}"

    def end_record(self) -> messages.WorkerExit:
        """Return the record of the worker's exit. The worker must have exited."""
        assert self._done is not None  # it has ended
        return messages.WorkerExit(
            at=time.time(),
            worker=self.name,
            pid=self.pid,
            how=self.describe_end(),
            batches=self._done.answered,
            in_batch=self._done.begun > self._done.answered,
        )

    async def end_after_batch(self) -> None:
        """Ask the worker to exit after its batch, and wait without a time limit until it has exited."""
        if self.alive:
            await self._registrant.send(messages.EndWorker(self.name))
        await asyncio.shield(self.exited)

    async def end_hung(self, why: str) -> None:
        """Ask a hung worker to exit. A thread cannot be killed."""
        self.kill_reason = why
        self.expect_exit("hang")
        await self.stop(0)

    async def stop(self, grace_s: float) -> None:
        """Ask the worker to exit after its batch. Abandon it if it has not exited within `grace_s` seconds."""
        if self.alive:
            await self._registrant.send(messages.EndWorker(self.name))
            # A worker that has not said hello may never have been started by its registrant.
            grace_s = max(grace_s, _MIN_GRACE_S) if self.greeted.done() else _MIN_GRACE_S
            await asyncio.wait([self.exited], timeout=grace_s)
        if self.alive:
            _log.warning(
                "worker thread did not stop; abandoning it",
                model=self._spec.name,
                worker=self.name,
                worker_pid=self.pid,
            )
            self.mark_ended("did not exit when asked to: its batch is still running")

    def _registrant_ended(self, ended: asyncio.Future[None]) -> None:
        if not ended.cancelled():
            self.mark_ended("ended with that process")


# ── A process that runs its model's workers in its own threads: its identity, and detection of its exit ──

_USE_PROCESSES = 'Use isolation="process", the default, or run it'


class Registrant:
    """A process that registered a model with isolation="thread" and runs the model's workers.

    The dispatcher cannot start or stop this process. It asks the process to run workers, and watches for its exit.

    Attributes:
        pid: Process id.
        ended: Resolves when the process has exited.
    """

    def __init__(self, peer: Peer, model: str) -> None:
        """Check that threads of the process can serve the model, and watch for the process's exit.

        Raises:
            RemoteFailure: The process is on another machine or in another PID namespace, or belongs to another user.
        """
        sender = peer.sender
        what = f'model {model} with isolation="thread"'
        if sender.pid is None:
            raise RemoteFailure(
                ErrorKind.INVALID,
                f"{what}: the daemon cannot see the process of {sender.name}: it is on another machine or in "
                f"another PID namespace. {_USE_PROCESSES} on the daemon's machine, in its PID namespace.",
            )
        if sender.uid != os.geteuid():
            raise RemoteFailure(
                ErrorKind.INVALID,
                f"{what}: only processes of the daemon's own user ({os.geteuid()}) can share memory with it, but this one "
                f"belongs to user {sender.uid}. {_USE_PROCESSES} as that user.",
            )
        self.pid = sender.pid
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        try:
            self._pidfd = linux.pidfd_open(sender.pid)
        except ProcessLookupError:
            raise RemoteFailure(ErrorKind.INVALID, f"{what}: its process has exited") from None
        self._loop.add_reader(self._pidfd, self._end)

    async def send(self, message: messages.AnyMessage) -> None:
        """Send the registrant an unsolicited message."""
        await self._peer.send(message)

    async def release(self, why: str) -> None:
        """Notify the registrant that its registration has ended, and stop watching the process."""
        if not self.ended.done():
            self._unwatch()  # first: it may exit while the message is sent, and its descriptor must be closed once
            self.ended.cancel()
            await self.send(messages.Released(why))

    def give_up(self) -> None:
        """Treat the registrant as exited because its threads no longer serve the model."""
        if not self.ended.done():
            self._end()

    def _end(self) -> None:
        self._unwatch()
        self.ended.set_result(None)

    def _unwatch(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
