"""One registration: a model's declaration, its payloads, its pool of workers, and its way into and out of Triton.

    workers load ──▶ folder ──▶ Triton loads the proxies ──▶ proxies attach ──▶ READY
    a client of tritonserver unloads it: UNLOADED ──▶ a client loads it: READY
    no worker for a while ──▶ Triton unloads: UNREADY ──▶ a worker is back ──▶ Triton loads: READY
    STOPPING: Triton unloads ──▶ proxies answer what is under way and detach ──▶ workers end ──▶ folder goes

Two registrations of one name live side by side while one replaces the other: Triton keeps serving
the old proxies, which know only the old workers, until the new ones are ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import structlog

from pytriton.dispatcher.base.states import ModelState, StateMachine
from pytriton.dispatcher.models.admission import MOST_WORKERS
from pytriton.dispatcher.models.attached_proxies import Proxies
from pytriton.dispatcher.models.patience import Patience
from pytriton.dispatcher.models.state_dir import Entry
from pytriton.dispatcher.triton import own_repository, preloading
from pytriton.dispatcher.triton.tritonserver import ServerLost, TritonServer
from pytriton.dispatcher.workers.backoff import RestartPolicy
from pytriton.dispatcher.workers.pool import Pool, ReportProgress
from pytriton.dispatcher.workers.registrant import Registrant
from pytriton.dispatcher.workers.supervisor import StartWorker
from pytriton.ipc import messages
from pytriton.ipc.errors import ErrorKind, RemoteFailure

_log = structlog.get_logger(__name__)


#: A load that tritonserver did not survive is tried again so often in all: it may have been the load that ended it.
_LOAD_ATTEMPTS = 3
#: What a worker gets to end in, even when the grace period is over.
_WORKER_END_S = 1.0
#: What tritonserver did not take is loaded again after so long, or when a worker came or went.
_LOAD_AGAIN_S = 5.0
#: A request that waits in Triton, with nothing in front of it, is with a worker within this time.
_REST_S = 1.0


class Registration:
    """A model as it was registered once. `key` is unique among all registrations of this daemon's life."""

    def __init__(
        self,
        key: str,
        entry: Entry,
        start_worker: StartWorker,
        policy: RestartPolicy,
        endpoint: str,
        registrant: Registrant | None = None,
        *,
        native: bool = False,
    ) -> None:
        self.key = key
        self.spec = entry.spec
        #: In whose threads its workers run; None: they are processes of the dispatcher's own.
        self.registrant = registrant
        self.pool = Pool(entry.spec, start_worker, policy)
        self.proxies = Proxies(self._proxy_ended)
        self._endpoint = endpoint
        self._native = native
        self._payloads = entry.payloads
        self._machine = StateMachine(ModelState.STARTING)
        self._registered_at = entry.registered_at
        self._detached = asyncio.Event()
        #: Held while Triton loads or unloads the model.
        self._triton = asyncio.Lock()
        self._broken = asyncio.Event()
        #: Of the loads that have to start all proxies anew, after a fault or for another number of them.
        self._mended = 0
        self._loads = 0  #: how often Triton was told to load or unload it
        self._models: Path | None = None  #: Triton's repository, once it has the model
        self._server_lost = False  #: tritonserver has ended and does not have the model yet
        self._unserved = False  #: tritonserver did not take a model that workers can serve
        self._tasks: list[asyncio.Task[None]] = []
        self.refused = False  #: tritonserver could not load it when it was registered

    @property
    def triton_config(self) -> dict[str, Any]:
        """The configuration that Triton loads the model with."""
        return own_repository.triton_config(
            self.spec, self._endpoint, self.key, self._mended, native=self._native
        )

    def entry(self) -> Entry:
        """Return what is kept of it, as it is now."""
        return Entry(0, self._registered_at, self.spec, self._payloads)

    def payloads(self, instance: int) -> list[bytes]:
        """Return the pickled callable of an instance, and its check if there is one."""
        callables = self._payloads[: len(self._payloads) - self.spec.check]
        own = callables[instance if len(callables) > 1 else 0]
        return [own, *self._payloads[len(callables) :]]

    # ── life ─────────────────────────────────────────────────────────────────────────────────────

    async def start(
        self,
        server: TritonServer,
        models: Path,
        report: ReportProgress,
        patience: Patience,
        *,
        unready_after_s: float,
        grace_s: float,
    ) -> None:
        """Load the workers, then the model in Triton; it serves when this returns.

        A tritonserver that ends meanwhile is waited for with `patience`.

        Raises:
            RemoteFailure: a worker or Triton failed; the caller then calls `stop`.
        """
        await self.pool.start(report)
        await report(messages.Progress("serving", "tritonserver loads the model"))
        for left in reversed(range(_LOAD_ATTEMPTS)):
            await patience.until_up()
            self._server_lost = False
            own_repository.make_folder(models, self.spec)
            self._models = models
            try:
                await self._load_into(server)
                break
            except ServerLost:
                self.forget_proxies()
                if not left:
                    raise
            except RemoteFailure:
                self.refused = True
                raise
        self._machine.change(ModelState.READY)
        for duty in (
            self._follow_workers(server, unready_after_s),
            self._mend_proxies(server, grace_s),
        ):
            task = asyncio.get_running_loop().create_task(duty)
            task.add_done_callback(_report_fault)
            self._tasks.append(task)

    async def scale(
        self, instances: int, server: TritonServer, report: ReportProgress, grace_s: float
    ) -> None:
        """Serve with another number of instances; no request fails on the way.

        Raises:
            RemoteFailure: not possible, or a new worker or Triton failed; all is as it was then.
        """
        old, new = self.spec, self._scaled(instances)
        await self.pool.grow(new, report)
        async with self._triton:
            self.spec = new
            if instances != old.instances and not _bound_to_proxies(new):
                # With another count alone, Triton (2.51) adds or ends instances in place, and waits for them. Each
                # looks whether it shall begin or end only when nothing waits in the model's queue: under load, 100 s
                # were seen. A fresh load has a queue of its own; workers notice nothing of it but other lanes.
                self._mended += 1
            try:
                if self.ready:
                    await report(messages.Progress("serving", "tritonserver loads the model"))
                    await self._load_into(server)
            except BaseException:
                self.spec = old
                await self.pool.shrink(old, grace_s)
                raise
        await self.pool.shrink(new, grace_s)

    async def heal(self, report: ReportProgress) -> None:
        """Give each instance that has no worker one now; return when the model is served.

        Raises:
            RemoteFailure: a worker could not be loaded; it is tried again as before.
        """
        await self.pool.heal(report)
        await self.pool.until(lambda: self.ready or self.unloaded or not self.pool.can_serve)

    @property
    def loads_again(self) -> bool:
        """Whether tritonserver has ended and does not have the model yet, though it could."""
        return self._server_lost and self.ready

    @property
    def preloadable(self) -> bool:
        """Whether a tritonserver that is being started can load the model: a worker is there."""
        return self.ready and self.pool.can_serve

    async def load_again(self, server: TritonServer, *, loaded: bool) -> None:
        """tritonserver was started again: load the model, unless it is, or no worker could serve it."""
        if self.ready and not loaded:
            self._unserved = not await self._load(server)
        self._server_lost = False
        await self.pool.wake()

    async def refuse_requests(self, server: TritonServer) -> None:
        """On the way out: as `unload`, but until tritonserver ends, whoever asks is told why (503).

        After a mere unload a client is told that there is no such model (404), as if it had asked for a wrong one.

        Raises:
            RemoteFailure: tritonserver refused.
        """
        async with self._triton:
            if server.ready and self._native and self.proxies_attached:
                text = f"model {self.spec.name}: the server is being stopped"
                await server.load(self.spec.name, preloading.stand_in(self.triton_config, text))
                return
        await self.unload(server)

    @property
    def proxies_attached(self) -> bool:
        """Whether tritonserver has the model."""
        return self.pool.proxies > 0

    async def unload(self, server: TritonServer) -> None:
        """On the way out: have Triton begin to end the proxies.

        Raises:
            RemoteFailure: tritonserver refused.
        """
        async with self._triton:
            if server.ready:  # else its proxies are gone already
                await server.unload(self.spec.name)

    def begin_stop(self) -> None:
        """From now on the registration is on its way out."""
        for task in self._tasks:
            task.cancel()
        self._machine.change(ModelState.STOPPING)

    async def stop(self, grace_s: float, why: str) -> None:
        """Wait until Triton's proxies are gone, at most `grace_s`, then end the workers.

        `why` is for a registrant in whose threads they ran.
        """
        deadline = asyncio.get_running_loop().time() + grace_s
        if not await self._proxies_gone(grace_s) and self.pool.proxies:
            _log.warning(
                "batches still run after the grace period",
                model=self.spec.name,
                grace_s=grace_s,
                proxies=self.pool.proxies,
            )
        self._end_proxies(self.proxies.names())
        self.proxies.clear()
        left_s = deadline - asyncio.get_running_loop().time()
        await self.pool.stop(max(_WORKER_END_S, left_s))
        if self.registrant is not None:
            await self.registrant.release(why)
        self._machine.change(ModelState.STOPPED)

    async def _proxies_gone(self, grace_s: float) -> bool:
        """Wait until Triton has ended the proxies, at most `grace_s`; whether nothing is under way in them.

        Of a decoupled model they may stay for nothing: Triton (2.51) holds on to a model as long as a client holds
        the gRPC stream open on which it has answered. So it is enough that its workers have nothing to do for longer
        than a request may wait in Triton's queue.
        """
        if not _is_decoupled(self.spec):
            await self._until(lambda: not self.pool.proxies, grace_s)
            return not self.pool.proxies
        delay_us = self.spec.config.get("dynamic_batching", {}).get(
            "max_queue_delay_microseconds", 0
        )
        look_s = _REST_S + delay_us / 1e6
        deadline = asyncio.get_running_loop().time() + grace_s
        before = None
        while (left_s := deadline - asyncio.get_running_loop().time()) > 0:
            await self._until(lambda: not self.pool.proxies, min(look_s, left_s))
            answered = self.pool.at_rest()
            if not self.pool.proxies or (answered is not None and answered == before):
                return True
            before = answered
        return False

    def detach(self, proxy: str) -> None:
        """A proxy has ended."""
        self.proxies.forget(proxy)
        self.pool.detach(proxy)
        self._detached.set()

    def forget_proxies(self) -> None:
        """tritonserver has ended, and all proxies with it."""
        self._server_lost = True
        self.proxies.clear()
        self.pool.forget_proxies()
        self._detached.set()

    def _end_proxies(self, proxies: set[str]) -> None:
        for proxy in self.proxies.end(proxies):
            self.detach(proxy)

    def _proxy_ended(self, proxy: str) -> None:
        """A proxy ended without a word: Triton does not start it again, so the model is loaded anew."""
        self.detach(proxy)
        if self.ready:
            _log.error(
                "a proxy ended by itself, the model is loaded anew",
                model=self.spec.name,
                proxy=proxy,
            )
            self._broken.set()

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait until a condition about the proxies holds, at most `timeout_s` seconds."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not condition():
            self._detached.clear()
            left_s = deadline - asyncio.get_running_loop().time()
            try:
                await asyncio.wait_for(self._detached.wait(), max(0.0, left_s))
            except asyncio.TimeoutError:
                return

    async def _follow_workers(self, server: TritonServer, unready_after_s: float) -> None:
        """Keep the model in Triton while workers can serve it, and out of it while none can."""
        while True:
            await self.pool.until(lambda: self._unserved or not self.pool.can_serve)
            if not self._unserved:
                await self.pool.until(
                    lambda: self.pool.can_serve or self.pool.is_hopeless, timeout_s=unready_after_s
                )
                if self.pool.can_serve:
                    continue
            if self.unloaded:  # its clients know; until one loads it
                self._unserved = False
                await self.pool.until(lambda: self.pool.can_serve or not self.unloaded)
                continue
            self._machine.change(ModelState.UNREADY)
            if self._unserved:
                await self.pool.changed(_LOAD_AGAIN_S)
            else:
                why = self.pool.problems()
                _log.error("model is not ready: it has no worker", model=self.spec.name, why=why)
                await self._in_triton(lambda: server.unload(self.spec.name))
            self._unserved = True
            while self._unserved:
                await self.pool.until(lambda: server.ready and self.pool.can_serve)
                self._unserved = not await self._load(server)
                if self._unserved:
                    await self.pool.changed(_LOAD_AGAIN_S)
            self._machine.change(ModelState.READY)
            _log.info("model is ready again", model=self.spec.name)
            await self.pool.wake()

    async def _mend_proxies(self, server: TritonServer, grace_s: float) -> None:
        while True:
            await self._broken.wait()
            self._broken.clear()
            self._mended += 1
            former = self.proxies.names()
            if self.ready and server.ready:  # else it is loaded anew in any case
                self._unserved = not await self._load(server)
                await self.pool.wake()
                # Of the former ones, those that live on end when they have answered their batches;
                # but next to a dead one, tritonserver (2.51) never gets so far as to tell them.
                await self._until_gone(former, grace_s)

    async def _until_gone(self, former: set[str], grace_s: float) -> None:
        """Wait until proxies have ended; those that have not after a while are killed."""
        await self._until(lambda: former.isdisjoint(self.proxies.names()), grace_s)
        self._end_proxies(former)

    async def _load(self, server: TritonServer) -> bool:
        """Have Triton load the model as it is by then; whether it did."""
        return await self._in_triton(lambda: self._load_into(server))

    async def _load_into(self, server: TritonServer) -> None:
        """Have Triton load the model as it is by now. Its folder says how, too: for clients that load it again."""
        config = self.triton_config
        if self._models is not None:
            own_repository.write_config(self._models, self.spec.name, config)
        try:
            await server.load(self.spec.name, config)
        finally:
            self._loads += 1

    async def _in_triton(self, act: Callable[[], Awaitable[None]]) -> bool:
        try:
            async with self._triton:
                self._loads += 1
                await act()
        except RemoteFailure as failure:
            _log.error("tritonserver refused", model=self.spec.name, why=failure.text)
            return False
        return True

    def _scaled(self, instances: int) -> messages.ModelSpec:
        """Return the declaration with another number of instances; devices are used in turn."""
        spec = self.spec
        callables = len(self._payloads) - spec.check
        if instances < 1:
            raise RemoteFailure(ErrorKind.INVALID, f"instances={instances}: it takes at least 1")
        if 1 < callables < instances:
            raise RemoteFailure(
                ErrorKind.INVALID,
                f"model {spec.name} was registered with a list of {callables} callables, one for each instance: "
                f"it cannot have {instances}. Register it with one callable, or with a longer list and replace=True.",
            )
        if instances > MOST_WORKERS:
            raise RemoteFailure(ErrorKind.INVALID, f"instances={instances}: at most {MOST_WORKERS}")
        devices = [spec.devices[i % len(spec.devices)] for i in range(instances) if spec.devices]
        return msgspec.structs.replace(spec, instances=instances, devices=devices)

    def triton_mark(self) -> object:
        """Return what stays the same as long as the daemon itself neither loads nor unloads it; None while it does."""
        if self._server_lost or self._triton.locked() or not (self.ready or self.unloaded):
            return None
        return (self._machine.state, self._loads)

    def seen_in_triton(self, loaded: bool) -> None:
        """Triton's index says whether the model is loaded; if not as the daemon left it, a client has done that."""
        if loaded == self.ready:
            return
        self._machine.change(ModelState.READY if loaded else ModelState.UNLOADED)
        text = f"a client of tritonserver has {'' if loaded else 'un'}loaded a model"
        _log.warning(text, model=self.spec.name)
        self._tasks.append(asyncio.get_running_loop().create_task(self.pool.wake()))

    @property
    def unloaded(self) -> bool:
        """Whether a client of tritonserver has unloaded it."""
        return self._machine.state is ModelState.UNLOADED

    @property
    def ready(self) -> bool:
        return self._machine.state is ModelState.READY

    @property
    def state(self) -> str:
        """Where it stands, in the word that status shows."""
        return "unready" if self._server_lost and self.ready else self._machine.state.value

    def info(self, http_url: str, log_file: Path) -> messages.ModelInfo:
        """Return what status shows."""
        name = self.spec.name
        return messages.ModelInfo(
            name=name,
            version=self.spec.version,
            versions=self.spec.versions,
            state=self.state,
            instances=self.pool.infos(),
            url=f"{http_url}/v2/models/{name}" if http_url else "",
            config=self.triton_config,
            python=self.spec.world.python,
            registered_at=self._registered_at,
            log_file=str(log_file),
            isolation=self.spec.isolation,
        )


def _bound_to_proxies(spec: messages.ModelSpec) -> bool:
    """Whether something outlives a request in a model's proxies, so that those that can stay should.

    A fresh load forgets which sequences have begun, and Triton keeps all former proxies of a decoupled model for as
    long as a client holds a stream open on which it was answered.
    """
    return _is_decoupled(spec) or "sequence_batching" in spec.config


def _is_decoupled(spec: messages.ModelSpec) -> bool:
    return bool(spec.config.get("model_transaction_policy", {}).get("decoupled"))


def _report_fault(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("a registration is not looked after any more", exc_info=task.exception())
