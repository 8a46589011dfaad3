"""The workers of one registration: started together, kept, scaled, and handed out to proxies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from functools import partial

from pytriton.dispatcher.events import kinds
from pytriton.dispatcher.events.events import LOG_ONLY, Events
from pytriton.dispatcher.workers import numbering, several_loads
from pytriton.dispatcher.workers.backoff import RestartPolicy
from pytriton.dispatcher.workers.parking import Parking
from pytriton.dispatcher.workers.registrant import Registrant
from pytriton.dispatcher.workers.routing import Routes
from pytriton.dispatcher.workers.several_loads import ReportProgress
from pytriton.dispatcher.workers.sleep import Sleep
from pytriton.dispatcher.workers.supervisor import Supervisor
from pytriton.dispatcher.workers.tally import Tally
from pytriton.dispatcher.workers.verdicts import Verdicts
from pytriton.dispatcher.workers.worker import Worker
from pytriton.dispatcher.workers.worker_factory import StartWorker
from pytriton.dispatcher.workers.worker_starts import WorkerStarts
from pytriton.ipc import messages
from pytriton.ipc.errors import ErrorKind, RemoteFailure
from pytriton.ipc.lanes.gauge import Reading
from pytriton.ipc.messages import Verdict


class Pool:
    """The workers of one registration: one for each instance, and the spares.

    Spares are not set apart: there are just more workers than proxies, and a proxy that lost its
    worker gets one that has none.
    """

    def __init__(
        self,
        spec: messages.ModelSpec,
        start_worker: StartWorker,
        policy: RestartPolicy,
        registrant: Registrant | None = None,
        tally: Tally | None = None,
        events: Events = LOG_ONLY,
        *,
        asleep: bool = False,
        parking: Parking | None = None,
    ) -> None:
        self._events = events.about(spec.name, spec.version)
        self._spec = spec
        tally = tally or Tally()
        self._policy = policy
        self._supervisors: list[Supervisor] = []
        self._workers: dict[str, Worker] = {}
        self._routes = Routes(spec.lanes)
        self._changed = asyncio.Condition()
        self._stopping = False
        self._given_up_for: str | None = None
        #: Whether it sleeps, and how long batches wait for the worker that wakes it.
        self.sleep = Sleep(spec.name, policy.wake_bounds, self._events, asleep=asleep)
        #: What becomes of batches that were lost, or are overdue.
        self.verdicts = Verdicts(spec, self._workers, tally, self._events)
        self._starts = WorkerStarts(
            start_worker,
            registrant,
            self._workers,
            tally,
            parking or Parking(0),
            self.verdicts.forget,
        )
        #: Workers that have been asked to give a proxy away, and have not yet.
        self._asked: set[str] = set()
        self._aside: set[asyncio.Task[None]] = set()

    # ── life ─────────────────────────────────────────────────────────────────────────────────────

    async def start(self, report: ReportProgress) -> None:
        """Start all workers; return when every one is ready. Asleep, it has none until a batch comes.

        Raises:
            RemoteFailure: the first that could not be loaded; the caller stops the pool then.
        """
        if not self.sleep.asleep:
            await self._grow(self._spec, report)

    async def grow(self, spec: messages.ModelSpec, report: ReportProgress) -> None:
        """Start the workers that `spec` has more than there are; return when they are ready.

        Raises:
            RemoteFailure: one could not be loaded; the pool is as it was.
        """
        count, slept = len(self._supervisors), self.sleep.asleep
        if slept:
            self.sleep.wake("more instances were asked for")
        try:
            await self._grow(spec, report)
        except BaseException:
            await self._stop_supervisors(self._supervisors[count:], 0)
            del self._supervisors[count:]
            if slept:
                self.sleep.back()
            await self._tell(None)  # who waited for one of these may wait for nobody now
            raise
        self._spec = spec

    async def shrink(self, spec: messages.ModelSpec, grace_s: float) -> None:
        """End the workers that `spec` does not have any more; their proxies go to those that stay."""
        self._spec = spec
        leaving = self._supervisors[numbering.count(spec) :]
        await self._stop_supervisors(leaving, grace_s, "scale")
        self._supervisors = [
            supervisor for supervisor in self._supervisors if supervisor not in leaving
        ]
        if not self.sleep.asleep and not self._stopping:
            self._fill_up()  # what woke it has failed, and had fewer instances
        await self._tell(None)

    async def fall_asleep(self, idle_s: float, grace_s: float) -> None:
        """End the workers until a batch comes, but as many as there are spares: nothing was asked for `idle_s`."""
        staying = self._spec.spares * max(1, len(numbering.versions(self._spec)))
        leaving = self._supervisors[staying:]
        del self._supervisors[staying:]
        self.sleep.begin(idle_s, len(leaving))
        self._routes.rest_all_of([one.worker.name for one in leaving if one.worker])
        await self._stop_supervisors(leaving, grace_s, "idle")
        if not staying:
            await self._starts.park(self._spec, lambda: self.sleep.asleep and not self._stopping)

    def wake_up(self, why: str = "a request") -> None:
        """Start the workers that it lacks, if it sleeps; they are tried again as any others are."""
        if not self.sleep.asleep or self._stopping:
            return
        self.sleep.wake(why)
        self._fill_up()
        if self.can_serve:  # a spare
            self.sleep.end()

    def _fill_up(self) -> None:
        for slot in range(len(self._supervisors), numbering.count(self._spec)):
            self._supervisors.append(self._supervisor(slot, self._spec, woken=True))

    async def heal(self, report: ReportProgress) -> None:
        """Load a worker now for each instance that has none, instead of later or never.

        Raises:
            RemoteFailure: one could not be loaded; its instance goes on as before.
        """
        await several_loads.heal(self._spec.name, self._supervisors, report)

    async def stop(self, grace_s: float, reason: str = "stop") -> None:
        """End all workers, for one of worker.END_REASONS. Returns when they are gone."""
        self._stopping = self.verdicts.stopping = True
        await self._tell(None)
        await self._starts.end_parked()
        await self._stop_supervisors(self._supervisors, grace_s, reason)

    def at_rest(self) -> int | None:
        """How many batches the workers have answered; None while one is under way."""
        readings = self._readings()
        if _under_way(readings):
            return None
        return sum(reading.answered for reading in readings)

    async def _grow(self, spec: messages.ModelSpec, report: ReportProgress) -> None:
        slots = range(len(self._supervisors), numbering.count(spec))
        new = [self._supervisor(slot, spec) for slot in slots]
        self._supervisors.extend(new)
        await several_loads.until_first_ready(new, report)

    def _supervisor(
        self, slot: int, spec: messages.ModelSpec, *, woken: bool = False
    ) -> Supervisor:
        return Supervisor(
            slot, spec, self._start, self._policy, self._tell, self._events, woken=woken
        )

    async def _stop_supervisors(
        self, supervisors: Sequence[Supervisor], grace_s: float, reason: str = "stop"
    ) -> None:
        await asyncio.gather(*(supervisor.stop(grace_s, reason) for supervisor in supervisors))

    # ── proxies ──────────────────────────────────────────────────────────────────────────────────

    async def route(
        self,
        proxy: str,
        lost: str | None,
        avoid: Sequence[str] = (),
        version: int = 0,
        *,
        batch: bool = False,
    ) -> messages.Attached:
        """Return the worker that serves `proxy` from now on; waits for one to be ready.

        A model that sleeps has none: it wakes if a batch waits, else the proxy asks again when it has one.

        Args:
            proxy: its instance's name
            lost: the worker that it could not reach
            avoid: those that wait for the batch that it has
            version: that it serves; matters where each has workers of its own
            batch: a batch waits for the worker

        Raises:
            RemoteFailure: no worker will come, or not soon.
        """
        own = numbering.versions(self._spec)
        if own and version not in own:
            text = f"model {self._spec.name} has no version {version}; it has {own}"
            raise RemoteFailure(ErrorKind.INVALID, text)
        self._asked.discard(self._routes.worker_of(proxy) or "")
        self._routes.forget(proxy)
        if lost in self._workers:
            self._workers[lost].is_deaf()
        async with self._changed:
            while True:
                present = self.ready_workers(version)
                ready = [name for name in present if name != lost and name not in avoid]
                if self.sleep.now and not batch:
                    self._routes.rest(proxy)
                    return messages.Attached("", "", self._spec.execution_timeout_s)
                self.wake_up()
                if ready:
                    worker = self._workers[self._routes.assign(proxy, ready)]
                    self._do_aside(self._balance())  # a worker may lack more than this one
                    return messages.Attached(
                        worker.name, str(worker.lane_path), self._spec.execution_timeout_s
                    )
                if self._stopping or self._is_hopeless(version):
                    raise RemoteFailure(ErrorKind.UNAVAILABLE, self.why_nobody(version))
                if avoid and present:
                    text = f"model {self._spec.name}: all its workers wait for this very request"
                    raise RemoteFailure(ErrorKind.UNAVAILABLE, text)
                left_s = self.sleep.left_s()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), left_s)

    def judge_call(self, chain: Sequence[str], waiting: Sequence[str]) -> Verdict:
        """Decide about a call that came back to this model; `waiting` workers wait for it."""
        ready = self.ready_workers()
        if not ready or any(name not in waiting for name in ready):
            return Verdict("retry")
        name = self._spec.name
        return Verdict(
            "fail",
            f"the calls go round in a circle, {' → '.join([*chain, name])}, and can never end: all "
            f"{several_loads.workers(len(ready))} of model {name} wait for this one. Break the circle, or register "
            f"{name} with more instances than it goes round",
        )

    def detach(self, proxy: str) -> None:
        """Forget a proxy that is gone."""
        self._asked.discard(self._routes.worker_of(proxy) or "")
        self._routes.forget(proxy)
        self._do_aside(self._balance())

    def forget_proxies(self) -> None:
        """Forget all proxies: tritonserver has ended."""
        self._routes.clear()

    @property
    def proxies(self) -> int:
        """How many proxies are attached."""
        return len(self._routes)

    def _readings(self) -> list[Reading]:
        return [worker.gauge.read() for worker in self._workers.values() if worker.alive]

    # ── what others ask ──────────────────────────────────────────────────────────────────────────

    def worker(self, name: str) -> Worker | None:
        """Return a worker by its name."""
        return self._workers.get(name)

    @property
    def busy(self) -> bool:
        """Whether a batch is under way in any worker."""
        return _under_way(self._readings())

    @property
    def can_serve(self) -> bool:
        """Whether a worker is ready."""
        return bool(self.ready_workers())

    @property
    def answers(self) -> bool:
        """Whether batches get somewhere: a worker is ready, or comes because of them."""
        return self.can_serve or (self.sleep.now and not self.is_hopeless)

    @property
    def is_hopeless(self) -> bool:
        """Whether no worker is to be expected soon: all have been given up, or are in a crash loop."""
        return self._is_hopeless(None)

    def _is_hopeless(self, version: int | None) -> bool:
        if self._given_up_for is not None or self.sleep.asleep:
            return self._given_up_for is not None
        return all(supervisor.is_hopeless for supervisor in self._of(version))

    def problems(self) -> list[str]:
        """Return a sentence about each instance whose workers end one after the other."""
        name = self._spec.name
        return [
            f"model {name}: {text}; see pytriton-daemon logs {name}"
            for text in (supervisor.problem() for supervisor in self._supervisors)
            if text is not None
        ]

    async def hear_readiness(self, worker: Worker, *, ready: bool, why: str) -> None:
        """A model's own `is_ready` says something else: one that is not ready gets no batches, if others can.

        Its proxies go to those, after what they have under way. Without any other it serves on until
        the model is taken out of Triton.
        """
        worker.unwilling = None if ready else why
        kind = kinds.WILLING if ready else kinds.UNWILLING
        self._events.tell(kind, instance=worker.instance, worker=worker.name, reason=why)
        await self._tell(worker.name if ready else None)
        if not ready and self.ready_workers(worker.version):
            for _ in range(self._routes.lanes_of(worker.name)):
                await self._withdraw(worker, "its model says that it is not ready")

    async def changed(self, timeout_s: float) -> None:
        """Wait until a worker came or went, or `wake` was called, at most `timeout_s` seconds."""
        with contextlib.suppress(asyncio.TimeoutError):
            async with self._changed:
                await asyncio.wait_for(self._changed.wait(), timeout_s)

    async def until(self, condition: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Wait until a condition about the workers holds, at most `timeout_s` seconds."""
        with contextlib.suppress(asyncio.TimeoutError):
            async with self._changed:
                await asyncio.wait_for(self._changed.wait_for(condition), timeout_s)

    async def give_up(self, why: str) -> None:
        """Tell every batch that waits for a worker that none will come any more."""
        self._given_up_for = self.verdicts.given_up_for = why
        await self._tell(None)

    async def wake(self) -> None:
        """Wake all tasks that wait, to check their condition again."""
        await self._tell(None)

    def infos(self) -> list[messages.InstanceInfo]:
        """Return what status shows."""
        return [
            supervisor.info(
                self._routes.lanes_of(supervisor.worker.name)
                if supervisor.worker is not None
                else 0,
                spare=self.sleep.asleep or supervisor.index >= self._spec.instances,
            )
            for supervisor in self._supervisors
        ]

    def why_nobody(self, version: int | None = None) -> str:
        """Say why no worker will come, or not soon (for a version)."""
        if self._given_up_for is not None:
            return self._given_up_for
        if self._stopping:
            return f"model {self._spec.name} is being stopped"
        told = "; ".join(text for text in (k.problem() for k in self._of(version)) if text)
        return f"model {self._spec.name} has no worker: {told}. See pytriton-daemon logs {self._spec.name}"

    # ── workers ──────────────────────────────────────────────────────────────────────────────────

    async def _start(self, slot: int) -> Worker:
        return await self._starts.start(self._spec, slot)

    async def _tell(self, ready: str | None) -> None:
        """Wake the tasks that wait for a worker."""
        if ready is not None and self.sleep.waking:
            self.sleep.end()
        async with self._changed:
            self._changed.notify_all()
        if ready is not None:
            await self._balance()

    async def _balance(self) -> None:
        """Have every worker without a proxy get one that another has too many; each gives one at a time."""
        for idle in self.ready_workers():
            giver = self._routes.too_many_for(idle, partial(self._alike, idle))
            if giver is not None and giver not in self._asked:
                self._asked.add(giver)
                await self._withdraw(self._workers[giver], f"worker {idle} has too few")

    async def _withdraw(self, worker: Worker, why: str) -> None:
        """Have a worker send one of its proxies elsewhere."""
        self._events.tell(
            kinds.LANE_WITHDRAWN, instance=worker.instance, worker=worker.name, reason=why
        )
        await worker.withdraw_lane()

    def _do_aside(self, doing: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(doing)
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)

    def _alike(self, one: str, other: str) -> bool:
        """Whether two workers serve the same version, if they serve one only."""
        if not numbering.versions(self._spec):
            return True
        return other in self._workers and self._workers[other].version == self._workers[one].version

    def _of(self, version: int | None) -> list[Supervisor]:
        """Return those that serve a version; None: all."""
        wanted = (None, version)
        return [one for one in self._supervisors if version is None or one.version in wanted]

    def ready_workers(self, version: int | None = None) -> list[str]:
        """Return the names of the workers that serve (a version)."""
        return [one.serving.name for one in self._of(version) if one.serving is not None]


def _under_way(readings: Sequence[Reading]) -> bool:
    return any(reading.begun > reading.answered for reading in readings)
