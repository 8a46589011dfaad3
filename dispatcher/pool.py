"""The workers of one registration: started together, replaced one by one, and handed out to proxies."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from pytriton.dispatcher.routing import Routes
from pytriton.dispatcher.states import InstanceState, StateMachine
from pytriton.dispatcher.worker_process import WorkerProcess
from pytriton.ipc import messages
from pytriton.ipc.errors import ErrorKind, RemoteFailure

_log = structlog.get_logger(__name__)

#: A worker that served this long was not part of a crash loop.
_HEALTHY_S = 60.0
#: Ended workers whose end can still be explained to proxies.
_ENDED_KEPT = 16
#: How long a broken lane may run ahead of the news that its worker ended.
_END_NEWS_S = 2.0

ReportProgress = Callable[[messages.Progress], Awaitable[None]]


class StartWorker(Protocol):
    """Starts the worker of one instance."""

    def __call__(self, instance: int) -> Awaitable[WorkerProcess]: ...


@dataclass(frozen=True)
class RestartPolicy:
    """How long a worker may take to say hello; how often in a row, and how soon, one that ended is replaced.

    The first replacement comes at once.
    """

    start_timeout_s: float
    limit: int
    first_delay_s: float
    longest_delay_s: float

    def delay_s(self, failures: int) -> float | None:
        """Return how long to wait after so many failures in a row; None to give up."""
        if failures > self.limit:
            return None
        if failures <= 1:
            return 0.0
        return min(self.longest_delay_s, self.first_delay_s * 2.0 ** (failures - 2))


@dataclass
class Instance:
    """One instance: the worker it has now and what happened to those before."""

    index: int
    machine: StateMachine[InstanceState] = field(
        default_factory=lambda: StateMachine(InstanceState.STARTING)
    )
    worker: WorkerProcess | None = None
    restarts: int = 0
    last_exit: str | None = None

    @property
    def ready(self) -> bool:
        return self.machine.state is InstanceState.READY


class Pool:
    """The instances of one registration."""

    def __init__(
        self, spec: messages.ModelSpec, start_worker: StartWorker, policy: RestartPolicy
    ) -> None:
        self.instances = [Instance(index) for index in range(spec.instances)]
        self._spec = spec
        self._start_worker = start_worker
        self._policy = policy
        self._keepers: list[asyncio.Task[None]] = []
        self._workers: dict[str, WorkerProcess] = {}
        self._routes = Routes()
        self._changed = asyncio.Condition()
        self._stopping = False

    # ── life ─────────────────────────────────────────────────────────────────────────────────────

    async def start(self, report: ReportProgress) -> None:
        """Start all workers; return when every one is ready.

        Raises:
            RemoteFailure: the first that could not be loaded; the caller stops the pool then.
        """
        firsts = []
        for instance in self.instances:
            first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            firsts.append(first)
            keeper = asyncio.create_task(self._keep(instance, first))
            keeper.add_done_callback(functools.partial(_report_fault, first))
            self._keepers.append(keeper)
        total = len(firsts)
        await report(messages.Progress("loading", f"loading {_workers(total)}", 0, total))
        for done, first in enumerate(asyncio.as_completed(firsts), start=1):
            try:
                await first
            except RemoteFailure:
                for other in firsts:
                    other.cancel()
                raise
            await report(
                messages.Progress("loading", f"worker {done} of {total} loaded", done, total)
            )

    async def stop(self, grace_s: float) -> None:
        """End all workers. Returns when they are gone."""
        async with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for instance in self.instances:
            self._change(instance, InstanceState.STOPPING)
        await asyncio.gather(*(worker.stop(grace_s) for worker in self._workers.values()))
        for instance in self.instances:
            self._change(instance, InstanceState.STOPPED)

    # ── proxies ──────────────────────────────────────────────────────────────────────────────────

    async def route(self, proxy: str, lost: str | None) -> WorkerProcess:
        """Return the worker that serves `proxy` from now on; waits for one to be ready.

        Raises:
            RemoteFailure: no worker will come any more.
        """
        self._routes.forget(proxy)
        async with self._changed:
            while True:
                ready = [name for name in self._ready_workers() if name != lost]
                if ready:
                    return self._workers[self._routes.assign(proxy, ready)]
                if self._stopping or all(
                    i.machine.state is InstanceState.FAILED for i in self.instances
                ):
                    raise RemoteFailure(ErrorKind.UNAVAILABLE, self._why_nobody())
                await self._changed.wait()

    def detach(self, proxy: str) -> None:
        """A proxy is gone."""
        self._routes.forget(proxy)

    def forget_proxies(self) -> None:
        """All proxies are gone: tritonserver has ended."""
        self._routes.clear()

    @property
    def proxies(self) -> int:
        """How many proxies are attached."""
        return len(self._routes)

    async def explain_loss(self, name: str) -> str:
        """Say how a worker ended whose lane broke in the middle of a batch."""
        worker = self._workers.get(name)
        advice = f"; its log: pytriton-daemon logs {self._spec.name}"
        if worker is None:
            return f"model {self._spec.name}: the worker of this batch ended{advice}"
        await asyncio.wait([worker.child.exited], timeout=_END_NEWS_S)
        end = (
            worker.describe_end()
            if worker.child.exited.done()
            else f"worker {name} closed its lane"
        )
        return f"model {self._spec.name}: {end} while it ran this batch{advice}"

    def worker(self, name: str) -> WorkerProcess | None:
        """Return a worker by its name."""
        return self._workers.get(name)

    def infos(self) -> list[messages.InstanceInfo]:
        """Return what status shows."""
        return [self._info(instance) for instance in self.instances]

    # ── one instance ─────────────────────────────────────────────────────────────────────────────

    async def _keep(self, instance: Instance, first: asyncio.Future[None]) -> None:
        """Keep an instance supplied with a worker until the pool stops or it has failed too often."""
        failures = 0
        while True:
            try:
                worker = await self._load(instance)
                if not first.done():
                    first.set_result(None)
                since = asyncio.get_running_loop().time()
                await self._serve(instance, worker)
                if asyncio.get_running_loop().time() - since > _HEALTHY_S:
                    failures = 0
            except RemoteFailure as failure:
                instance.last_exit = failure.text
                if not first.done():
                    first.set_exception(failure)
                    self._change(instance, InstanceState.FAILED)
                    return
            failures += 1
            delay_s = self._policy.delay_s(failures)
            if delay_s is None:
                self._change(instance, InstanceState.FAILED)
                await self._tell()
                return
            self._change(instance, InstanceState.BACKOFF)
            await asyncio.sleep(delay_s)
            instance.restarts += 1
            self._change(instance, InstanceState.STARTING)

    async def _load(self, instance: Instance) -> WorkerProcess:
        """Start a worker and return it when it is ready; end it when it does not become so."""
        worker = await self._start_worker(instance.index)
        instance.worker = worker
        self._remember(worker)
        try:
            await _wait_any(worker.greeted, worker.ready, timeout_s=self._policy.start_timeout_s)
            if worker.greeted.done() and not worker.ready.done():
                self._change(instance, InstanceState.LOADING)
                await _wait_any(worker.ready, timeout_s=self._spec.load_timeout_s)
            self._check_loaded(worker)
        except RemoteFailure:
            await self._discard(worker)
            raise
        self._change(instance, InstanceState.READY)
        await self._tell()
        return worker

    def _check_loaded(self, worker: WorkerProcess) -> None:
        """Raise RemoteFailure unless the worker is ready: what it failed of, or which time ran out."""
        if worker.ready.done():
            worker.ready.result()
            return
        if worker.greeted.done():
            what = (
                f"did not load its callable within {self._spec.load_timeout_s:g} s (load_timeout_s)"
            )
        else:
            what = (
                f"did not start within {self._policy.start_timeout_s:g} s (worker_start_timeout_s)"
            )
        raise RemoteFailure(
            ErrorKind.LOAD_FAILED,
            f"model {self._spec.name}: worker {worker.name} {what}",
            worker.child.last_lines() or None,
        )

    async def _serve(self, instance: Instance, worker: WorkerProcess) -> None:
        """Wait until a ready worker ends; on the way give it a proxy that another one has too many."""
        giver = self._routes.too_many_for(worker.name)
        if giver is not None:
            await self._workers[giver].withdraw_lane()
        await asyncio.shield(worker.child.exited)
        await worker.child.drained()
        instance.last_exit = worker.describe_end()
        _log.warning(
            "worker ended", model=self._spec.name, instance=instance.index, how=instance.last_exit
        )
        await self._discard(worker)

    def _remember(self, worker: WorkerProcess) -> None:
        """Know a worker by its name; of those that ended, the newest are kept, to be asked about."""
        ended = [name for name, one in self._workers.items() if one.child.exited.done()]
        for name in ended[:-_ENDED_KEPT]:
            del self._workers[name]
        self._workers[worker.name] = worker

    async def _discard(self, worker: WorkerProcess) -> None:
        await worker.stop(0)
        await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _change(self, instance: Instance, new: InstanceState) -> None:
        old = instance.machine.change(new)
        pid = instance.worker.child.pid if instance.worker else None
        _log.debug(
            "instance state",
            model=self._spec.name,
            instance=instance.index,
            worker_pid=pid,
            old=old.value,
            new=new.value,
        )

    def _ready_workers(self) -> list[str]:
        workers = [i.worker for i in self.instances if i.ready and i.worker is not None]
        return [worker.name for worker in workers if not worker.child.exited.done()]

    def _why_nobody(self) -> str:
        if self._stopping:
            return f"model {self._spec.name} is being stopped"
        ends = "; ".join(sorted({i.last_exit for i in self.instances if i.last_exit}))
        return (
            f"model {self._spec.name}: no worker is left, each was replaced {self._policy.limit} times and "
            f"ended again ({ends}). See pytriton-daemon logs {self._spec.name}; mend it and register it again."
        )

    def _info(self, instance: Instance) -> messages.InstanceInfo:
        worker = instance.worker
        running = worker is not None and not worker.child.exited.done()
        return messages.InstanceInfo(
            index=instance.index,
            state=instance.machine.state.value,
            pid=worker.child.pid if worker is not None and running else None,
            device=self._spec.devices[instance.index] if self._spec.devices else None,
            lanes=self._routes.lanes_of(worker.name) if worker is not None else 0,
            restarts=instance.restarts,
            last_exit=instance.last_exit,
        )


def _report_fault(first: asyncio.Future[None], keeper: asyncio.Task[None]) -> None:
    """A keeper ends by an exception only through a fault of ours: say so, and let nobody wait for it."""
    if keeper.cancelled() or keeper.exception() is None:
        return
    _log.error("instance keeper failed", exc_info=keeper.exception())
    if not first.done():
        first.set_exception(
            RemoteFailure(ErrorKind.INTERNAL, f"a fault of the daemon: {keeper.exception()}")
        )


async def _wait_any(*futures: asyncio.Future[None], timeout_s: float) -> None:
    await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


def check_payloads(spec: messages.ModelSpec, payloads: Sequence[bytes]) -> None:
    """Refuse a registration whose numbers do not agree.

    Raises:
        RemoteFailure: instances, devices and payloads do not fit together.
    """
    if spec.instances < 1:
        raise RemoteFailure(ErrorKind.INVALID, f"instances={spec.instances}: it takes at least 1")
    if len(payloads) not in (1, spec.instances):
        raise RemoteFailure(
            ErrorKind.INVALID, f"{len(payloads)} callables were sent for {spec.instances} instances"
        )
    if spec.devices and len(spec.devices) != spec.instances:
        raise RemoteFailure(
            ErrorKind.INVALID,
            f"{len(spec.devices)} devices were given for {spec.instances} instances",
        )
