"""Models that run in threads of the registering process: `DaemonClient.register(..., isolation="thread")`.

The connection of the registration stays open, and the dispatcher uses it to start and end workers::

    caller's thread     Register ──▶ … ◀── StartWorker: starts a thread … ◀── Registered
    the host's thread   ◀── EndWorker: ends a thread … ◀── Released, or the daemon exits: ends all threads

A warning is logged if the model stops being served unexpectedly.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from pytriton._control.connection import (
    Connection,
    ControlRequest,
    RemoteConnection,
    Report,
    exception_of,
    expected,
    reporter,
)
from pytriton._protocol import control, messages
from pytriton._protocol.errors import RemoteFailure
from pytriton._register.message import RegistrationPlan
from pytriton.exceptions import PyTritonDaemonError
from pytriton.worker.callables import create_callable, run_check
from pytriton.worker.thread import Load, WorkerThread

_logger = logging.getLogger("pytriton._register.thread_host")

#: Time that in-flight batches get to finish when this process exits, in seconds.
_EXIT_TIMEOUT_S = 5.0
#: Time that a failed registration waits for threads that are still loading, in seconds. They end after loading.
_FAILED_LOAD_TIMEOUT_S = 1.0

#: The registrations of this process. After a fork, those of the parent are ignored.
_hosts: set[ThreadHost] = set()


def register(
    connection: Connection | RemoteConnection,
    planned: RegistrationPlan,
    progress: bool | Report | None,
) -> messages.ModelInfo:
    """Register a model that is served by threads of this process.

    Raises:
        PyTritonDaemonError: the daemon is on another machine
        RegistrationError: the registration failed; if the callable's factory or check raised, that exception is the cause
    """
    spec = planned.message.spec
    if isinstance(connection, RemoteConnection):
        raise PyTritonDaemonError(
            f"Model {spec.name!r} with isolation='thread' must share memory with the daemon, but the daemon at "
            f"{connection.name} is reached over TCP. Use isolation='process', or call connect(runtime_dir) on the daemon's "
            "machine."
        )
    host = ThreadHost(connection, spec, _loads(planned))
    with reporter(progress, spec.name) as report:
        try:
            answer = host.register(planned.message, planned.payloads(), report)
        except RemoteFailure as failure:
            error = exception_of(failure, model_name=spec.name, registering=True)
            raise error from host.load_error
    return expected(answer, messages.Registered, planned.message).model


class ThreadHost:
    """One registration whose workers are threads of this process.

    Attributes:
        model: name of the model
        load_error: the exception that the callable, its factory or its check raised during loading
        expected: whether this process itself ended the registration, so that no warning is logged
    """

    def __init__(
        self, connection: Connection, spec: messages.ModelSpec, load: Callable[[int], Load]
    ) -> None:
        """Create a host for `spec`; `load(i)` returns the function that loads the callable of instance i."""
        self.model = spec.name
        self.load_error: BaseException | None = None
        self.expected = False
        self._connection = connection
        self._spec = spec
        self._load = load
        self._pid = os.getpid()
        self._threads: dict[str, WorkerThread] = {}
        self._released: str | None = None
        self._exiting = False
        self._wakeup, self._wake = socket.socketpair()
        self._thread = threading.Thread(
            target=self._run, name=f"pytriton {self.model}", daemon=True
        )

    @property
    def alive(self) -> bool:
        """Return True while this process serves the model."""
        return self._pid == os.getpid() and self._thread.is_alive()

    def serves_by(self, connection: Connection) -> bool:
        """Return True if the registration was made on this connection."""
        return self._connection is connection

    def register(
        self,
        message: messages.Register,
        payloads: Sequence[bytes],
        on_progress: Report | None,
    ) -> messages.AnyMessage:
        """Send the registration and return the dispatcher's answer; from then on, threads of this process serve the model.

        Raises:
            RemoteFailure, DaemonNotRunningError, PyTritonDaemonError: as `Connection.ask`, after the threads have been
                asked to end
        """
        daemon = self._connection.daemon_pid()
        self._channel = control.ControlClient(self._connection.endpoint, watched=True)
        try:
            request = ControlRequest(
                message, payloads, on_progress=on_progress, on_unsolicited=self._handle
            )
            answer = self._connection.ask_on(self._channel, daemon, request)
        except BaseException:
            self._end_threads(_FAILED_LOAD_TIMEOUT_S)
            self._close()
            raise
        _end_all_at_exit()
        _hosts.add(self)
        self._thread.start()
        return answer

    def end(self) -> None:
        """Make the threads exit after their current batches, because the process is exiting. Does not wait."""
        self._exiting = True
        with contextlib.suppress(OSError):  # the host's thread has ended
            self._wake.send(b"\0", socket.MSG_DONTWAIT)

    def join(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` until all threads have ended."""
        self._thread.join(timeout_s)

    # ── runs in the caller's thread during the registration, later in the host's own thread ───────

    def _handle(self, message: messages.AnyMessage) -> None:
        if isinstance(message, messages.StartWorker):
            self._threads = {name: one for name, one in self._threads.items() if one.alive}
            load = self._record_error(self._load(message.instance))
            self._threads[message.worker] = WorkerThread(
                message, self._spec, load, self._connection.endpoint
            )
        elif isinstance(message, messages.EndWorker) and message.worker in self._threads:
            self._threads[message.worker].end()
        elif isinstance(message, messages.Released):
            self._released = message.why

    def _record_error(self, load: Load) -> Load:
        """Wrap a loader so that its exception is recorded and becomes the cause of the RegistrationError."""

        def recorded() -> Any:
            try:
                return load()
            except BaseException as error:
                self.load_error = error
                raise

        return recorded

    def _run(self) -> None:
        """Handle messages from the dispatcher until the registration ends."""
        channel = self._channel
        poll = select.poll()
        for fd in (channel.fileno, channel.events_fileno, self._wakeup.fileno()):
            poll.register(fd, select.POLLIN)
        try:
            while True:
                channel.watch()  # ZeroMQ's descriptors only signal changes, so check before waiting
                while (received := channel.receive(0)) is not None:
                    self._handle(received[1])
                if self._released is not None or channel.trouble is not None or self._exiting:
                    break
                poll.poll()
            self._warn_of_end()
            self._end_threads(orphaned=channel.trouble is not None)
        finally:
            _hosts.discard(self)
            self._close()

    def _warn_of_end(self) -> None:
        if self.expected or self._exiting:
            return
        why = self._released
        if why is None:
            why = f"the daemon in {self._connection.name} exited. Register the model again when a daemon is running"
        _logger.warning("model %s is no longer served by this process: %s", self.model, why)

    def _end_threads(self, timeout_s: float | None = None, *, orphaned: bool = False) -> None:
        for thread in self._threads.values():
            thread.end(orphaned=orphaned)
        for thread in self._threads.values():
            thread.join(timeout_s)

    def _close(self) -> None:
        self._channel.close()
        self._wakeup.close()
        self._wake.close()


def _loads(planned: RegistrationPlan) -> Callable[[int], Load]:
    """Return a function that maps the index of an instance to the loader of its callable."""
    targets, check, spec = planned.targets, planned.check, planned.message.spec

    def load(target: Any) -> Any:
        infer = create_callable(target, spec)
        if check is not None:
            run_check(check, spec, infer)
        return infer

    return lambda instance: partial(load, targets[instance if len(targets) > 1 else 0])


def hosts() -> list[ThreadHost]:
    """Return the registrations that are served by threads of this process."""
    return [host for host in list(_hosts) if host.alive]


def _end_all() -> None:
    """Let all threads finish their current batches before the interpreter exits."""
    deadline = time.monotonic() + _EXIT_TIMEOUT_S
    alive = hosts()
    for host in alive:
        host.end()
    for host in alive:
        host.join(max(0.0, deadline - time.monotonic()))


@cache
def _end_all_at_exit() -> None:
    """Register `_end_all` to be called at exit. Repeated calls have no effect."""
    atexit.register(_end_all)
