"""A registration's model in tritonserver: loaded, loaded anew, and out of it while no worker can serve it.

a client of tritonserver unloads it: UNLOADED ──▶ a client loads it: READY
no worker for a while ──▶ Triton unloads: UNREADY ──▶ a worker is back ──▶ Triton loads: READY
a proxy ends without a word ──▶ Triton loads the model anew, with proxies of its own
tritonserver ends ──▶ it is started again ──▶ it loads the model; what it refuses is tried again
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

import structlog

from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.models.in_triton.proxy_ends import ProxyEnds
from pytriton.dispatcher.runtime.states import ModelState, StateMachine
from pytriton.dispatcher.runtime.upgrade_snapshot import RegistrationState
from pytriton.dispatcher.server import own_repository, preloading
from pytriton.dispatcher.server.server_process import ServerLost
from pytriton.dispatcher.server.tritonserver import TritonServer
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import LOG_ONLY, Events
from pytriton.dispatcher.workers.pool import Pool

_log = structlog.get_logger(__name__)

#: What tritonserver did not take is loaded again after so long, or when a worker came or went.
_LOAD_AGAIN_S = 5.0


class ModelInTriton:
    """One registration's model, as tritonserver has it, and the duties that keep it there.

    Args:
        name: of the model
        config: returns the configuration to load it with; is given a number that changes when all proxies have to be
            started anew
        pool: its workers
        alone: of the registration that is to be replaced, if there is one: one at a time is in Triton
        events: takes what is decided about it

    Attributes:
        machine: where the registration stands.
        alone: held while Triton loads or unloads the model.
        ends: of its proxies.
        server_lost: tritonserver has ended and does not have the model yet.
        load_failed: the running tritonserver refused its last load, and is not ready until it has forgotten that.
    """

    def __init__(
        self,
        name: str,
        config: Callable[[int], dict[str, Any]],
        pool: Pool,
        alone: asyncio.Lock | None = None,
        events: Events = LOG_ONLY,
    ) -> None:
        self.machine = StateMachine(ModelState.STARTING)
        self.alone = asyncio.Lock() if alone is None else alone
        self.ends = ProxyEnds(pool, self._proxy_broken)
        self.server_lost = False
        self.load_failed = False
        self._name = name
        self._events = events
        self._config = config
        self._pool = pool
        self._broken = asyncio.Event()
        #: Of the loads that have to start all proxies anew, after a fault or for another number of them.
        self._mended = 0
        self._loads = 0  #: how often Triton was told to load or unload it
        self._models: Path | None = None  #: Triton's repository, once it has the model
        self._unserved = False  #: tritonserver did not take a model that workers can serve
        self._tasks: list[asyncio.Task[None]] = []

    # ── where it stands ──────────────────────────────────────────────────────────────────────────

    @property
    def ready(self) -> bool:
        """Whether tritonserver has it, or would if it had not ended."""
        return self.machine.state is ModelState.READY

    @property
    def is_out(self) -> bool:
        """Whether the daemon has taken it out of tritonserver, as no worker can serve it."""
        return self.machine.state is ModelState.UNREADY

    @property
    def unloaded(self) -> bool:
        """Whether a client of tritonserver has unloaded it."""
        return self.machine.state is ModelState.UNLOADED

    @property
    def config(self) -> dict[str, Any]:
        """The configuration that Triton loads the model with."""
        return self._config(self._mended)

    def mark(self) -> object:
        """Return what stays the same as long as the daemon itself neither loads nor unloads it; None while it does."""
        if self.server_lost or self.alone.locked() or not (self.ready or self.unloaded):
            return None
        return (self.machine.state, self._loads)

    def seen(self, loaded: bool) -> None:
        """Triton's index says whether the model is loaded; if not as the daemon left it, a client has done that."""
        if loaded == self.ready:
            return
        self.machine.change(ModelState.READY if loaded else ModelState.UNLOADED)
        kind = kinds.CLIENT_LOADED if loaded else kinds.CLIENT_UNLOADED
        self._events.tell(kind, model=self._name)
        telling = asyncio.get_running_loop().create_task(self._pool.wake())
        self._tasks.append(telling)  # clients may load and unload it as often as they like
        telling.add_done_callback(self._tasks.remove)

    @property
    def settled(self) -> bool:
        """Whether nothing is under way with it in tritonserver."""
        settled = (ModelState.READY, ModelState.UNREADY, ModelState.UNLOADED)
        if self.alone.locked() or self.server_lost or self._broken.is_set():
            return False
        return self.machine.state in settled

    def numbers(self) -> tuple[int, int]:
        """Return how often its proxies were started anew, and how often Triton was told to load or unload it."""
        return self._mended, self._loads

    def adopt(self, state: RegistrationState, models: Path) -> None:
        """Go on with what a former version of this process has left in tritonserver."""
        self._mended, self._loads = state.mended, state.loads
        self.use_folder(models)
        self.machine.change(ModelState.READY)
        if state.state == ModelState.UNLOADED.value:
            self.machine.change(ModelState.UNLOADED)
        self._unserved = state.state == ModelState.UNREADY.value
        for proxy in state.pool.routes:
            self.ends.proxies.seen(proxy, None)  # compiled: no process of its own

    # ── into and out of tritonserver ─────────────────────────────────────────────────────────────

    def use_folder(self, models: Path) -> None:
        """Triton's repository has a folder for it now; its configuration is to lie there, too."""
        self._models = models

    def proxies_anew(self) -> None:
        """Have the next load start all proxies anew."""
        self._mended += 1

    async def load(self, server: TritonServer) -> None:
        """Have Triton load the model as it is by now. Its folder says how, too: for clients that load it again.

        Raises:
            ServerLost: tritonserver is not up, or has ended meanwhile.
            RemoteFailure: tritonserver refused it.
        """
        self.write_config()
        try:
            await server.load(self._name, self.config)
            self.load_failed = False
        except ServerLost:
            raise
        except RemoteFailure:
            self.load_failed = True
            raise
        finally:
            self._loads += 1

    def write_config(self) -> None:
        """Have the model's folder say how it is loaded by now."""
        if self._models is not None:
            own_repository.write_config(self._models, self._name, self.config)

    async def load_again(self, server: TritonServer, *, loaded: bool) -> None:
        """tritonserver was started again: load the model, unless it is, or no worker could serve it.

        One that has stopped being served while tritonserver was loading it goes out again.
        """
        self.load_failed = not loaded
        if self.ready and not loaded:
            self._unserved = not await self._try_to_load(server)
        elif loaded and not self.ready:
            async with self.alone:
                if not self.ready:  # still
                    self._loads += 1
                    await server.take_out(self._name)
        elif loaded:
            self.write_config()  # what was there for the start is gone
        self.server_lost = False
        await self._pool.wake()

    async def refuse_requests(self, server: TritonServer, text: str) -> None:
        """On the way out: have Triton load what tells every client `text` (503)."""
        await server.load(self._name, preloading.stand_in(self.config, text))

    def forget_proxies(self, living: Collection[int] = ()) -> None:
        """Forget all proxies, which have ended with tritonserver, but those of servers that live on."""
        self.server_lost = True
        self.load_failed = False
        self.ends.forget_all(living)

    # ── duties ───────────────────────────────────────────────────────────────────────────────────

    def begin_duties(self, server: TritonServer, *, unready_after_s: float, grace_s: float) -> None:
        """Begin to follow the workers, and to load the model anew when a proxy breaks."""
        for duty in (
            self._follow_workers(server, unready_after_s),
            self._follow_lanes(self._pool.lanes),
            self._mend_proxies(server, grace_s),
        ):
            task = asyncio.get_running_loop().create_task(duty)
            task.add_done_callback(_report_fault)
            self._tasks.append(task)

    def end_duties(self) -> None:
        """Stop following workers and proxies: the registration is on its way out."""
        for task in self._tasks:
            task.cancel()

    def _proxy_broken(self, proxy: str) -> None:
        """Have the model loaded anew: Triton does not restart a proxy that ended without a word."""
        if self.ready:
            self._events.tell(kinds.PROXY_BROKEN, model=self._name, reason=f"proxy {proxy}")
            self._broken.set()

    async def _follow_workers(self, server: TritonServer, unready_after_s: float) -> None:
        """Keep the model in Triton while workers can serve it, and out of it while none can."""
        pool = self._pool
        while True:
            await pool.until(lambda: self._unserved or not pool.answers)
            if not self._unserved:
                await pool.until(
                    lambda: pool.answers or pool.is_hopeless, timeout_s=unready_after_s
                )
                if pool.answers:
                    continue
            if self.unloaded:  # its clients know; until one loads it
                self._unserved = False
                await pool.until(lambda: pool.answers or not self.unloaded)
                continue
            self.machine.change(ModelState.UNREADY)
            if self._unserved:
                await pool.changed(_LOAD_AGAIN_S)
            else:
                self._events.tell(
                    kinds.UNREADY, model=self._name, reason="; ".join(pool.problems())
                )
                await self._in_triton(lambda: server.unload(self._name))
            self._unserved = True
            while self._unserved:
                await pool.until(lambda: server.ready and pool.answers)
                self._unserved = not await self._try_to_load(server)
                if self._unserved:
                    await pool.changed(_LOAD_AGAIN_S)
            self.machine.change(ModelState.READY)
            self._events.tell(kinds.READY_AGAIN, model=self._name)
            await pool.wake()

    async def _follow_lanes(self, loaded: int) -> None:
        """Have the model loaded anew when its first worker, which came after its proxies, needs more of them."""
        await self._pool.until(lambda: self._pool.lanes != loaded)
        self._broken.set()

    async def _mend_proxies(self, server: TritonServer, grace_s: float) -> None:
        while True:
            await self._broken.wait()
            self._broken.clear()
            self.proxies_anew()
            former = self.ends.proxies.names()
            if self.ready and server.ready:  # else it is loaded anew in any case
                self._unserved = not await self._try_to_load(server)
                await self._pool.wake()
                # Of the former ones, those that live on end when they have answered their batches;
                # but next to a dead one, tritonserver (2.51) never gets so far as to tell them.
                await self.ends.until_ended(former, grace_s)

    async def _try_to_load(self, server: TritonServer) -> bool:
        """Have Triton load the model as it is by then; whether it did."""
        return await self._in_triton(lambda: self.load(server))

    async def _in_triton(self, act: Callable[[], Awaitable[None]]) -> bool:
        try:
            async with self.alone:
                if self.machine.state is ModelState.STOPPING:  # another one has taken its place
                    return True
                self._loads += 1
                await act()
        except RemoteFailure as failure:
            self._events.tell(kinds.REFUSED, model=self._name, reason=failure.text)
            return False
        return True


def _report_fault(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("a registration is not looked after any more", exc_info=task.exception())
