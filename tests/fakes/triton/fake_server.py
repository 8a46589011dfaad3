"""A tritonserver without a process: it loads models, refuses, hangs and exits when the test says so.

Its proxies behave as those of the compiled backend: they attach while the model is
loaded, and the replaced ones detach once the new ones have attached.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.parameters import REGISTRATION_PARAMETER, STAND_IN_PARAMETER
from pytriton.dispatcher.runtime.states import ServerState
from pytriton.dispatcher.runtime.tasks import ChangeSignal, uninterrupted
from pytriton.dispatcher.server.server_process import ServerCrashed, ServerLost, ServerStartError

#: The pid of every fake server.
SERVER_PID = 4000


@dataclass
class LoadedModel:
    """A loaded model; `registration` is "" if it has no proxies."""

    config: Mapping[str, Any]
    registration: str
    proxies: list[str]


@dataclass
class Obstacle:
    """The fate of the next loads: "refuse", "end" or "crash" (of tritonserver), or "hang" until `gone` is set."""

    what: str
    times: int = 1
    gone: asyncio.Event = field(default_factory=asyncio.Event)


class FakeServer:
    """One tritonserver.

    Args:
        models: its model repository
        attach: asks for a worker on behalf of a proxy: registration, proxy
        detach: reports the end of a proxy: registration, proxy

    Attributes:
        models: what it serves, by name.
        failures: models whose last load failed without a previous version: they prevent readiness.
        history: its requests in order: "load m", "unload m".
        obstacles: what happens to the next loads of a model.
        starts_fail: how many of its next starts fail.
        unseen_s: seconds between loading its models at a start and being known to be up.
        gate_open: whether it reports that it is ready.
        answers_for_s: seconds for which it answers requests for a model after the request to unload it.
        placed: see TritonServer.
        hold_proxies: whether replaced proxies stay, as those with long batches do.
    """

    proxy_is_native = True
    retiring: frozenset[int] = frozenset()
    vertex_needs_model = True
    http_port, grpc_port, metrics_port = 8000, 8001, 8002

    def __init__(
        self,
        folder: Path,
        attach: Callable[[str, str], Awaitable[None]],
        detach: Callable[[str, str], Awaitable[None]],
        *,
        grace_s: float,
        vertex_model: str | None = None,
    ) -> None:
        self.folder = folder
        self.changes = ChangeSignal()
        self.placed = asyncio.Event()
        self.placed.set()
        self.models: dict[str, LoadedModel] = {}
        self.failures: set[str] = set()
        self._loading: dict[str, asyncio.Task[None]] = {}
        self.history: list[str] = []
        self.obstacles: dict[str, Obstacle] = {}
        self.starts = 0
        self.starts_fail = 0
        self.unseen_s = 0.0
        self.gate_open = False
        self.answers_for_s = 0.0
        self.hold_proxies = False
        self.vertex_model: str | None = None
        self._vertex_wanted = vertex_model
        self._attach, self._detach = attach, detach
        self._grace_s = grace_s
        self._state = ServerState.STARTING
        self._serial = itertools.count()
        self._end: asyncio.Future[None] | None = None
        self._alone: dict[str, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._abandoned = asyncio.Event()
        self._leaving: list[tuple[str, str]] = []
        self._unloaded_at: dict[str, float] = {}

    # ── start and exit ─────────────────────────────────────────────────────────────────────────────────

    @property
    def ready(self) -> bool:
        return self._state is ServerState.READY

    @property
    def is_stopping(self) -> bool:
        return self._state in (ServerState.STOPPING, ServerState.STOPPED)

    @property
    def state(self) -> ServerState:
        return self._state

    def _change(self, state: ServerState) -> None:
        self._state = state
        self.changes.notify()

    def choose_ports(self) -> None:
        """Do nothing: the ports are already chosen."""

    async def start(self, preload: Mapping[str, Mapping[str, Any]] | None = None) -> set[str]:
        self._change(ServerState.STARTING)
        self._end = asyncio.get_running_loop().create_future()
        self.starts += 1
        await asyncio.sleep(1.0)
        if self.starts_fail:
            self.starts_fail -= 1
            self._end.set_result(None)
            raise ServerStartError("it did not start")
        loaded = set()
        for name, config in (preload or {}).items():
            if (self.folder / name).is_dir():
                try:
                    if name in self.obstacles:
                        raise RemoteFailure(ErrorKind.LOAD_FAILED, "not now")
                    await self._bring_up(name, dict(config))
                    loaded.add(name)
                except RemoteFailure:
                    self.failures.add(name)
        await asyncio.sleep(self.unseen_s)
        there = self._vertex_wanted in loaded or not self.vertex_needs_model
        self.vertex_model = self._vertex_wanted if there else None
        self._change(ServerState.READY)
        return loaded

    def end(self) -> None:
        """Exit by itself, as in a crash."""
        assert self._end is not None
        self._state = ServerState.STARTING
        self.models.clear()
        self.failures.clear()
        self._leaving.clear()
        self.gate_open = False
        for task in list(self._tasks):
            task.cancel()
        if not self._end.done():
            self._end.set_result(None)
        self.changes.notify()

    async def wait_exited(self) -> str:
        assert self._end is not None
        await asyncio.shield(self._end)
        return "tritonserver ended"

    async def shut_down(self, busy: Callable[[], bool]) -> None:
        self.end()

    async def clean_up(self) -> None:
        """Do nothing: a fake leaves no files."""

    async def stop(self) -> None:
        self._change(ServerState.STOPPED)
        self.end()
        self._state = ServerState.STOPPED

    def kill(self) -> None:
        self.end()

    def check_proxy(self, pid: int) -> int:
        assert pid == SERVER_PID
        return SERVER_PID

    def info(self) -> messages.ServerInfo:
        pid = SERVER_PID if self._end is not None and not self._end.done() else None
        return messages.ServerInfo(self._state.value, pid, http_url="http://127.0.0.1:8000")

    # ── its models ───────────────────────────────────────────────────────────────────────────────

    async def load(self, name: str, config: dict[str, Any] | None) -> None:
        """As TritonServer.load: it cannot be interrupted, and continues when nobody waits any more."""
        self.history.append(f"load {name}")
        loading = self._load(name, config)
        await uninterrupted(self._reported("load", name, loading, self._loading), self._grace_s)

    def late_load(self, name: str) -> asyncio.Future[None] | None:
        """As TritonServer.late_load."""
        task = self._loading.get(name)
        return None if task is None or task.done() else task

    def abandon_loads(self) -> None:
        """Notify those waiting for a load that the daemon is stopping."""
        self._abandoned.set()
        self._abandoned = asyncio.Event()

    async def unload(self, name: str) -> None:
        if not self.ready:
            raise self._lost("unload", name)
        self.history.append(f"unload {name}")
        self._unloaded_at[name] = asyncio.get_running_loop().time() + self.answers_for_s
        self._take_out(name)

    async def try_unload(self, name: str) -> None:
        await self.unload(name)

    async def clear_failure(self, name: str) -> None:
        self.failures.discard(name)

    async def repository_states(self) -> dict[str, str]:
        if not self.ready:
            raise self._lost("list", "its models")
        now = asyncio.get_running_loop().time()
        unloading = {name: "UNLOADING" for name, end in self._unloaded_at.items() if end > now}
        return {**unloading, **dict.fromkeys(self.models, "READY")}

    async def open_gate(self) -> None:
        self.gate_open = True

    async def close_gate(self) -> None:
        self.gate_open = False

    def let_go(self) -> None:
        """Answer the batches of replaced proxies."""
        self.hold_proxies = False
        leaving, self._leaving = self._leaving, []
        for registration, proxy in leaving:
            self._run(self._detach(registration, proxy))

    def _lost(self, verb: str, name: str) -> ServerLost:
        return ServerLost(
            ErrorKind.UNAVAILABLE, f"cannot {verb} model {name}: tritonserver is down"
        )

    async def _reported(
        self, verb: str, name: str, doing: Any, tasks: dict[str, asyncio.Task[None]] | None = None
    ) -> None:
        if not self.ready or self._end is None:
            doing.close()
            raise self._lost(verb, name)
        task = self._run(doing)
        if tasks is not None:
            tasks[name] = task
        abandoned = asyncio.ensure_future(self._abandoned.wait())
        signs: set[asyncio.Future[Any]] = {task, self._end, abandoned}
        try:
            await asyncio.wait(signs, return_when=asyncio.FIRST_COMPLETED)
            if abandoned.done() and not task.done():
                raise RemoteFailure(ErrorKind.UNAVAILABLE, f"model {name}: the daemon is stopping")
        finally:
            abandoned.cancel()
        if self._end.done():
            await asyncio.wait({task})
        if not task.done() or task.cancelled():
            raise self._lost(verb, name)
        task.result()

    def _run(self, doing: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # mark as retrieved: the waiting task raises it

    async def _load(self, name: str, config: dict[str, Any] | None) -> None:
        async with self._alone.setdefault(name, asyncio.Lock()):
            try:
                await self._meet_obstacle(name)
                if config is None and not (self.folder / name).exists():
                    text = f"failed to poll {name} from the model repository"
                    raise RemoteFailure(ErrorKind.LOAD_FAILED, text)
                await self._bring_up(name, config or {})
            except ServerCrashed:
                raise
            except RemoteFailure:
                if name not in self.models:  # otherwise the previous version keeps serving
                    self.failures.add(name)
                raise
            self.failures.discard(name)

    async def _meet_obstacle(self, name: str) -> None:
        obstacle = self.obstacles.get(name)
        if obstacle is None:
            return
        obstacle.times -= 1
        if obstacle.times <= 0:
            del self.obstacles[name]
        if obstacle.what == "refuse":
            raise RemoteFailure(ErrorKind.LOAD_FAILED, f"tritonserver did not load {name}: no")
        if obstacle.what == "crash":
            self.end()
            raise ServerCrashed(ErrorKind.UNAVAILABLE, f"tritonserver crashed with {name}")
        if obstacle.what == "end":
            self.end()
            await asyncio.sleep(0)  # this ends with it
        if obstacle.what == "hang":
            await obstacle.gone.wait()

    async def _bring_up(self, name: str, config: dict[str, Any]) -> None:
        parameters = config.get("parameters", {})
        former = self.models.get(name)
        if (
            former is not None and former.config == config
        ):  # tritonserver considers the model unchanged
            return
        ours = REGISTRATION_PARAMETER in parameters and STAND_IN_PARAMETER not in parameters
        registration = parameters[REGISTRATION_PARAMETER]["string_value"] if ours else ""
        count = config["instance_group"][0]["count"] if ours else 0
        proxies = [f"{name}_{next(self._serial)}" for _ in range(count)]
        attached = await asyncio.gather(
            *(self._attach(registration, proxy) for proxy in proxies), return_exceptions=True
        )
        failure = next((one for one in attached if isinstance(one, BaseException)), None)
        if failure is not None:
            for proxy in proxies:
                await self._detach(registration, proxy)
            raise RemoteFailure(ErrorKind.LOAD_FAILED, f"no proxy of {name}: {failure}")
        self._take_out(name)
        self.models[name] = LoadedModel(config, registration, proxies)

    def _take_out(self, name: str) -> None:
        former = self.models.pop(name, None)
        if former is None:
            return
        self._leaving += [(former.registration, proxy) for proxy in former.proxies]
        if not self.hold_proxies:
            self.let_go()
