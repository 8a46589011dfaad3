"""A registration's model in tritonserver. The model is loaded while a worker can serve it, and unloaded otherwise.

a client of tritonserver unloads it: UNLOADED ──▶ a client loads it: READY
no worker for a while ──▶ Triton unloads: NOT_READY ──▶ a worker is back ──▶ Triton loads: READY
a proxy exits without detaching ──▶ Triton reloads the model with new proxies
tritonserver exits ──▶ it is restarted ──▶ it loads the model; failed loads are retried
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

import structlog

from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.models.in_triton.attached_proxies import ProxyExits
from pytriton.dispatcher.runtime.states import ModelState, StateMachine
from pytriton.dispatcher.runtime.tasks import cause_of
from pytriton.dispatcher.server import own_repository, preload_layout
from pytriton.dispatcher.server.server_process import ServerLost
from pytriton.dispatcher.server.tritonserver import TritonServer
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import LOG_ONLY, Events
from pytriton.dispatcher.upgrade.snapshot import RegistrationState
from pytriton.dispatcher.workers.pool import Pool

_log = structlog.get_logger(__name__)

#: Retry interval for a load that tritonserver refused. A worker that starts or exits also triggers a retry.
_LOAD_AGAIN_S = 5.0


class ModelInTriton:
    """One registration's model in tritonserver, and the tasks that keep it loaded.

    Args:
        name: name of the model
        config: returns the configuration to load it with. With a different argument, tritonserver restarts all proxies
        pool: its workers
        load_lock: the lock of the registration that this one replaces, if any: only one of them may load or unload at a
            time
        events: receives events about the model

    Attributes:
        machine: the registration's state.
        load_lock: held while Triton loads or unloads the model.
        ends: tracks its proxies until they exit.
        server_lost: tritonserver exited, and its successor has not loaded the model yet.
        load_failed: the running tritonserver refused the last load, and stays not ready until the failure is cleared.
    """

    def __init__(
        self,
        name: str,
        config: Callable[[int], dict[str, Any]],
        pool: Pool,
        load_lock: asyncio.Lock | None = None,
        events: Events = LOG_ONLY,
    ) -> None:
        self.machine = StateMachine(ModelState.STARTING)
        self.load_lock = asyncio.Lock() if load_lock is None else load_lock
        self.ends = ProxyExits(pool, self._proxy_broken)
        self.server_lost = False
        self.load_failed = False
        self._name = name
        self._events = events
        self._config = config
        self._pool = pool
        self._broken = asyncio.Event()
        #: Number of loads that had to restart all proxies, after a failure or to change their number.
        self._mended = 0
        self._loads = 0  #: number of loads and unloads requested from Triton
        self._models: Path | None = None  #: Triton's repository, once it contains the model
        self._unserved = False  #: workers can serve the model, but tritonserver refused it
        self._tasks: list[asyncio.Task[None]] = []

    # ── state ────────────────────────────────────────────────────────────────────────────────────

    @property
    def ready(self) -> bool:
        """Whether tritonserver has loaded the model, or will load it once tritonserver is up again."""
        return self.machine.state is ModelState.READY

    @property
    def is_unloaded_by_daemon(self) -> bool:
        """Whether the daemon has unloaded the model because no worker can serve it."""
        return self.machine.state is ModelState.NOT_READY

    @property
    def unloaded(self) -> bool:
        """Whether a client of tritonserver has unloaded the model."""
        return self.machine.state is ModelState.UNLOADED

    @property
    def config(self) -> dict[str, Any]:
        """The configuration with which Triton loads the model."""
        return self._config(self._mended)

    def mark(self) -> object:
        """Return a value that changes whenever the daemon loads or unloads the model; None during a load or unload."""
        if self.server_lost or self.load_lock.locked() or not (self.ready or self.unloaded):
            return None
        return (self.machine.state, self._loads)

    def sync_with_index(self, loaded: bool) -> None:
        """Update the state from Triton's index. If the index contradicts the daemon's last action, a client has made
        a change.
        """
        if loaded == self.ready:
            return
        self.machine.change(ModelState.READY if loaded else ModelState.UNLOADED)
        kind = kinds.CLIENT_LOADED if loaded else kinds.CLIENT_UNLOADED
        self._events.emit(kind, model=self._name)
        wake_task = asyncio.get_running_loop().create_task(self._pool.notify_waiters())
        self._tasks.append(wake_task)  # clients may load and unload it repeatedly
        wake_task.add_done_callback(self._tasks.remove)

    @property
    def is_quiescent(self) -> bool:
        """Whether no load or unload is in progress."""
        settled_states = (ModelState.READY, ModelState.NOT_READY, ModelState.UNLOADED)
        if self.load_lock.locked() or self.server_lost or self._broken.is_set():
            return False
        return self.machine.state in settled_states

    def numbers(self) -> tuple[int, int]:
        """Return how often the model's proxies were restarted, and how many loads and unloads were requested from Triton."""
        return self._mended, self._loads

    def adopt(self, state: RegistrationState, models: Path) -> None:
        """Adopt what the previous version of this process left in tritonserver."""
        self._mended, self._loads = state.mended, state.loads
        self.use_folder(models)
        self.machine.change(ModelState.READY)
        if state.state == ModelState.UNLOADED.value:
            self.machine.change(ModelState.UNLOADED)
        self._unserved = state.state == ModelState.NOT_READY.value
        for proxy in state.pool.routes:
            self.ends.proxies.watch(proxy, None)  # compiled: not a process of its own

    # ── loading and unloading ────────────────────────────────────────────────────────────────────

    def use_folder(self, models: Path) -> None:
        """From now on, write the configuration to the model's folder in Triton's repository."""
        self._models = models

    def request_new_proxies(self) -> None:
        """Make the next load restart all proxies."""
        self._mended += 1

    async def load(self, server: TritonServer) -> None:
        """Load the model in Triton with its current configuration.

        Also write the configuration to the model's folder, so that clients can load the model from there.

        Raises:
            ServerLost: tritonserver is not up, or exited during the load.
            RemoteFailure: tritonserver refused the load.
        """
        self.write_config()
        try:
            await server.load(self._name, self.config)
            self.load_failed = False
        except (asyncio.CancelledError, RemoteFailure) as error:
            failure = cause_of(error)
            if isinstance(failure, RemoteFailure) and not isinstance(failure, ServerLost):
                self.load_failed = True
            raise
        finally:
            self._loads += 1

    def write_config(self) -> None:
        """Write the current configuration to the model's folder."""
        if self._models is not None:
            own_repository.write_config(self._models, self._name, self.config)

    async def load_again(self, server: TritonServer, *, loaded: bool) -> None:
        """Load the model in a restarted tritonserver, if it is not loaded there yet and a worker can serve it.

        If the registration ends during the load, unload the model.
        """
        self.load_failed = not loaded
        if self.ready and not loaded:
            self._unserved = not await self._try_to_load(server)
        elif loaded and not self.ready:
            async with self.load_lock:
                if not self.ready:  # check again: this may have changed
                    self._loads += 1
                    await server.try_unload(self._name)
        elif loaded:
            self.write_config()  # the configuration written for the start is gone
        self.server_lost = False
        await self._pool.notify_waiters()

    async def refuse_requests(self, server: TritonServer, text: str) -> None:
        """Replace the model during shutdown with one that answers every request with 503 and `text`."""
        await server.load(self._name, preload_layout.placeholder(self.config, text))

    def forget_proxies(self, living: Collection[int] = ()) -> None:
        """Forget the proxies that exited together with tritonserver. Keep those of the servers in `living`."""
        self.server_lost = True
        self.load_failed = False
        self.ends.forget_all(living)

    # ── tasks ────────────────────────────────────────────────────────────────────────────────────

    def start_tasks(
        self, server: TritonServer, *, not_ready_after_s: float, grace_s: float
    ) -> None:
        """Start the tasks that track the workers and reload the model when a proxy breaks."""
        for duty in (
            self._follow_workers(server, not_ready_after_s),
            self._follow_overlap(self._pool.lanes),
            self._replace_broken_proxies(server, grace_s),
        ):
            task = asyncio.get_running_loop().create_task(duty)
            task.add_done_callback(_report_fault)
            self._tasks.append(task)

    def cancel_tasks(self) -> None:
        """Cancel the tasks that `start_tasks` started, because the registration is stopping."""
        for task in self._tasks:
            task.cancel()

    def _proxy_broken(self, proxy: str) -> None:
        """Reload the model, because Triton does not restart a proxy that exited without detaching."""
        if self.ready:
            self._events.emit(kinds.PROXY_BROKEN, model=self._name, reason=f"proxy {proxy}")
            self._broken.set()

    async def _follow_workers(self, server: TritonServer, not_ready_after_s: float) -> None:
        """Keep the model loaded in Triton while workers can serve it, and unloaded while none can."""
        pool = self._pool
        while True:
            await pool.until(lambda: self._unserved or not pool.answers)
            if not self._unserved:
                await pool.until(
                    lambda: pool.answers or pool.is_crash_looping, timeout_s=not_ready_after_s
                )
                if pool.answers:
                    continue
            if self.unloaded:  # until a client loads it again
                self._unserved = False
                await pool.until(lambda: pool.answers or not self.unloaded)
                continue
            self.machine.change(ModelState.NOT_READY)
            if self._unserved:
                await pool.changed(_LOAD_AGAIN_S)
            else:
                self._events.emit(
                    kinds.NOT_READY, model=self._name, reason="; ".join(pool.problems())
                )
                await self._in_triton(lambda: server.unload(self._name))
            self._unserved = True
            while self._unserved:
                await pool.until(lambda: server.ready and pool.answers)
                self._unserved = not await self._try_to_load(server)
                if self._unserved:
                    await pool.changed(_LOAD_AGAIN_S)
            self.machine.change(ModelState.READY)
            self._events.emit(kinds.READY_AGAIN, model=self._name)
            await pool.notify_waiters()

    async def _follow_overlap(self, loaded: int) -> None:
        """Reload the model if its first worker, which starts later than the proxies, runs batches concurrently.

        Scaling also changes the number of proxies, but reloads the model itself.
        """
        await self._pool.until(lambda: self._pool.overlap and self._pool.lanes != loaded)
        self._broken.set()

    async def _replace_broken_proxies(self, server: TritonServer, grace_s: float) -> None:
        while True:
            await self._broken.wait()
            self._broken.clear()
            self.request_new_proxies()
            former = self.ends.proxies.names()
            if self.ready and server.ready:  # otherwise it is reloaded anyway
                self._unserved = not await self._try_to_load(server)
                await self._pool.notify_waiters()
                # The previous proxies exit after answering their batches. But if one of them is dead, tritonserver 2.51
                # never ends the others.
                await self.ends.until_ended(former, grace_s)

    async def _try_to_load(self, server: TritonServer) -> bool:
        """Load the model in Triton with its current configuration. Return whether that succeeded."""
        return await self._in_triton(lambda: self.load(server))

    async def _in_triton(self, act: Callable[[], Awaitable[None]]) -> bool:
        try:
            async with self.load_lock:
                if (
                    self.machine.state is ModelState.STOPPING
                ):  # another registration has replaced it
                    return True
                self._loads += 1
                await act()
        except RemoteFailure as failure:
            self._events.emit(kinds.REFUSED, model=self._name, reason=failure.text)
            return False
        return True


def _report_fault(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error(
            "internal error: the task that supervises a registration has failed",
            exc_info=task.exception(),
        )
