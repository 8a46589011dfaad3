"""Supervises the OpenAI frontend for the daemon: its socket, process, restarts and state."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import structlog

from pytriton._host.ports import PortError, listening
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.openai.state import METRICS, READY, ApiState, MetricData
from pytriton.dispatcher.runtime import logs
from pytriton.dispatcher.runtime.child import Child, describe_exit, with_parent_death_signal
from pytriton.dispatcher.runtime.kill_on_death import KillOnDeath
from pytriton.dispatcher.runtime.tasks import ChangeSignal
from pytriton.dispatcher.upgrade.snapshot import OpenAIState

__all__ = ["OpenAISupervisor"]

_log = structlog.get_logger(__name__)

_BACKLOG = 4096
#: Initial and maximum back-off before a restart, in seconds. The first of consecutive restarts is immediate.
_INITIAL_DELAY_S, _MAX_DELAY_S = 0.5, 30.0
#: Uptime that resets the back-off, in seconds.
_GOOD_LIFE_S = 60.0
#: Timeout (seconds) and maximum size (bytes) of the metrics that the process reports.
_METRICS_S, _MAX_METRICS_BYTES = 1.0, 64 << 20
_NO_HTTP = (
    "the OpenAI API needs tritonserver's HTTP endpoint, which allow_http = false disables; the native frontend provides it anyway: "
    "set frontend to native, or allow_http to true"
)
_read_metrics = msgspec.json.Decoder(list[MetricData]).decode


class OpenAISupervisor:
    """Supervisor of the daemon's OpenAI frontend. It starts the frontend once a model needs it.

    Args:
        config: the daemon's settings
        library: directory that contains only the package `pytriton`
        kill_on_death: kills the process when the daemon is killed
        describe: returns the state to send to the frontend
        changes: signals that this state may have changed
    """

    def __init__(
        self,
        config: DaemonConfig,
        library: Path,
        kill_on_death: KillOnDeath,
        describe: Callable[[], ApiState],
        changes: Sequence[ChangeSignal],
    ) -> None:
        self._address = config.openai_address
        self._port = config.openai_port
        self._library = library
        self._kill_on_death = kill_on_death
        self._describe = describe
        self._changes = changes
        self._listener: socket.socket | None = None
        self._supervise_task: asyncio.Task[None] | None = None
        self._child: Child | None = None
        self._channel = -1  #: descriptor of the socket to the process
        self._writer: asyncio.StreamWriter | None = None  #: set once the process has sent READY
        self._metrics_request: asyncio.Future[list[MetricData]] | None = (
            None  #: pending request for metrics
        )
        self._problem = ""

    @property
    def url(self) -> str:
        """URL for clients; "" while the API is closed because no model needs it."""
        if self._listener is None:
            return ""
        port = self._listener.getsockname()[1]
        return f"http://{_reachable(self._address)}:{port}/v1"

    @property
    def pid(self) -> int | None:
        """Pid of the frontend's process; None if it is not running."""
        running = self._child is not None and not self._child.exited.done()
        return self._child.pid if running and self._child else None

    def problem(self) -> str:
        """Return the problem to show in the daemon's status; "" if there is none."""
        return self._problem

    async def metrics(self) -> list[MetricData]:
        """Return the metrics of the frontend; an empty list if it is not running or does not answer in time."""
        if self._writer is None:
            return []
        if self._metrics_request is None:
            self._metrics_request = asyncio.get_running_loop().create_future()
            self._writer.write(METRICS)
        waiting = asyncio.shield(self._metrics_request)  # other waiters share it
        done, _ = await asyncio.wait([waiting], timeout=_METRICS_S)
        return waiting.result() if done else []

    def open(self) -> None:
        """Listen for clients and start the process. Does nothing if the API is open already.

        Raises:
            RemoteFailure: the address is in use, or tritonserver serves no HTTP
        """
        if self._listener is not None:
            return
        if not self._describe().upstream.url:
            raise RemoteFailure(ErrorKind.INVALID, _NO_HTTP)
        try:
            self._listener = listening(self._address, self._port, "openai_port", backlog=_BACKLOG)
        except PortError as error:
            raise RemoteFailure(
                ErrorKind.INVALID, f"the OpenAI frontend cannot listen: {error}"
            ) from error
        self._supervise_task = asyncio.ensure_future(self._supervise())
        _log.info("OpenAI API is available", url=self.url)

    async def run(self) -> None:
        """Open the API as soon as any served model needs it, including a restored one. Runs until cancelled."""
        while True:
            changed = self._changed()
            if self._listener is None and any(one.ready for one in self._describe().models):
                try:
                    self.open()
                except RemoteFailure as failure:
                    self._problem = failure.text
            await changed

    @property
    def is_quiescent(self) -> bool:
        """Whether the API is closed, or the process is ready and no message to it is half written."""
        if self._listener is None:
            return True
        # An upgrade would lose the rest of a partially written line.
        written = self._writer is not None and self._writer.transport.get_write_buffer_size() == 0
        return self.pid is not None and self._channel >= 0 and written

    def hand_over(self) -> OpenAIState | None:
        """Return the state for the next version of the daemon; None if the API is closed. Requires `is_quiescent`."""
        if self._listener is None or self._child is None:
            return None
        return OpenAIState(self._listener.fileno(), self._child.hand_over(), self._channel)

    def adopt(self, state: OpenAIState) -> None:
        """Adopt the socket and the process of the previous version. Raises OSError if one is gone."""
        self._listener = socket.socket(fileno=state.listener)
        child = Child.adopt(state.child, self._log_line, self._kill_on_death)
        channel = socket.socket(fileno=state.channel)
        self._supervise_task = asyncio.ensure_future(self._supervise(child, channel))

    async def stop(self, grace_s: float) -> None:
        """Stop the process: it accepts no more requests, and has `grace_s` seconds to answer pending ones."""
        if self._supervise_task is not None:
            self._supervise_task.cancel()
            await asyncio.wait([self._supervise_task])
        if self._listener is not None:
            self._listener.close()
        if self._child is not None:
            await self._child.stop(grace_s)

    # ── the process ──────────────────────────────────────────────────────────────────────────────

    async def _supervise(
        self, child: Child | None = None, channel: socket.socket | None = None
    ) -> None:
        loop = asyncio.get_running_loop()
        pause_s = 0.0
        while True:
            began = loop.time()
            try:
                ready = child is not None and channel is not None  # adopted and serving
                if child is None or channel is None:
                    child, channel = await self._start()
                how = await self._run_process(child, channel, ready=ready)
            except OSError as error:
                how = f"could not be started: {error}"
            child = channel = None
            if loop.time() - began > _GOOD_LIFE_S:
                pause_s = 0.0
            self._problem = f"the OpenAI frontend {how}; it restarts in {pause_s:g} s"
            _log.error("OpenAI frontend exited unexpectedly", how=how, again_in_s=pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(_MAX_DELAY_S, pause_s * 2 or _INITIAL_DELAY_S)

    async def _run_process(
        self, child: Child, channel: socket.socket, *, ready: bool = False
    ) -> str:
        """Send state changes to a process until it exits; return how it exited.

        Args:
            child: the process
            channel: socket connected to it
            ready: whether it has reported ready before
        """
        self._child = child
        reader, writer = await asyncio.open_connection(sock=channel, limit=_MAX_METRICS_BYTES)
        if ready:
            self._writer = writer
        self._channel = channel.fileno()
        state_task = asyncio.ensure_future(self._send_state(writer))
        hearing = asyncio.ensure_future(self._receive(reader, writer))
        try:
            return describe_exit(await asyncio.shield(child.exited))
        finally:
            self._channel = -1
            self._writer = None
            self._resolve_metrics([])
            state_task.cancel()
            hearing.cancel()
            writer.close()
            if child.exited.done():
                await child.stop(0)

    async def _start(self) -> tuple[Child, socket.socket]:
        """Start a process. Return the process, and our end of a socket connected to it."""
        assert self._listener is not None
        listener = self._listener.fileno()
        ours, theirs = socket.socketpair()
        module = "pytriton.dispatcher.openai"
        argv = [sys.executable, "-m", module, f"--listen={listener}", f"--state={theirs.fileno()}"]
        try:
            with theirs:
                child = await Child.start(
                    with_parent_death_signal(argv),
                    env={**os.environ, "PYTHONUNBUFFERED": "1"},
                    cwd=str(self._library),  # `-m` searches there first; it contains nothing else
                    on_line=self._log_line,
                    kill_on_death=self._kill_on_death,
                    pass_fds=[listener, theirs.fileno()],
                )
        except BaseException:
            ours.close()
            raise
        return child, ours

    def _log_line(self, pid: int, line: bytes) -> None:
        logs.log_child_line(logs.child_logger(source="openai"), line)

    async def _send_state(self, writer: asyncio.StreamWriter) -> None:
        sent = b""
        try:
            while True:
                changed = self._changed()
                state = msgspec.json.encode(self._describe()) + b"\n"
                if state != sent:
                    writer.write(state)
                    await writer.drain()
                    sent = state
                await changed
        except ConnectionError:
            return  # the process has exited; `_run_process` handles that

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            if line == READY:
                self._problem = ""
                self._writer = writer  # the state must be the first line that it reads
                continue
            try:
                self._resolve_metrics(_read_metrics(line))
            except msgspec.DecodeError:
                # The rest of a line whose beginning the previous version of the daemon has read.
                self._resolve_metrics([])

    def _resolve_metrics(self, metrics: list[MetricData]) -> None:
        if self._metrics_request is not None:
            self._metrics_request.set_result(metrics)
            self._metrics_request = None

    def _changed(self) -> asyncio.Future[None]:
        """Return a future that is done once the frontend's state may have changed."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = [asyncio.ensure_future(one.next.wait()) for one in self._changes]

        def notify(_: object) -> None:
            if not changed.done():
                changed.set_result(None)

        for one in waiting:
            one.add_done_callback(notify)
        changed.add_done_callback(lambda _: [one.cancel() for one in waiting])
        return changed


def _reachable(address: str) -> str:
    if address in ("0.0.0.0", "", "::"):
        return "127.0.0.1"
    return f"[{address}]" if ":" in address else address
