"""The worker pool of one registration: starts, scales, suspends, resumes and stops its workers.

Its parts: `Instances` has a `Supervisor` for each worker, `ProxyRouter` assigns workers to tritonserver's
proxies, `Suspension` says whether the model is suspended, `Account` claims memory before workers start, and
`BatchRetry` decides about lost batches. `_notify` notifies the tasks that wait for a worker.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Optional

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.lanes.stats_page import StatsReading
from pytriton.dispatcher.runtime.tasks import uninterrupted
from pytriton.dispatcher.scaling.memory_policy import Amounts
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import LOG_ONLY, Events
from pytriton.dispatcher.upgrade.snapshot import PoolState, WorkerState
from pytriton.dispatcher.workers.batch_retry import BatchRetry
from pytriton.dispatcher.workers.hosted_worker import Registrant
from pytriton.dispatcher.workers.instances import Instances
from pytriton.dispatcher.workers.memory_account import Account, MemoryAccounts
from pytriton.dispatcher.workers.model_counters import ModelCounters
from pytriton.dispatcher.workers.prestarted import PrestartedWorkers
from pytriton.dispatcher.workers.routing import ProxyRouter, workers_text
from pytriton.dispatcher.workers.supervisor import Adopted, RestartPolicy, Supervisor, WorkerStarts
from pytriton.dispatcher.workers.suspension import FURTHER_WAIT_S, Suspension
from pytriton.dispatcher.workers.worker import Worker, slot_count
from pytriton.dispatcher.workers.worker_process import WorkerStarter

#: Adopts a worker from before an upgrade, given its state, model and slot. Returns None if the worker is gone.
AdoptWorker = Callable[[WorkerState, messages.ModelSpec, int], Optional[Worker]]
#: Reports the progress of a change to the client that waits for it.
ReportProgress = Callable[[messages.Progress], Awaitable[None]]


async def report_to_nobody(_: messages.Progress) -> None:
    """Ignore the progress of a change, because no client is waiting for it."""


class Pool:
    """The workers of one registration: one per instance, plus the standby workers.

    Standby workers are ordinary workers. They make the pool larger than the number of proxies, so a proxy that loses
    its worker gets a free one immediately.
    """

    def __init__(
        self,
        spec: messages.ModelSpec,
        start_worker: WorkerStarter,
        policy: RestartPolicy,
        registrant: Registrant | None = None,
        counters: ModelCounters | None = None,
        events: Events = LOG_ONLY,
        *,
        suspended: bool = False,
        prestarted: PrestartedWorkers | None = None,
        account: Account | None = None,
        native: bool = False,
        on_resume: Callable[[], object] = lambda: None,
    ) -> None:
        self._events = events.about(spec.name, spec.version)
        counters = counters or ModelCounters()
        self._policy = policy
        #: Memory account of the workers.
        self.account = account or MemoryAccounts().open(spec)
        self._resume_task: asyncio.Task[None] | None = None
        self._workers: dict[str, Worker] = {}
        self._changed = asyncio.Condition()
        #: Whether the model is suspended, and how long batches wait for it to resume.
        self.suspension = Suspension(
            spec.name,
            policy.resume_bounds,
            self._events,
            counters,
            suspended=suspended,
            on_resume=on_resume,
        )
        self._instances = Instances(spec, self.suspension, native=native)
        #: The attached proxies and their workers.
        self.proxies = ProxyRouter(
            self._instances,
            self._workers,
            self.suspension,
            self._changed,
            self.resume,
            self._events,
        )
        #: Decides what happens to lost and overdue batches.
        self.batch_retry = BatchRetry(spec, self._workers, counters, self._events)
        self._starts = WorkerStarts(
            start_worker,
            registrant,
            self._workers,
            counters,
            prestarted or PrestartedWorkers(0),
            self.account,
            self.batch_retry.forget,
        )

    # ── lifecycle ────────────────────────────────────────────────────────────────────────────────

    async def start(self, report: ReportProgress) -> None:
        """Start all workers and wait until they are ready. Start none if the model is suspended.

        Raises:
            RemoteFailure: A worker could not be loaded. The caller must stop the pool.
        """
        spec = self._instances.spec
        if self.suspension.suspended:
            self.account.check(spec, slot_count(spec))
        else:
            await self._wait_for_memory(spec, report)
            await self._grow(spec, report)

    def redeclare(self, spec: messages.ModelSpec) -> None:
        """Use this declaration, whose configuration has been completed by a worker, from now on."""
        self._instances.spec = self.batch_retry.spec = spec

    @property
    def is_quiescent(self) -> bool:
        """Whether no worker is starting, stopping or resuming. Batches may be running."""
        instances = self._instances
        if instances.stopping or instances.disabled_reason is not None or self.suspension.resuming:
            return False
        return all(one.is_quiescent for one in instances.supervisors)

    def hand_over(self) -> PoolState:
        """Return the state to be handed over in an upgrade. The pool must be quiescent."""
        supervised = [one.hand_over() for one in self._instances.supervisors]
        return PoolState(supervised, self.proxies.hand_over(), self.suspension.suspended)

    def adopt(self, state: PoolState, adopt_worker: AdoptWorker) -> None:
        """Restore the pool to its state before an upgrade, and start workers for instances that have none."""
        spec, supervisors = self._instances.spec, self._instances.supervisors
        for one in state.supervised:
            worker = None if one.worker is None else adopt_worker(one.worker, spec, one.slot)
            if worker is not None:
                self._starts.adopt(worker)
            adopted = Adopted(one, worker)
            supervisors.append(self._supervisor(one.slot, spec, retry_first=True, adopted=adopted))
        self.account.granted = len(supervisors)
        self.proxies.adopt(state.routes)

    async def grow(self, spec: messages.ModelSpec, report: ReportProgress) -> None:
        """Start the additional workers of `spec` and wait until they are ready.

        Raises:
            RemoteFailure: A worker could not be loaded. The pool is unchanged.
        """
        fewer = slot_count(spec) <= slot_count(self._instances.spec)
        if fewer and self.suspension.lacks_room and self.can_serve:
            return  # `shrink` notifies the pending resume
        await self._wait_for_memory(spec, report)
        count, was_suspended = len(self._instances.supervisors), self.suspension.suspended
        if was_suspended:
            self.suspension.begin_resume("more instances were requested")
        try:
            await self._grow(spec, report)
        except BaseException:
            await uninterrupted(self._undo_growth(count, was_suspended=was_suspended))
            raise
        self._instances.spec = spec

    async def _undo_growth(self, count: int, *, was_suspended: bool) -> None:
        supervisors = self._instances.supervisors
        await self._stop_supervisors(supervisors[count:], 0)
        del supervisors[count:]
        self.account.finish_stop(self.account.begin_stop(count))
        if was_suspended:
            self.suspension.cancel_resume()
        await self._notify(None)  # proxies may be waiting for the removed workers

    async def shrink(self, spec: messages.ModelSpec, grace_s: float) -> None:
        """Stop the workers beyond the number in `spec`, and move their proxies to the remaining ones."""
        instances = self._instances
        instances.spec = spec
        leaving = instances.supervisors[slot_count(spec) :]
        self.account.reduce_claims(slot_count(spec))
        room = self.account.begin_stop(slot_count(spec))
        await self._stop_supervisors(leaving, grace_s, "scale")
        self.account.finish_stop(room)
        instances.supervisors = [one for one in instances.supervisors if one not in leaving]
        if not self.suspension.suspended and not instances.stopping:
            self._fill_up()  # a failed resume may have left fewer instances
        await self._notify(None)

    async def suspend(self, idle_s: float, grace_s: float, why: str = "") -> None:
        """Suspend the model: stop all but the standby workers until the next batch. It has been idle for `idle_s`
        seconds.
        """
        instances, staying = self._instances, self._staying_workers
        leaving = instances.supervisors[staying:]
        if self._resume_task is not None:
            self._resume_task.cancel()  # the remaining workers are no longer needed
        self.suspension.lacks_room = False
        del instances.supervisors[staying:]
        room = self.account.begin_stop(staying)
        self.suspension.begin(idle_s, len(leaving), why)
        self.proxies.release_workers([one.worker.name for one in leaving if one.worker])
        await self._stop_supervisors(leaving, grace_s, "idle")
        self.account.finish_stop(room)
        if not staying and not self.account.is_scarce:
            await self._starts.prestart(
                instances.spec, lambda: self.suspension.suspended and not instances.stopping
            )

    def resume(self) -> None:
        """Resume the model if it is suspended: start the missing workers, with the usual retries."""
        if not self.suspension.suspended or self._instances.stopping or self.suspension.held:
            return
        self.suspension.begin_resume("a request")
        spec = self._instances.spec
        if self.account.granted_of(slot_count(spec)) == slot_count(spec):
            self._fill_up()
        else:
            self.suspension.lacks_room = True
            self._resume_task = asyncio.get_running_loop().create_task(
                self._resume_when_granted(spec)
            )
        if self.can_serve:  # a standby worker
            self.suspension.finish_resume()

    def hold(self) -> None:
        """Keep the model suspended until `suspension.held` is cleared. Cancel a resume that is waiting for memory."""
        self.suspension.held = True
        if self.suspension.lacks_room and self._resume_task is not None:
            self._resume_task.cancel()
            self.suspension.cancel_resume()

    async def _resume_when_granted(self, spec: messages.ModelSpec) -> None:
        """Start the workers once memory is granted. If memory is refused, fail the waiting requests."""
        wait_s = self._policy.resume_bounds.seconds
        while True:
            try:
                await self.account.acquire(spec, wait_s, is_resume=True)
            except RemoteFailure as failure:
                if self._standby_workers_serve and failure.kind is ErrorKind.UNAVAILABLE:
                    # The standby workers serve all requests, so the bound on their waiting time (may be 0) does not apply.
                    spec, wait_s = self._instances.spec, max(wait_s, FURTHER_WAIT_S)
                    continue
                if not self._standby_workers_serve:
                    self.suspension.refuse(failure)
            else:
                if not self._instances.stopping:
                    self._fill_up()
            break
        self.suspension.lacks_room = False
        await self._notify(None)

    @property
    def _standby_workers_serve(self) -> bool:
        """Whether standby workers are serving while the other workers wait for memory."""
        return self.can_serve and not self._instances.stopping

    async def _wait_for_memory(self, spec: messages.ModelSpec, report: ReportProgress) -> None:
        """Wait until memory for the workers of `spec` is granted.

        Raises:
            RemoteFailure: The memory was not free in time, or the workers can never fit.
        """
        if self.account.granted_of(slot_count(spec)) < slot_count(spec):
            await report(messages.Progress("loading", "waiting for memory (memory_budget)"))
        await self.account.acquire(spec, self._policy.resume_bounds.seconds)

    @property
    def _staying_workers(self) -> int:
        """Number of workers that keep running while the model is suspended: its standby workers."""
        return self._instances.spec.standby_workers * max(1, len(self._instances.own_versions))

    @property
    def frees(self) -> Amounts:
        """The memory that suspending the model would free, by resource."""
        return self.account.frees(self._staying_workers)

    def _fill_up(self) -> None:
        spec, supervisors = self._instances.spec, self._instances.supervisors
        for slot in range(len(supervisors), self.account.granted_of(slot_count(spec))):
            supervisors.append(self._supervisor(slot, spec, retry_first=True))

    async def retry_now(self, report: ReportProgress) -> None:
        """Immediately retry loading a worker for each instance that has none.

        Raises:
            RemoteFailure: A worker could not be loaded. The back-off of its instance continues.
        """
        lacking = [one for one in self._instances.supervisors if one.lacks_worker]
        if not lacking:
            return
        text = f"loading {workers_text(len(lacking))} to replace exited ones"
        await report(messages.Progress("loading", text, 0, len(lacking)))
        attempts = asyncio.gather(*(one.retry_now() for one in lacking), return_exceptions=True)
        for one, failure in zip(lacking, await attempts):
            if isinstance(failure, RemoteFailure):
                name = self._instances.spec.name
                raise RemoteFailure(
                    failure.kind,
                    f"instance {one.index} of model {name} has no worker: {failure.text}",
                    failure.traceback,
                )

    async def stop(self, grace_s: float, reason: str = "stop") -> None:
        """Stop all workers and wait until they have exited. `reason` is one of EXIT_REASONS."""
        self._instances.stopping = self.batch_retry.stopping = True
        self.account.withdraw(f"model {self._instances.spec.name} is being stopped")
        await self._notify(None)
        await self._starts.stop_prestarted()
        room = self.account.begin_stop(0)
        await self._stop_supervisors(self._instances.supervisors, grace_s, reason)
        self.account.finish_stop(room)
        self.account.close()

    def answered_if_idle(self) -> int | None:
        """Return the number of batches that the workers have answered, or None while a batch is running."""
        readings = self._readings()
        if not all(reading.idle for reading in readings):
            return None
        return sum(reading.answered for reading in readings)

    async def _grow(self, spec: messages.ModelSpec, report: ReportProgress) -> None:
        """Start the missing workers and wait until they are ready; raise the first failure."""
        new_slots = range(len(self._instances.supervisors), slot_count(spec))
        new = [self._supervisor(slot, spec) for slot in new_slots]
        self._instances.supervisors.extend(new)
        total, firsts = len(new), [one.first for one in new]
        await report(messages.Progress("loading", f"loading {workers_text(total)}", 0, total))
        for done, first in enumerate(asyncio.as_completed(firsts), start=1):
            try:
                await first
            except RemoteFailure:
                for other in firsts:
                    other.cancel()
                raise
            text = f"worker {done} of {total} loaded"
            await report(messages.Progress("loading", text, done, total))

    def _supervisor(
        self,
        slot: int,
        spec: messages.ModelSpec,
        *,
        retry_first: bool = False,
        adopted: Adopted | None = None,
    ) -> Supervisor:
        return Supervisor(
            slot,
            spec,
            self._start,
            self._policy,
            self._notify,
            self._events,
            retry_first=retry_first,
            adopted=adopted,
            account=self.account,
        )

    async def _stop_supervisors(
        self, supervisors: Sequence[Supervisor], grace_s: float, reason: str = "stop"
    ) -> None:
        await asyncio.gather(*(supervisor.stop(grace_s, reason) for supervisor in supervisors))

    # ── queries and notifications ────────────────────────────────────────────────────────────────

    def worker(self, name: str) -> Worker | None:
        """Return the worker with this name, or None."""
        return self._workers.get(name)

    @property
    def lanes(self) -> int:
        """The number of proxies that each worker should serve."""
        return self._instances.lanes

    @property
    def overlap(self) -> bool:
        """Whether each batch that may run concurrently in a worker has a proxy."""
        return self._instances.overlap

    @property
    def busy(self) -> bool:
        """Whether any worker is running a batch."""
        return not all(reading.idle for reading in self._readings())

    @property
    def can_serve(self) -> bool:
        """Whether a worker is ready."""
        return bool(self.ready_workers())

    @property
    def answers(self) -> bool:
        """Whether a batch would be served, either by a ready worker or by one that starts because the batch resumes the
        model.
        """
        return self.can_serve or (self.suspension.in_effect and not self.is_crash_looping)

    @property
    def is_crash_looping(self) -> bool:
        """Whether every instance is in a crash loop or has reached its restart limit."""
        return self._instances.is_crash_looping()

    def problems(self) -> list[str]:
        """Return a sentence about each instance that keeps losing its workers."""
        return self._instances.problems()

    def degradations(self) -> list[str]:
        """Return one sentence for each reason why the model is degraded."""
        return self._instances.degradations()

    def ready_workers(self, version: int | None = None) -> list[str]:
        """Return the names of the ready workers. With `version`, consider only workers that serve this version."""
        return self._instances.ready(version)

    def infos(self) -> list[messages.InstanceInfo]:
        """Return the instances as shown by `status`."""
        return self._instances.infos(self.proxies.lanes_of)

    async def record_readiness(self, worker: Worker, *, ready: bool, why: str) -> None:
        """Record that the result of the model's `is_ready` has changed. If an instance is not ready, move its proxies.

        They move to other workers after their current batch. If there is no other worker, the instance keeps serving until Triton
        unloads the model.
        """
        worker.not_ready_reason = None if ready else why
        kind = kinds.ACCEPTING if ready else kinds.NOT_ACCEPTING
        self._events.emit(kind, instance=worker.instance, worker=worker.name, reason=why)
        await self._notify(worker.name if ready else None)
        if not ready and self.ready_workers(worker.version):
            await self.proxies.withdraw_all(worker, "its model reports that it is not ready")

    async def changed(self, timeout_s: float) -> None:
        """Wait until the set of workers changes or `notify_waiters` is called, for at most `timeout_s` seconds."""
        with contextlib.suppress(asyncio.TimeoutError):
            async with self._changed:
                await asyncio.wait_for(self._changed.wait(), timeout_s)

    async def until(self, condition: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Wait up to `timeout_s` seconds for `condition` to hold. Check it whenever the workers change."""
        with contextlib.suppress(asyncio.TimeoutError):
            async with self._changed:
                await asyncio.wait_for(self._changed.wait_for(condition), timeout_s)

    async def disable(self, why: str) -> None:
        """Fail all batches that are waiting for a worker, and start no more workers."""
        self._instances.disabled_reason = self.batch_retry.disabled_reason = why
        await self._notify(None)

    async def notify_waiters(self) -> None:
        """Let all waiting tasks recheck their conditions."""
        await self._notify(None)

    def _readings(self) -> list[StatsReading]:
        return [worker.stats.read() for worker in self._workers.values() if worker.alive]

    async def _start(self, slot: int) -> Worker:
        return await self._starts.start(self._instances.spec, slot)

    async def _notify(self, ready: str | None) -> None:
        """Notify the tasks that are waiting for a worker. `ready` names the worker that just became ready, if any."""
        if ready is not None and self.suspension.resuming:
            self.suspension.finish_resume()
        async with self._changed:
            self._changed.notify_all()
        if ready is not None:
            await self.proxies.balance()
