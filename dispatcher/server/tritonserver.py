"""The daemon's tritonserver: its state, models and readiness.

frontend.py is the interface to the program that runs as tritonserver; server_process.py handles a single process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import structlog

from pytriton._host.install.proxy_compiler import NATIVE_BACKEND
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.runtime.states import ServerState, StateMachine
from pytriton.dispatcher.runtime.task_limits import headroom
from pytriton.dispatcher.runtime.tasks import ChangeSignal, uninterrupted
from pytriton.dispatcher.server import cloud_frontends, preload_layout
from pytriton.dispatcher.server.frontend import (
    Frontend,
    ServerPlace,
    ServerRefused,
    SupportsHandover,
    Unreached,
)
from pytriton.dispatcher.server.own_repository import BACKEND
from pytriton.dispatcher.server.server_process import (
    ServerCrashed,
    ServerLost,
    ServerProcess,
    ServerStartError,
)
from pytriton.dispatcher.upgrade.snapshot import ServerSnapshot, UnusableHandOver

_log = structlog.get_logger(__name__)

T = TypeVar("T")

#: Interval between checks for work in progress in a replaced process, in seconds.
_POLL_INTERVAL_S = 1.0
#: Upper bounds of the number of threads that tritonserver starts, measured with 2.51: for itself, for each model, and
#: for each instance.
_SERVER_THREADS = 56  #: including the reserve of interposer/thread_reserve.c
_MODEL_THREADS = 2  #: for its batcher, and for loading it
_PROXY_THREADS = 3  #: for the proxy itself, for watching its lane, and for loading it
_INSTANCE_THREADS = 16  #: with other backends (a Python stub is a process with its own threads)


@dataclass
class _Retired:
    """A process that has been replaced and is finishing its requests."""

    process: ServerProcess
    info: messages.RetiringServer
    task: asyncio.Task[None] | None = None


class _Load:
    """A load in progress.

    Attributes:
        alone: whether no other load has been in progress at the same time
        abandoned: set when the daemon stops waiting for the load
    """

    def __init__(self) -> None:
        self.alone = True
        self.abandoned = asyncio.Event()

    async def until_done(self, name: str, loading: asyncio.Future[None]) -> None:
        """Wait for the load to end. Raises RemoteFailure if it is abandoned before that."""
        abandoned: asyncio.Future[Any] = asyncio.ensure_future(self.abandoned.wait())
        signs: list[asyncio.Future[Any]] = [loading, abandoned]
        try:
            await asyncio.wait(signs, return_when=asyncio.FIRST_COMPLETED)
            if not loading.done():
                loading.cancel()
                text = f"model {name} was not loaded: the daemon is stopping"
                raise RemoteFailure(ErrorKind.UNAVAILABLE, text)
            loading.result()
        finally:
            abandoned.cancel()


class TritonServer:
    """The daemon's tritonserver: one process at a time. After an unexpected exit, the daemon restarts it.

    Args:
        config: settings of the daemon
        place: where its processes run
        frontend: starts its processes
        on_retired: called with the pid of a replaced process when it has exited

    Attributes:
        changes: signals state changes
        vertex_model: model that the endpoint for Vertex AI serves; None while that endpoint is not up
        placed: cleared while a replacement starts or is cancelled; no model may be loaded or unloaded then
    """

    def __init__(
        self,
        config: DaemonConfig,
        place: ServerPlace,
        frontend: Frontend,
        *,
        on_retired: Callable[[int], None],
    ) -> None:
        self._config = config
        self._place = place
        self._frontend = frontend
        self._machine = StateMachine(ServerState.STARTING)
        self.changes = ChangeSignal()
        self._process: ServerProcess | None = None
        self._other: ServerProcess | None = (
            None  #: during a replacement, the process that does not accept clients
        )
        self._retired: dict[int, _Retired] = {}
        self._on_retired = on_retired
        self._replacing = asyncio.Lock()
        self._loads: set[_Load] = set()
        #: Number of loads and unloads that the daemon itself has in progress, by model.
        self._changing: Counter[str] = Counter()
        self._late_loads: dict[str, asyncio.Future[None]] = {}
        self._abandons_loads = False  #: whether the server is about to stop for good
        self.placed = asyncio.Event()
        self.placed.set()
        self._backend = NATIVE_BACKEND if self.proxy_is_native else BACKEND
        self._gate = frontend.make_gate(self._backend) if preload_layout.is_gated(config) else None
        self.vertex_model: str | None = None

    # ── lifetime ──────────────────────────────────────────────────────────────────────────────────

    def choose_ports(self) -> None:
        """Choose a free port where the settings have 0, and check that the other ports are free.

        Raises:
            PortError: a port is in use (the message names the process that holds it) or configured twice
        """
        self._frontend.choose_ports()

    async def start(self, preload: Mapping[str, Mapping[str, Any]] | None = None) -> set[str]:
        """Start the process, and wait until it can load models.

        Args:
            preload: models to load before the ports open: name -> configuration

        Returns:
            The names of the models that were loaded.

        Raises:
            ServerStartError: the process exited or did not become ready in time
        """
        preload = preload or {}
        vertex = cloud_frontends.vertex_model(self._config.tritonserver_options)
        there = vertex in preload or not self._frontend.vertex_needs_model
        self.vertex_model = vertex if there else None
        if self._machine.state is not ServerState.STARTING:
            self._change(ServerState.STARTING)
        models = self._place.models
        gated = self._gate is not None and self._gate.in_repository
        preload = self._within_thread_limit(preload)
        names = preload_layout.lay_out(models, preload, gate=gated)
        self._process = await ServerProcess.start(
            self._config, self._frontend, names, vertex=self.vertex_model is not None
        )
        states = await self._process.until_ready()
        preload_layout.clear(models, names)
        self._change(ServerState.READY)
        urls = self._frontend.endpoints.urls()
        _log.info("tritonserver is ready", server_pid=self._process.pid, **urls)
        verbose = self._config.tritonserver_options.get("log-verbose", "0")
        if verbose not in ("0", "false"):
            text = "tritonserver's verbose log is on, which may slow down inference"
            _log.warning(text, level_of_it=verbose)
        return {name for name in preload if states.get(name) == "READY"}

    def use(self, config: DaemonConfig) -> None:
        """Use new settings for processes that start from now on."""
        self._config = config
        self._frontend.use(config)

    async def wait_exited(self) -> str:
        """Wait until the process exits without having been replaced; describe how it exited."""
        while True:
            process = self._process
            assert process is not None  # `start` or `adopt` was called before
            exit_task = asyncio.ensure_future(process.wait_exited())
            try:
                while not exit_task.done() and not self._is_replaced(process):
                    change = asyncio.ensure_future(self.changes.next.wait())
                    await asyncio.wait({exit_task, change}, return_when=asyncio.FIRST_COMPLETED)
                    change.cancel()
                if exit_task.done():
                    async with self._replacing:  # if it is being replaced, wait for the outcome
                        if process is self._process:
                            return exit_task.result()
            finally:
                exit_task.cancel()

    def _is_replaced(self, process: ServerProcess) -> bool:
        """Return whether another process has replaced this one for good. This one may be finishing its requests."""
        return process is not self._process and process is not self._other

    async def clean_up(self) -> None:
        """Clean up after the process has exited unexpectedly or failed to start, so that it can be restarted."""
        if self._machine.state is not ServerState.STARTING:
            self._change(ServerState.STARTING)
        if self._process is not None:
            await self._process.stop(0)
        self._place.sweep_shared_memory()

    async def shut_down(self, busy: Callable[[], bool]) -> None:
        """Shut the process down for a restart. Requests in progress get at most the grace period."""
        if self._process is not None:
            await self._process.shut_down(busy)

    async def stop_accepting(self) -> None:
        """Stop accepting connections; wait until the open ones have ended or the grace period has expired."""
        await self._frontend.stop_accepting()

    async def stop(self) -> None:
        """Stop the process, and do not restart it. Its models should already have been unloaded."""
        if self._machine.state is ServerState.STOPPED:
            return
        self._change(ServerState.STOPPING)
        self._frontend.close()
        tasks = [one.task for one in self._retired.values() if one.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for retired in list(
            self._retired.values()
        ):  # those whose task was cancelled before it started
            await retired.process.stop()
        for process in filter(None, (self._other, self._process)):
            await process.stop()
        self._place.sweep_shared_memory()
        self._change(ServerState.STOPPED)

    def kill(self) -> None:
        """Kill all processes immediately, and remove their shared memory."""
        for process in self._processes:
            process.kill()
        self._place.sweep_shared_memory()

    # ── replacement by another process ────────────────────────────────────────────────────────────

    async def replace(
        self,
        preload: Mapping[str, Mapping[str, Any]],
        load_rest: Callable[[set[str]], Awaitable[None]],
        *,
        force: bool = False,
    ) -> int:
        """Replace the process with a new one; return the new pid once the new process has answered a request.

        The former process *retires*: it hands over its idle connections, and has `retire_timeout_s` to finish requests
        and streams in progress.

        Args:
            preload: models to load before the new process accepts requests: name -> configuration
            load_rest: loads all other models, given the names of those already loaded
            force: whether to replace the process even if sequences are in progress; their next requests then fail

        Raises:
            RemoteFailure: this frontend cannot be replaced, tritonserver is not up, sequences are in progress, or a second
                process cannot start enough threads
            ServerStartError: the new process did not start or does not answer; the former one keeps serving
        """
        if not self._frontend.replaces:
            raise RemoteFailure(ErrorKind.INVALID, "replacing the server requires frontend=native")
        async with self._replacing:
            former = self._running
            if former is None or not self.ready:
                text = f"tritonserver is {self.state.value}: retry later"
                raise RemoteFailure(ErrorKind.UNAVAILABLE, text)
            if not force:
                await self._refuse_in_sequences(former)
            self._check_successor_headroom()
            self.placed.clear()
            try:
                loaded = await self._start_successor(preload)
                successor, self._process, self._other = self._other, self._other, former
                assert successor is not None
                try:
                    await load_rest(loaded)
                    is_done = await self._switch_over(former, successor, force=force)
                except BaseException:
                    self._process, self._other = former, None
                    await successor.stop(0)
                    raise
                if not is_done:
                    self._process, self._other = former, None
                    self._retire(successor)
                    raise _in_sequences("some")
                self._other = None
                self._retire(former)
            finally:
                self.placed.set()
                self.changes.notify()
            _log.info("tritonserver was replaced", server_pid=successor.pid, former_pid=former.pid)
            return successor.pid

    async def _refuse_in_sequences(self, process: ServerProcess) -> None:
        """Raise RemoteFailure if sequences are in progress, because no other process can continue them."""
        try:
            count = (await self._frontend.work(process.pid)).sequences
        except (ServerRefused, Unreached):  # it has just exited, or does not report sequences
            return
        if count:
            raise _in_sequences(str(count))

    async def _start_successor(self, preload: Mapping[str, Mapping[str, Any]]) -> set[str]:
        """Start the new process, without accepting requests yet. Return the names of the models that it has loaded."""
        models = self._place.models
        preload = self._within_thread_limit(preload)
        names = preload_layout.lay_out(models, preload, gate=False)
        self._change(ServerState.STARTING)  # changes to models wait in this state
        try:
            process = await ServerProcess.start(
                self._config, self._frontend, names, vertex=False, as_successor=True
            )
            self._other = process  # set now, since its proxies attach while it starts
            try:
                states = await process.until_ready()
            except BaseException:
                self._other = None
                await process.stop(0)
                raise
        finally:
            preload_layout.clear(models, names)
            self._change(ServerState.READY)
        return {name for name in preload if states.get(name) == "READY"}

    async def _switch_over(
        self, former: ServerProcess, successor: ServerProcess, *, force: bool
    ) -> bool:
        """Move the clients to `successor`; return False if sequences prevented that.

        Raises:
            ServerStartError: `successor` is not serving; `former` still is
        """
        try:
            return await self._frontend.switch_over(former.pid, successor.pid, force=force)
        except (ServerRefused, Unreached, asyncio.TimeoutError) as error:
            await successor.is_exiting()
            why = str(error) or "it did not answer in time"
            raise ServerStartError(
                why if successor.running else await successor.wait_exited()
            ) from error

    def _retire(self, process: ServerProcess) -> None:
        now, limit_s = time.time(), self._config.retire_timeout_s
        info = messages.RetiringServer(process.pid, now, now + limit_s)
        retired = self._retired[process.pid] = _Retired(process, info)
        retired.task = asyncio.get_running_loop().create_task(self._until_retired(retired, limit_s))

    async def _until_retired(self, retired: _Retired, limit_s: float) -> None:
        """Give a replaced process `limit_s` seconds to finish its requests and exit, then stop it."""
        process = retired.process
        try:
            await self._wait_idle(retired, limit_s)
        except Exception:
            _log.exception("internal error: stopping the old tritonserver early")
        finally:
            await process.stop()
            del self._retired[process.pid]
            self._on_retired(process.pid)
            self.changes.notify()
        _log.info("old tritonserver exited", server_pid=process.pid)

    async def _wait_idle(self, retired: _Retired, limit_s: float) -> None:
        process = retired.process
        deadline = asyncio.get_running_loop().time() + limit_s
        while (left_s := deadline - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait([process.child.exited], timeout=min(_POLL_INTERVAL_S, left_s))
            if not process.running:
                return
            with contextlib.suppress(ServerRefused, Unreached):
                work = await self._frontend.work(process.pid)
                retired.info = msgspec.structs.replace(
                    retired.info, connections=work.connections, requests=work.requests
                )
        _log.warning(
            "aborting requests of the old tritonserver",
            server_pid=process.pid,
            retire_timeout_s=limit_s,
            connections=retired.info.connections,
            requests=retired.info.requests,
        )

    @property
    def retiring(self) -> frozenset[int]:
        """Pids of replaced processes that are still finishing their requests."""
        return frozenset(pid for pid, one in self._retired.items() if one.process.running)

    async def _apply_to_retiring(
        self, change: Callable[[ServerProcess], Awaitable[object]]
    ) -> None:
        """Apply a change to a model in retiring processes as well, because clients are still using those processes."""
        running = [one.process for one in self._retired.values() if one.process.running]
        for result in await asyncio.gather(*map(change, running), return_exceptions=True):
            if isinstance(result, (ServerRefused, Unreached)):
                _log.info("could not apply a change to the old tritonserver", reason=str(result))
            elif isinstance(result, BaseException):
                raise result

    # ── an upgrade of the daemon ──────────────────────────────────────────────────────────────────

    @property
    def can_hand_over(self) -> bool:
        """Whether the process and its proxies can keep running while the daemon is upgraded in place."""
        return isinstance(self._frontend, SupportsHandover) and self.proxy_is_native

    @property
    def is_quiescent(self) -> bool:
        """Whether there is exactly one process, and it is ready."""
        return self.has_single_process and not self._retired

    @property
    def has_single_process(self) -> bool:
        """Whether one process is serving and none is about to replace it. Replaced processes may still be finishing requests."""
        return self.ready and self._other is None and not self._replacing.locked()

    def hand_over(self, restarts: Mapping[str, int]) -> ServerSnapshot:
        """Return the state for the next version of the daemon.

        Args:
            restarts: number of restarts by cause

        Raises:
            RemoteFailure: this frontend cannot be handed over, or tritonserver has just exited
        """
        process = self._running
        if not isinstance(self._frontend, SupportsHandover):
            raise RemoteFailure(ErrorKind.INVALID, "an upgrade requires frontend=native")
        if process is None:
            raise RemoteFailure(ErrorKind.UNAVAILABLE, "tritonserver has just exited")
        return self._frontend.hand_over(process.pid, process.child, restarts)

    def adopt(self, state: ServerSnapshot) -> None:
        """Adopt the process of the previous version of the daemon.

        Raises:
            OSError: the process is not a child of this one, or a socket is gone
            UnusableHandOver: this frontend cannot adopt a process
        """
        if not isinstance(self._frontend, SupportsHandover):
            raise UnusableHandOver(
                "cannot adopt the running native frontend: this daemon does not use it"
            )
        child = self._frontend.adopt(state)
        self._process = ServerProcess.adopt(self._config, self._frontend, child)
        self._change(ServerState.READY)

    # ── models ────────────────────────────────────────────────────────────────────────────────────

    async def load(self, name: str, config: dict[str, Any] | None) -> None:
        """Load a model, or reload it while its current version keeps serving.

        tritonserver cannot abort a load. If cancelled, this function waits for the load to end, at most for the grace
        period; see `late_load`.

        Args:
            name: name of the model
            config: its configuration; None for the one in the model's directory

        Raises:
            ServerLost: tritonserver is not up, or exited during the load
            ServerCrashed: tritonserver crashed while it loaded no other model
            RemoteFailure: tritonserver refused the load (the message says why), or cannot start enough threads
            CancelledError: the wait was cancelled; the model may be loaded
        """
        text = None if config is None else json.dumps(config)
        process = self._process
        if process is not None:
            self._check_headroom(name, config, process.pid)
        load = _Load()
        self._loads.add(load)
        self._changing[name] += 1
        for one in self._loads if len(self._loads) > 1 else ():
            one.alone = False
        loading = asyncio.ensure_future(
            self._request("load", f"model {name}", lambda process: process.load(name, text))
        )
        try:
            await uninterrupted(load.until_done(name, loading), self._config.grace_period_s)
        except RemoteFailure as failure:
            if isinstance(failure, ServerLost) or process is None or load.abandoned.is_set():
                raise
            if not isinstance(failure.__cause__, ServerRefused) and await process.is_exiting():
                how = f"tritonserver (pid {process.pid}) {process.exit_description()} while it loaded model {name}"
                kind = ServerCrashed if load.alone and process.crashed else ServerLost
                raise kind(ErrorKind.UNAVAILABLE, how) from failure
            raise
        else:
            await self._apply_to_retiring(lambda process: process.load(name, text))
        finally:
            if not loading.done():  # the wait was cancelled, and the grace period has expired
                self._late_loads[name] = loading
                loading.add_done_callback(lambda done: self._forget_late_load(name, done))
            self._loads.discard(load)
            self._changing -= Counter([name])

    async def unload(self, name: str) -> None:
        """Start unloading a model, without waiting until it is unloaded.

        The model accepts no more requests, and its proxies detach once all requests have been answered.

        This also succeeds if tritonserver exits in the meantime, which unloads all models.

        Raises:
            RemoteFailure: tritonserver refused the request or is not up
        """
        process = self._process
        self._changing[name] += 1
        try:
            await self._request(
                "unload", f"model {name}", lambda process: process.admin.unload(name)
            )
        except RemoteFailure:
            if process is None or not await process.is_exiting():
                raise
        else:
            await self._apply_to_retiring(lambda process: process.admin.unload(name))
        finally:
            self._changing -= Counter([name])

    async def try_unload(self, name: str) -> None:
        """Start unloading a model that should not be loaded. If that fails, only log an error."""
        try:
            await self.unload(name)
        except RemoteFailure as failure:
            text = "could not unload a model that is not served"
            _log.error(text, model=name, reason=failure.text)

    def late_load(self, name: str) -> asyncio.Future[None] | None:
        """Return a model's load if it is still in progress although the wait for it was cancelled; otherwise None."""
        return self._late_loads.get(name)

    def _forget_late_load(self, name: str, loading: asyncio.Future[None]) -> None:
        if self._late_loads.get(name) is loading:
            del self._late_loads[name]
        if not loading.cancelled():
            loading.exception()  # mark it as retrieved; code that undoes the load reads it, too

    def is_changing(self, name: str) -> bool:
        """Return whether the daemon itself is loading or unloading a model."""
        return name in self._changing

    def abandon_loads(self) -> None:
        """Stop waiting for loads in progress, because tritonserver is about to exit."""
        self._abandons_loads = True
        for load in self._loads:
            load.abandoned.set()

    async def clear_failure(self, name: str) -> None:
        """Make tritonserver forget a failed load, so that it can report ready again. Log a warning if that fails."""
        if self._abandons_loads:
            return
        try:
            await preload_layout.clear_failure(self, name, self._backend)
        except RemoteFailure as failure:
            _log.warning(
                "could not reset a failed load; tritonserver keeps reporting that it is not ready",
                model=name,
                why=failure.text,
            )

    async def repository_states(self) -> dict[str, str]:
        """Return the state of each model in all repositories, by name; "" for a model that was never loaded.

        Raises:
            RemoteFailure: tritonserver is not up, or a repository cannot be read
        """
        return await self._request("list", "its models", lambda one: one.admin.repository_states())

    async def _request(
        self, verb: str, what: str, call: Callable[[ServerProcess], Awaitable[T]]
    ) -> T:
        process = self._running
        if not self.ready or process is None:
            text = f"cannot {verb} {what}: tritonserver is {self.state.value}"
            raise ServerLost(ErrorKind.UNAVAILABLE, text)
        try:
            return await call(process)
        except (ServerRefused, Unreached) as error:
            text = f"tritonserver did not {verb} {what}: {error}"
            raise RemoteFailure(ErrorKind.LOAD_FAILED, text) from error

    # ── readiness ─────────────────────────────────────────────────────────────────────────────────

    async def open_gate(self) -> None:
        """Let tritonserver report ready (`/v2/health/ready`) as soon as all its models are ready.

        Raises:
            RemoteFailure: tritonserver refused the request or is not up
        """
        if self._gate is not None:
            await self._gate.open(self)

    async def close_gate(self) -> None:
        """Make tritonserver report not ready, if it is up."""
        if self._gate is not None:
            await self._gate.close(self)

    # ── threads ───────────────────────────────────────────────────────────────────────────────────

    def _check_headroom(self, name: str, config: Mapping[str, Any] | None, pid: int) -> None:
        """Check that tritonserver can start the threads that a model needs. Exceeding the limit would crash it.

        Raises:
            RemoteFailure: it cannot start that many threads
        """
        needed, room = self._threads_for(config), headroom(pid)
        if room is not None and room.left < needed:
            text = (
                f"model {name} was not loaded into tritonserver: it needs about {needed} threads, but only "
                f"{room.left} more may be started ({room.limit}). Raise the limit, or serve fewer instances"
            )
            raise RemoteFailure(ErrorKind.LOAD_FAILED, text)

    def _check_successor_headroom(self) -> None:
        """Check that a second process can start the threads that it needs even without models. Otherwise it would
        abort.

        Raises:
            RemoteFailure: it cannot start that many threads
        """
        room = headroom(os.getpid())
        if room is not None and room.left < _SERVER_THREADS:
            text = (
                f"tritonserver was not replaced: a second one needs about {_SERVER_THREADS} threads besides those of its "
                f"models, but only {room.left} more may be started ({room.limit}). Raise the limit"
            )
            raise RemoteFailure(ErrorKind.UNAVAILABLE, text)

    def _within_thread_limit(
        self, preload: Mapping[str, Mapping[str, Any]]
    ) -> Mapping[str, Mapping[str, Any]]:
        """Return the models to load at the start: as many as the limit on threads allows. The rest are loaded later, one by one."""
        room = headroom(os.getpid())
        if room is None:
            return preload
        left, fitting = room.left - _SERVER_THREADS, {}
        for name, config in preload.items():
            left -= self._threads_for(config)
            if left >= 0:
                fitting[name] = config
        return fitting

    def _threads_for(self, config: Mapping[str, Any] | None) -> int:
        groups = (config or {}).get("instance_group") or [{}]
        instances = sum(max(1, int(group.get("count", 1))) for group in groups)
        ours = config is not None and config.get("backend") == NATIVE_BACKEND
        return _MODEL_THREADS + instances * (_PROXY_THREADS if ours else _INSTANCE_THREADS)

    # ── state ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def ready(self) -> bool:
        return self.state is ServerState.READY

    @property
    def is_stopping(self) -> bool:
        """Whether the server is stopping or has stopped, and will not be restarted."""
        return self._machine.state in (ServerState.STOPPING, ServerState.STOPPED)

    @property
    def state(self) -> ServerState:
        """State of tritonserver. It is STARTING as soon as the process has exited, even before `clean_up`."""
        ended = self._machine.state is ServerState.READY and self._running is None
        return ServerState.STARTING if ended else self._machine.state

    @property
    def proxy_is_native(self) -> bool:
        """Whether models use the compiled proxy rather than the Python one."""
        return self._place.runtime.native is not None

    def info(self) -> messages.ServerInfo:
        """Return the state of tritonserver as shown by `status`."""
        return messages.ServerInfo(
            state=self.state.value,
            pid=self._running.pid if self._running is not None else None,
            version=self._version(),
            binary=str(self._frontend.program),
            retiring=[one.info for one in self._retired.values() if one.process.running],
            **self._frontend.endpoints.urls(),
        )

    def _version(self) -> str:
        """Return the version of Triton's core, as reported by the process or, failing that, as installed."""
        reported = self._process.version if self._process is not None else ""
        return reported or self._place.runtime.tree.version or ""

    def check_proxy(self, pid: int) -> int:
        """Check that a process is tritonserver or was started by it; return the pid of that tritonserver.

        Raises:
            RemoteFailure: the process was not started by tritonserver
        """
        for process in self._processes:
            if process.started(pid):
                return process.pid
        text = f"process {pid} is not a proxy: tritonserver did not start it"
        raise RemoteFailure(ErrorKind.INVALID, text)

    @property
    def _processes(self) -> list[ServerProcess]:
        retired = [one.process for one in self._retired.values()]
        return [*filter(None, (self._process, self._other)), *retired]

    @property
    def _running(self) -> ServerProcess | None:
        return self._process if self._process is not None and self._process.running else None

    def _change(self, state: ServerState) -> None:
        self._machine.change(state)
        self.changes.notify()


def _in_sequences(count: str) -> RemoteFailure:
    text = (
        f"{count} sequences are in progress, which another tritonserver cannot continue: wait until they end, "
        "or use --force to replace it now; their next requests then fail (400)"
    )
    return RemoteFailure(ErrorKind.UNAVAILABLE, text)
