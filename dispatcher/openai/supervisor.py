"""The daemon's side of the OpenAI front: its socket, its process, what it is told, and another process when it ends."""

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
from pytriton.dispatcher.openai.state import METRICS, READY, State, Told
from pytriton.dispatcher.runtime import logs
from pytriton.dispatcher.runtime.change_signal import ChangeSignal
from pytriton.dispatcher.runtime.child import Child, bound_to_us, describe_exit
from pytriton.dispatcher.runtime.kill_on_death import KillOnDeath
from pytriton.dispatcher.runtime.upgrade_snapshot import OpenAIState

__all__ = ["OpenAIFront"]

_log = structlog.get_logger(__name__)

_BACKLOG = 4096
#: Seconds before the process is started again; the first time in a row it is started at once.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
#: A process that has lived that long does not count as one of a row.
_GOOD_LIFE_S = 60.0
#: What the process gets to tell its metrics in, and their most bytes.
_METRICS_S, _METRICS_MOST = 1.0, 64 << 20
_NO_HTTP = (
    "the OpenAI API needs tritonserver's HTTP, which allow_http = false has switched off; the native front has HTTP "
    "for it all the same: set front to native, or allow_http to true"
)
_read_metrics = msgspec.json.Decoder(list[Told]).decode


class OpenAIFront:
    """The front of one daemon. Nothing of it exists until a model asks for it.

    Args:
        config: the daemon's settings
        library: the folder that holds `pytriton` alone
        kill_on_death: ends the process when the daemon is killed
        describe: returns what the front is to be told now
        news: what tells that this may have changed
    """

    def __init__(
        self,
        config: DaemonConfig,
        library: Path,
        kill_on_death: KillOnDeath,
        describe: Callable[[], State],
        news: Sequence[ChangeSignal],
    ) -> None:
        self._address = config.openai_address
        self._port = config.openai_port
        self._library = library
        self._kill_on_death = kill_on_death
        self._describe = describe
        self._news = news
        self._listener: socket.socket | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._child: Child | None = None
        self._channel = -1  #: the descriptor on which it is told
        self._writer: asyncio.StreamWriter | None = None  #: of a process that has said READY
        self._asked: asyncio.Future[list[Told]] | None = None  #: its metrics
        self._problem = ""

    @property
    def url(self) -> str:
        """The address at which clients reach it; "" while no model has asked for it."""
        if self._listener is None:
            return ""
        port = self._listener.getsockname()[1]
        return f"http://{_reachable(self._address)}:{port}/v1"

    @property
    def pid(self) -> int | None:
        """The process; None while there is none."""
        running = self._child is not None and not self._child.exited.done()
        return self._child.pid if running and self._child else None

    def problem(self) -> str:
        """Return what somebody should look at; "" if nothing."""
        return self._problem

    async def metrics(self) -> list[Told]:
        """Return what the process has counted; nothing where there is none, or it does not say so in time."""
        if self._writer is None:
            return []
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()
            self._writer.write(METRICS)
        waiting = asyncio.shield(self._asked)  # for others, too
        done, _ = await asyncio.wait([waiting], timeout=_METRICS_S)
        return waiting.result() if done else []

    def open(self) -> None:
        """Listen, and keep a process running from now on: a model asks for it.

        Raises:
            RemoteFailure: it cannot listen there, or could not ask tritonserver
        """
        if self._listener is not None:
            return
        if not self._describe().upstream.url:
            raise RemoteFailure(ErrorKind.INVALID, _NO_HTTP)
        try:
            self._listener = listening(self._address, self._port, "openai_port", backlog=_BACKLOG)
        except PortError as error:
            raise RemoteFailure(
                ErrorKind.INVALID, f"the OpenAI front cannot listen: {error}"
            ) from error
        self._keeping = asyncio.ensure_future(self._keep())
        _log.info("the OpenAI API is served", url=self.url)

    async def run(self) -> None:
        """Open it as soon as a model that is served asks for it, such as one that was restored."""
        while True:
            changed = self._changed()
            if self._listener is None and self._describe().models:
                try:
                    self.open()
                except RemoteFailure as failure:
                    self._problem = failure.text
            await changed

    @property
    def settled(self) -> bool:
        """Whether nothing is under way: it is not open, or its process serves and has been told all."""
        if self._listener is None:
            return True
        # A line of which half is written would be gone with this version of the process.
        written = self._writer is not None and self._writer.transport.get_write_buffer_size() == 0
        return self.pid is not None and self._channel >= 0 and written

    def hand_over(self) -> OpenAIState | None:
        """Return what the next version of this process goes on with; it is settled."""
        if self._listener is None or self._child is None:
            return None
        return OpenAIState(self._listener.fileno(), self._child.hand_over(), self._channel)

    def adopt(self, state: OpenAIState) -> None:
        """Go on with the socket and the process of a former version of this process; raises OSError."""
        self._listener = socket.socket(fileno=state.listener)
        child = Child.adopt(state.child, self._log_line, self._kill_on_death)
        channel = socket.socket(fileno=state.channel)
        self._keeping = asyncio.ensure_future(self._keep(child, channel))

    async def stop(self, grace_s: float) -> None:
        """Take no more requests, answer those that are there, and end."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        if self._listener is not None:
            self._listener.close()
        if self._child is not None:
            await self._child.stop(grace_s)

    # ── the process ──────────────────────────────────────────────────────────────────────────────

    async def _keep(self, child: Child | None = None, channel: socket.socket | None = None) -> None:
        loop = asyncio.get_running_loop()
        pause_s = 0.0
        while True:
            began = loop.time()
            try:
                ready = child is not None and channel is not None  # it was adopted, and serves
                if child is None or channel is None:
                    child, channel = await self._start()
                how = await self._live(child, channel, ready=ready)
            except OSError as error:
                how = f"could not be started: {error}"
            child = channel = None
            if loop.time() - began > _GOOD_LIFE_S:
                pause_s = 0.0
            self._problem = f"the OpenAI front {how}; another one is started in {pause_s:g} s"
            _log.error("the OpenAI front ended", how=how, again_in_s=pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2 or _FIRST_PAUSE_S)

    async def _live(self, child: Child, channel: socket.socket, *, ready: bool = False) -> str:
        """Tell a process what changes; return how it ended. `ready`: it has said so before."""
        self._child = child
        reader, writer = await asyncio.open_connection(sock=channel, limit=_METRICS_MOST)
        if ready:
            self._writer = writer
        self._channel = channel.fileno()
        telling = asyncio.ensure_future(self._tell(writer))
        hearing = asyncio.ensure_future(self._hear(reader, writer))
        try:
            return describe_exit(await asyncio.shield(child.exited))
        finally:
            self._channel = -1
            self._writer = None
            self._tell_metrics([])
            telling.cancel()
            hearing.cancel()
            writer.close()
            if child.exited.done():
                await child.stop(0)

    async def _start(self) -> tuple[Child, socket.socket]:
        """Start a process; return it, and the connection on which it is told what changes."""
        assert self._listener is not None
        listener = self._listener.fileno()
        ours, theirs = socket.socketpair()
        module = "pytriton.dispatcher.openai"
        argv = [sys.executable, "-m", module, f"--listen={listener}", f"--state={theirs.fileno()}"]
        try:
            with theirs:
                child = await Child.start(
                    bound_to_us(argv),
                    env={**os.environ, "PYTHONUNBUFFERED": "1"},
                    cwd=str(self._library),  # `-m` looks there first: it holds nothing else
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

    async def _tell(self, writer: asyncio.StreamWriter) -> None:
        told = b""
        try:
            while True:
                changed = self._changed()
                said = msgspec.json.encode(self._describe()) + b"\n"
                if said != told:
                    writer.write(said)
                    await writer.drain()
                    told = said
                await changed
        except ConnectionError:
            return  # it has ended, which is seen elsewhere

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            if line == READY:
                self._problem = ""
                self._writer = writer  # the first line that it reads has to be its state
                continue
            try:
                self._tell_metrics(_read_metrics(line))
            except msgspec.DecodeError:
                # The rest of what a former version of this process has begun to read.
                self._tell_metrics([])

    def _tell_metrics(self, metrics: list[Told]) -> None:
        if self._asked is not None:
            self._asked.set_result(metrics)
            self._asked = None

    def _changed(self) -> asyncio.Future[None]:
        """Return what is done at the next change of what the front is told."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = [asyncio.ensure_future(one.next.wait()) for one in self._news]

        def tell(_: object) -> None:
            if not changed.done():
                changed.set_result(None)

        for one in waiting:
            one.add_done_callback(tell)
        changed.add_done_callback(lambda _: [one.cancel() for one in waiting])
        return changed


def _reachable(address: str) -> str:
    if address in ("0.0.0.0", "", "::"):
        return "127.0.0.1"
    return f"[{address}]" if ":" in address else address
