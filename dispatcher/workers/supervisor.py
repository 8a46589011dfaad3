"""The supervisor of one instance: loads a worker, restarts it when it exits, and recycles it when it is due.

start ──▶ load ──▶ serve ──▶ exited ──▶ back-off ──▶ load …      (without end, or up to a restart limit: FAILED)
                     │
                     └─▶ due for recycling (max_batches, memory): load a replacement, then stop the old worker
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import NamedTuple, Optional, cast

import structlog

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.runtime.states import LACKING, InstanceState, StateMachine
from pytriton.dispatcher.runtime.upgrade_snapshot import SupervisedState
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import LOG_ONLY, Events
from pytriton.dispatcher.workers.backoff import Exchanges, RestartPolicy
from pytriton.dispatcher.workers.instance_record import InstanceRecord
from pytriton.dispatcher.workers.memory_account import Account
from pytriton.dispatcher.workers.memory_accounts import MemoryAccounts
from pytriton.dispatcher.workers.process import slots
from pytriton.dispatcher.workers.process.load_wait import (
    load_failure,
    until_loaded,
    wait_any,
)
from pytriton.dispatcher.workers.process.worker import Worker
from pytriton.dispatcher.workers.process.worker_process import WorkerProcess
from pytriton.dispatcher.workers.retry_now import ImmediateRetry

_log = structlog.get_logger(__name__)

#: A worker that served this long ends a crash loop.
_STABLE_AFTER_S = 60.0
#: How long a recycled worker's replacement waits for memory before the recycling is postponed.
_RECYCLE_MEMORY_TIMEOUT_S = 10.0

#: Awaited whenever the set of workers changes, with the name of the worker that became ready, or None.
OnChange = Callable[[Optional[str]], Awaitable[None]]


class Adopted(NamedTuple):
    """An instance adopted in an upgrade, with its worker if that is still alive."""

    state: SupervisedState
    worker: Worker | None


class Supervisor:
    """Supervises one instance: its current worker, and the record of earlier ones.

    Attributes:
        index: Number of the instance. Numbers from `spec.instances` on are standby workers.
        version: The version it serves, if each version has its own workers.
        worker: The current worker, also while it loads and after it exited.
        first: Resolves when the first worker is ready. Raises RemoteFailure if it cannot be loaded.
    """

    def __init__(
        self,
        slot: int,
        spec: messages.ModelSpec,
        start_worker: Callable[[int], Awaitable[Worker]],
        policy: RestartPolicy,
        on_change: OnChange,
        events: Events = LOG_ONLY,
        *,
        woken: bool = False,
        adopted: Adopted | None = None,
        account: Account | None = None,
    ) -> None:
        """Start supervising an instance.

        Args:
            woken: Retry the first worker like any other; no caller waits for `first`.
            adopted: The state of the instance before an upgrade.
            account: The pool's memory account.
        """
        self._account = account or MemoryAccounts().open(spec)
        self._slot = slot
        self.index = slots.instance_of(spec, slot)
        self.version = slots.taken_by(spec, slot)[0].version if slots.versions(spec) else None
        self.worker: Worker | None = None
        self._record = InstanceRecord(self.index, self.version)
        self._loop = asyncio.get_running_loop()
        self.first: asyncio.Future[None] = self._loop.create_future()
        # A pool that is stopping never retrieves the exception. Retrieve it here, or asyncio logs a warning.
        self.first.add_done_callback(lambda first: first.cancelled() or first.exception())
        if woken:
            self.first.set_result(None)
        self._machine = StateMachine(InstanceState.STARTING)
        self._spec = spec
        self._start_worker = start_worker
        self._policy = policy
        self._recycle_backoff = Exchanges(policy)
        self._on_change = on_change
        self._events = events.about(spec.name, self.version or spec.version, self.index)
        self._streak = self._record.streak
        self._immediate_retry = ImmediateRetry()
        self._ready_at = self._started_at = 0.0
        self._workers: set[Worker] = set()
        self._aside: set[asyncio.Task[None]] = set()
        if adopted is not None:
            self._adopt(*adopted)
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(self._report_fault)

    def _adopt(self, state: SupervisedState, worker: Worker | None) -> None:
        self._record.adopt(state)
        if worker is not None:
            self.worker = worker
            self._watch(worker)
            self._change(InstanceState.READY)

    @property
    def is_quiescent(self) -> bool:
        """Whether no worker is starting or stopping: one serves, or the instance is backing off or has failed."""
        if self._workers - {self.worker}:
            return False
        if self.state is InstanceState.READY:
            return self.worker is not None and self.worker.alive
        return self.state in (InstanceState.BACKOFF, InstanceState.FAILED)

    def hand_over(self) -> SupervisedState:
        """Return the state to hand over in an upgrade. The supervisor must be settled."""
        serves = self.is_quiescent and isinstance(self.worker, WorkerProcess) and self.worker.alive
        worker = cast(WorkerProcess, self.worker).hand_over() if serves else None
        return self._record.hand_over(self._slot, worker)

    @property
    def state(self) -> InstanceState:
        return self._machine.state

    @property
    def serving(self) -> Worker | None:
        """The worker that can accept a lane now, or None."""
        worker = self.worker
        if self.state is not InstanceState.READY or worker is None or not worker.alive:
            return None
        return worker if worker.not_ready_reason is None else None

    @property
    def lacks_worker(self) -> bool:
        """Whether no worker serves until another one is loaded."""
        if self._immediate_retry.is_over:
            return self.worker is None or not self.worker.alive
        return self.state in LACKING

    @property
    def is_crash_looping(self) -> bool:
        """Whether the instance has hit its restart limit or is in a crash loop."""
        if self.state is InstanceState.FAILED:
            return True
        return self.lacks_worker and (self._streak.is_crash_loop or self._immediate_retry.is_over)

    def problem(self) -> str | None:
        """Describe a crash loop and the next step; return None if there is none."""
        return self._record.problem(
            self.state, lacks_worker=self.lacks_worker, proven=self._is_proven()
        )

    async def retry_now(self) -> None:
        """Load a missing worker immediately, also during back-off or after the restart limit was reached.

        Raises:
            RemoteFailure: The worker could not be loaded. The instance continues as before.
        """
        if self.lacks_worker:
            await self._immediate_retry.request()

    async def stop(self, grace_s: float, reason: str = "stop") -> None:
        """Move the proxies to other workers, and stop the worker after its batch, at most `grace_s` seconds later.

        `reason` is one of EXIT_REASONS.
        """
        for worker in self._workers:
            worker.leave(reason)
        self._task.cancel()
        text = f"model {self._spec.name}: instance {self.index} is being stopped"
        self._immediate_retry.attempted(RemoteFailure(ErrorKind.UNAVAILABLE, text))
        self._change(InstanceState.STOPPING)
        await self._on_change(None)
        await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.gather(*(worker.stop(grace_s) for worker in self._workers))
        await asyncio.gather(*self._aside)
        self._change(InstanceState.STOPPED)

    def info(self, lanes: int, *, standby: bool) -> messages.InstanceInfo:
        """Return the instance as shown by `status`."""
        worker = self.worker if self.worker is not None and self.worker.alive else None
        return self._record.info(
            self.state,
            worker,
            self._spec.devices,
            lanes,
            standby=standby,
            proven=self._is_proven(),
        )

    # ── lifecycle of the instance ────────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        while True:
            blameless = False
            try:
                if self.state is not InstanceState.READY:  # an adopted instance is ready already
                    await self._load()
                self._immediate_retry.attempted(None)
                if not self.first.done():
                    self.first.set_result(None)
                self._ready_at = self._loop.time()
                blameless = (await self._until_ended()).in_batch
            except Exception as error:
                failure = self._as_failure(error)
                self._record.last_exit = failure.text
                took = {"took_s": self._since_start_s()}
                self._events.emit(kinds.LOAD_FAILED, reason=failure.text, numbers=took)
                if self.worker is not None and self.worker.alive:  # it is being replaced
                    self._run_in_background(self.worker.stop(0))
                if not self.first.done():
                    self._change(InstanceState.FAILED)
                    self.first.set_exception(failure)
                    return
                self._streak.add()
                self._immediate_retry.attempted(failure)
            await self._back_off(blameless=blameless)
            self._record.restarts += 1
            self._change(InstanceState.STARTING)

    async def _until_ended(self) -> messages.WorkerExit:
        """Wait until the serving worker exits, update the failure streak, and return how it ended."""
        last = await self._serve()
        if last.batches or self._has_served_long():
            self._streak.clear()
        self._streak.add(in_batch=last.in_batch)
        return last

    async def _back_off(self, *, blameless: bool) -> None:
        """Wait until the next worker should start: after the back-off delay, or on a request to retry now.

        `blameless`: the last worker was ended by a batch, so restart without delay.
        """
        streak = self._streak
        delay_s = 0.0 if blameless else self._policy.delay_s(streak.failures)
        self._change(InstanceState.FAILED if delay_s is None else InstanceState.BACKOFF)
        streak.next_try_at = None if delay_s is None else time.time() + delay_s
        why = self._record.last_exit or ""
        if delay_s is None:
            self._events.emit(
                kinds.RESTART_LIMIT_REACHED, reason=why, numbers={"failures": streak.failures}
            )
        elif delay_s:
            kind = kinds.CRASH_LOOP if streak.is_crash_loop else kinds.BACKOFF
            self._events.emit(
                kind, reason=why, numbers={"failures": streak.failures, "next_try_s": delay_s}
            )
        try:
            await self._on_change(None)
            if delay_s != 0.0:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._immediate_retry.hurry.wait(), delay_s)
        finally:  # also if stopped during the delay
            streak.next_try_at = None

    def _has_served_long(self) -> bool:
        return self._loop.time() - self._ready_at > _STABLE_AFTER_S

    def _is_proven(self) -> bool:
        """Whether the current worker has answered a batch or has served for long."""
        worker = self.worker
        if self.state is not InstanceState.READY or worker is None or not worker.alive:
            return False
        return worker.stats.read().answered > 0 or self._has_served_long()

    async def _load(self) -> None:
        """Start a worker and wait until it is ready. If it fails, stop it and raise RemoteFailure."""
        self.worker = await self._start()
        await self._until_ready(self.worker)
        self._change(InstanceState.READY)
        await self._on_change(self.worker.name)

    async def _start(self) -> Worker:
        self._started_at = self._loop.time()
        worker = await self._start_worker(self._slot)
        self._events.emit(kinds.LOADING, worker=worker.name, numbers={"pid": worker.pid})
        self._watch(worker)
        return worker

    def _watch(self, worker: Worker) -> None:
        self._workers.add(worker)
        worker.exited.add_done_callback(lambda _: self._workers.discard(worker))
        if isinstance(worker, WorkerProcess):  # limits do not apply to a registrant's threads
            limits = self._spec.limits
            if limits.memory_limit is not None or limits.processes is not None:
                # Imported only when needed: it imports psutil, which takes 10 ms.
                from pytriton.dispatcher.workers.process.hard_limits import guard

                self._run_in_background(guard(worker, limits, self._events))

    async def _until_ready(self, worker: Worker) -> None:
        start = self._policy.start_timeout_s, self._started_at
        await until_loaded(worker, self._spec, *start, greeted=self._is_loading)
        numbers = {"pid": worker.pid, "took_s": self._since_start_s()}
        self._events.emit(kinds.READY, worker=worker.name, numbers=numbers)

    def _as_failure(self, error: Exception) -> RemoteFailure:
        return load_failure(error, self._spec.name, self.index)

    def _since_start_s(self) -> float:
        return round(self._loop.time() - self._started_at, 3)

    def _is_loading(self) -> None:
        if self.state is InstanceState.STARTING:
            self._change(InstanceState.LOADING)

    async def _serve(self) -> messages.WorkerExit:
        """Wait until the worker exits, recycling it whenever it is due, and return how it ended."""
        while True:
            worker = self.worker
            assert worker is not None  # set by `_load`
            await wait_any(worker.exited, worker.recycle_due)
            if not worker.exited.done():
                await self._recycle(worker, worker.recycle_due.result())
            if worker.exited.done():
                end = await self._record_exit(worker)
                if self.worker is worker:
                    return end

    async def _recycle(self, old: Worker, why: str) -> None:
        """Load a replacement for a worker that is due for recycling, then stop the old one.

        If the replacement cannot be loaded, the old worker keeps serving until the next attempt.
        """
        answered = old.stats.read().answered if old.alive else 0
        numbers = {"pid": old.pid, "batches": answered}
        self._events.emit(kinds.RECYCLE_DUE, worker=old.name, reason=why, numbers=numbers)
        pause_s = self._recycle_backoff.pause_s(why, soon=not self._has_served_long())
        await asyncio.wait([old.exited], timeout=pause_s)
        if old.exited.done():
            return
        try:
            fresh = await self._account.beside_others(
                self._start_replacement, _RECYCLE_MEMORY_TIMEOUT_S
            )
        except Exception as error:
            why = self._as_failure(error).text
            self._events.emit(kinds.RECYCLE_FAILED, worker=old.name, reason=why)
            await asyncio.wait([old.exited], timeout=self._policy.longest_delay_s)
            return
        # A callback, because the instance may be stopped before the old worker exits.
        old.exited.add_done_callback(lambda _: self._account.give_beside())
        self.worker, self._ready_at = fresh, self._loop.time()
        self._record.restarts += 1
        await self._on_change(fresh.name)
        old.leave("recycle")
        self._run_in_background(old.end_after_batch())

    async def _start_replacement(self) -> Worker:
        worker = await self._start()
        await self._until_ready(worker)
        return worker

    def _run_in_background(self, doing: Coroutine[None, None, None]) -> None:
        """Run a coroutine in the background. Only `stop` waits for it."""
        task = self._loop.create_task(doing)
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)

    async def _record_exit(self, worker: Worker) -> messages.WorkerExit:
        """Stop the remaining processes of a worker that exited, and record and report how it ended."""
        await worker.stop(0)
        end = worker.end_record()
        self._record.add(end)
        self._events.emit(
            kinds.CRASHED,
            worker=worker.name,
            reason=end.how,
            numbers={
                "pid": worker.pid,
                "batches": end.batches,
                "in_batch": int(end.in_batch),
                "peak_memory": end.peak_memory,
            },
        )
        return end

    def _change(self, new: InstanceState) -> None:
        old = self._machine.change(new)
        pid = self.worker.pid if self.worker else None
        _log.debug(
            "instance state",
            model=self._spec.name,
            instance=self.index,
            worker_pid=pid,
            old=old.value,
            new=new.value,
        )

    def _report_fault(self, task: asyncio.Task[None]) -> None:
        """Log an internal error that ended the supervisor, and fail the waiting tasks."""
        if task.cancelled() or task.exception() is None:
            return
        _log.error("instance supervisor failed", exc_info=task.exception())
        failure = self._immediate_retry.over(task.exception())
        if not self.first.done():
            self.first.set_exception(failure)
