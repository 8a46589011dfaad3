"""The supervisor of one instance: starts its worker, restarts it after an exit, and recycles it when due.

start ──▶ load ──▶ serve ──▶ exited ──▶ back-off ──▶ load …      (without limit, or until worker_restart_limit: FAILED)
                     │
                     └─▶ due for recycling (max_batches, memory): load a replacement, then stop the old worker

- If a worker exits during a batch, the batch is blamed (batch_retry.py), and the next worker starts at once.
- Any other exit, or a failure to load, counts against the instance. The first restart is immediate; each further
  consecutive failure doubles the delay (`RestartPolicy`). Three in a row are a crash loop, which `status` and events
  report. A worker that answers a batch, or serves for a minute, resets the count (`Streak`).
- If the first worker cannot be loaded, the registration fails. It is not retried.
- A request to retry now ends a delay, even after the restart limit was reached (`ImmediateRetry`).
- A worker that is recycled keeps serving until its replacement is ready. If the replacement fails, it keeps serving.
- A resumed model uses its prestarted worker, if it has one (`WorkerStarts`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional, cast

import structlog

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.runtime.states import WITHOUT_WORKER, InstanceState, StateMachine
from pytriton.dispatcher.runtime.tasks import run_in_background, uninterrupted
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import LOG_ONLY, Events
from pytriton.dispatcher.telemetry.events.explain import CRASH_LOOP, describe_exits, next_attempt
from pytriton.dispatcher.upgrade.snapshot import SupervisedState
from pytriton.dispatcher.workers.hosted_worker import Registrant
from pytriton.dispatcher.workers.memory_account import Account, MemoryAccounts
from pytriton.dispatcher.workers.model_counters import ModelCounters
from pytriton.dispatcher.workers.prestarted import PrestartedWorkers
from pytriton.dispatcher.workers.suspension import ResumeBounds
from pytriton.dispatcher.workers.worker import Worker, instance_of, own_versions, spec_of_slot
from pytriton.dispatcher.workers.worker_process import WorkerProcess, WorkerStarter

_log = structlog.get_logger(__name__)

#: A worker that has served for this long ends a crash loop.
_STABLE_AFTER_S = 60.0
#: How long to wait for the memory of a replacement before the recycling is postponed.
_RECYCLE_MEMORY_TIMEOUT_S = 10.0
#: Number of an instance's last worker exits that `status` shows.
_MAX_EXITS_KEPT = 5
#: Upper bound of the delay's exponent, to avoid overflow. After so many doublings, any delay exceeds the longest one.
_MAX_DOUBLINGS = 60
#: Number of a registration's exited workers that are kept to explain their exits to proxies.
_MAX_EXITED_KEPT = 16

#: Awaited whenever the set of workers changes, with the name of the worker that became ready, or None.
OnChange = Callable[[Optional[str]], Awaitable[None]]


class Adopted(NamedTuple):
    """An instance adopted in an upgrade, with its worker if the worker is still alive."""

    state: SupervisedState
    worker: Worker | None


class Supervisor:
    """Supervisor of one instance: its current worker, and a record of earlier ones.

    Attributes:
        index: Number of the instance. Standby workers have the numbers from `spec.instances` upward.
        version: The version that it serves; None if its workers serve all versions.
        worker: The current worker, including while it loads and after it has exited.
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
        retry_first: bool = False,
        adopted: Adopted | None = None,
        account: Account | None = None,
    ) -> None:
        """Start supervising an instance.

        Args:
            slot: Its place in the registration, see worker.py.
            spec: The model's declaration.
            start_worker: Starts the worker of a slot.
            policy: Time limits and delays.
            on_change: Awaited whenever the set of workers changes.
            events: Receives the events about its workers.
            retry_first: Retry the first worker like any other, because no caller waits for `first`.
            adopted: The state of the instance before an upgrade.
            account: The pool's memory account.
        """
        self.index = instance_of(spec, slot)
        self.version = spec_of_slot(spec, slot).version if own_versions(spec) else None
        self.worker: Worker | None = None
        self._loop = asyncio.get_running_loop()
        self.first: asyncio.Future[None] = self._loop.create_future()
        # A pool that is stopping never retrieves the exception. Retrieve it here, or asyncio logs a warning.
        self.first.add_done_callback(lambda first: first.cancelled() or first.exception())
        if retry_first:
            self.first.set_result(None)
        self._slot = slot
        self._spec = spec
        self._start_worker = start_worker
        self._policy = policy
        self._on_change = on_change
        self._events = events.about(spec.name, self.version or spec.version, self.index)
        self._account = account or MemoryAccounts().open(spec)
        self._machine = StateMachine(InstanceState.STARTING)
        self._streak = Streak()
        self._recycle_backoff = RecycleBackoff(policy)
        self._immediate_retry = ImmediateRetry()
        #: For `status`: restarts so far, how the last worker exited or why it was not loaded, and the last exits.
        self._restarts = 0
        self._last_exit: str | None = None
        self._exits: list[messages.WorkerExit] = []
        self._ready_at = self._started_at = 0.0
        #: All workers that have not exited: the current one, its replacement, and those that are being stopped.
        self._workers: set[Worker] = set()
        self._background_tasks: set[asyncio.Task[None]] = set()
        if adopted is not None:
            state = adopted.state
            self._restarts, self._last_exit, self._exits = (
                state.restarts,
                state.last_exit,
                state.exits,
            )
            if adopted.worker is not None:
                self.worker = adopted.worker
                self._watch(adopted.worker)
                self._change(InstanceState.READY)
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(self._report_internal_error)

    # ── the life of an instance ──────────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        """Load a worker, wait until it exits, back off, and start over, until cancelled."""
        while True:
            blameless = False
            try:
                if self.state is not InstanceState.READY:  # an adopted instance is ready already
                    await self._load()
                self._immediate_retry.finish(None)
                if not self.first.done():
                    self.first.set_result(None)
                self._ready_at = self._loop.time()
                end = await self._serve()
                if end.batches or self._has_served_long():
                    self._streak.clear()
                self._streak.add(in_batch=end.in_batch)
                blameless = end.in_batch
            except Exception as error:
                failure = self._as_failure(error)
                self._last_exit = failure.text
                numbers = {"took_s": self._since_start_s()}
                self._events.emit(kinds.LOAD_FAILED, reason=failure.text, numbers=numbers)
                if self.worker is not None and self.worker.alive:  # it is being replaced
                    run_in_background(self._background_tasks, self.worker.stop(0))
                if not self.first.done():
                    self._change(InstanceState.FAILED)
                    self.first.set_exception(failure)
                    return
                self._streak.add()
                self._immediate_retry.finish(failure)
            await self._back_off(blameless=blameless)
            self._restarts += 1
            self._change(InstanceState.STARTING)

    async def _load(self) -> None:
        """Start a worker and wait until it is ready. If it fails, stop it and raise RemoteFailure."""
        self.worker = await self._start()
        await self._wait_until_loaded(self.worker)
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
                from pytriton.dispatcher.workers.hard_limits import guard

                run_in_background(self._background_tasks, guard(worker, limits, self._events))

    async def _wait_until_loaded(self, worker: Worker) -> None:
        """Wait until a newly started worker is ready. Stop the worker on any exception.

        There are two time limits: one until the worker says hello, which includes the start of a fork server, and one
        for loading its callable.

        Raises:
            RemoteFailure: The worker did not become ready.
        """
        start_timeout_s, load_timeout_s = self._policy.start_timeout_s, self._spec.load_timeout_s
        left_s = max(0.0, self._started_at + start_timeout_s - self._loop.time())
        try:
            await _wait_for_any(worker.greeted, worker.ready, timeout_s=left_s)
            if worker.greeted.done() and not worker.ready.done():
                if self.state is InstanceState.STARTING:
                    self._change(InstanceState.LOADING)
                await _wait_for_any(worker.ready, timeout_s=load_timeout_s)
            if not worker.ready.done():
                what = f"did not start within {start_timeout_s:g} s (worker_start_timeout_s)"
                if worker.greeted.done():
                    what = f"did not load its callable within {load_timeout_s:g} s (load_timeout_s)"
                text = f"model {self._spec.name}: worker {worker.name} {what}"
                raise RemoteFailure(ErrorKind.LOAD_FAILED, text, worker.last_lines() or None)
            worker.ready.result()
        except Exception:
            await worker.stop(0)
            raise
        numbers = {"pid": worker.pid, "took_s": self._since_start_s()}
        self._events.emit(kinds.READY, worker=worker.name, numbers=numbers)

    def _as_failure(self, error: Exception) -> RemoteFailure:
        """Convert an exception to the failure to report. An internal error is logged, but does not prevent a retry."""
        if isinstance(error, RemoteFailure):
            return error
        name = self._spec.name
        _log.error(
            "internal error while starting a worker",
            model=name,
            instance=self.index,
            exc_info=error,
        )
        text = f"model {name}: internal error: {type(error).__name__}: {error}"
        return RemoteFailure(ErrorKind.INTERNAL, text)

    async def _serve(self) -> messages.WorkerExit:
        """Wait until the worker exits, and return the record of its exit. Until then, recycle the worker whenever it is
        due.
        """
        while True:
            worker = self.worker
            assert worker is not None  # set by `_load`
            await _wait_for_any(worker.exited, worker.recycle_due)
            if not worker.exited.done():
                await self._recycle(worker, worker.recycle_due.result())
            if worker.exited.done():
                end = await self._record_exit(worker)
                if self.worker is worker:
                    return end

    async def _record_exit(self, worker: Worker) -> messages.WorkerExit:
        """Record and report a worker's exit, and stop the processes that the worker left behind."""
        await worker.stop(0)
        end = worker.end_record()
        self._last_exit = end.how
        self._exits = [*self._exits[1 - _MAX_EXITS_KEPT :], end]
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

    async def _back_off(self, *, blameless: bool) -> None:
        """Wait until the next worker should start: for the back-off delay, or until a request to retry now.

        If `blameless`, the last worker exited during a batch, and there is no delay.
        """
        streak = self._streak
        delay_s = 0.0 if blameless else self._policy.delay_s(streak.failures)
        self._change(InstanceState.FAILED if delay_s is None else InstanceState.BACKOFF)
        streak.next_try_at = None if delay_s is None else self._loop.time() + delay_s
        why = self._last_exit or ""
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
                    await asyncio.wait_for(self._immediate_retry.requested.wait(), delay_s)
        finally:  # even if stopped during the delay
            streak.next_try_at = None

    async def _recycle(self, old: Worker, due: messages.WorkerRecycleDue) -> None:
        """Load a replacement for a worker that is due for recycling, then stop the old worker.

        If the replacement cannot be loaded, the old worker keeps serving until the next attempt.
        """
        answered = old.stats.read().answered if old.alive else 0
        numbers = {"pid": old.pid, "batches": answered}
        self._events.emit(
            kinds.RECYCLE_DUE,
            worker=old.name,
            code=due.reason.value,
            reason=due.text,
            numbers=numbers,
        )
        pause_s = self._recycle_backoff.pause_s(due.reason, soon=not self._has_served_long())
        await asyncio.wait([old.exited], timeout=pause_s)
        if old.exited.done():
            return
        try:
            new = await self._account.load_extra(self._start_replacement, _RECYCLE_MEMORY_TIMEOUT_S)
        except Exception as error:
            why = self._as_failure(error).text
            self._events.emit(kinds.RECYCLE_FAILED, worker=old.name, reason=why)
            await asyncio.wait([old.exited], timeout=self._policy.longest_delay_s)
            return
        # A callback, because the instance may be stopped before the old worker exits.
        old.exited.add_done_callback(lambda _: self._account.release_extra())
        self.worker, self._ready_at = new, self._loop.time()
        self._restarts += 1
        await self._on_change(new.name)
        old.expect_exit("recycle")
        run_in_background(self._background_tasks, old.end_after_batch())

    async def _start_replacement(self) -> Worker:
        worker = await self._start()
        await self._wait_until_loaded(worker)
        return worker

    def _has_served_long(self) -> bool:
        return self._loop.time() - self._ready_at > _STABLE_AFTER_S

    def _since_start_s(self) -> float:
        return round(self._loop.time() - self._started_at, 3)

    def _change(self, new: InstanceState) -> None:
        old = self._machine.change(new)
        pid = self.worker.pid if self.worker else None
        _log.debug(
            "instance state changed",
            model=self._spec.name,
            instance=self.index,
            worker_pid=pid,
            old=old.value,
            new=new.value,
        )

    def _report_internal_error(self, task: asyncio.Task[None]) -> None:
        """Log an internal error that ended the supervisor, and fail the tasks that are waiting for the supervisor."""
        if task.cancelled() or task.exception() is None:
            return
        _log.error("instance supervisor failed", exc_info=task.exception())
        failure = self._immediate_retry.give_up(task.exception())
        if not self.first.done():
            self.first.set_exception(failure)

    # ── requests ─────────────────────────────────────────────────────────────────────────────────

    async def retry_now(self) -> None:
        """Start a missing worker now, even during back-off or after the restart limit was reached.

        Raises:
            RemoteFailure: The worker could not be loaded. The instance continues as before.
        """
        if self.lacks_worker:
            await self._immediate_retry.request()

    async def stop(self, grace_s: float, reason: str = "stop") -> None:
        """Move the proxies to other workers, then stop the worker after its batch, within `grace_s` seconds.

        `reason` is one of EXIT_REASONS.
        """
        for worker in self._workers:
            worker.expect_exit(reason)
        self._task.cancel()
        text = f"model {self._spec.name}: instance {self.index} is being stopped"
        self._immediate_retry.finish(RemoteFailure(ErrorKind.UNAVAILABLE, text))
        self._change(InstanceState.STOPPING)
        await self._on_change(None)
        await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.gather(*(worker.stop(grace_s) for worker in self._workers))
        await asyncio.gather(*self._background_tasks)
        self._change(InstanceState.STOPPED)

    def hand_over(self) -> SupervisedState:
        """Return the state to be handed over in an upgrade. The supervisor must be quiescent."""
        serves = self.is_quiescent and isinstance(self.worker, WorkerProcess) and self.worker.alive
        worker = cast(WorkerProcess, self.worker).hand_over() if serves else None
        return SupervisedState(self._slot, worker, self._restarts, self._last_exit, self._exits)

    # ── queries ──────────────────────────────────────────────────────────────────────────────────

    @property
    def state(self) -> InstanceState:
        return self._machine.state

    @property
    def is_quiescent(self) -> bool:
        """Whether no worker is starting or stopping: one is serving, or the instance is backing off or has failed."""
        if self._workers - {self.worker}:
            return False
        if self.state is InstanceState.READY:
            return self.worker is not None and self.worker.alive
        return self.state in (InstanceState.BACKOFF, InstanceState.FAILED)

    @property
    def serving(self) -> Worker | None:
        """The worker that can accept a lane now, or None."""
        worker = self._ready_worker
        return worker if worker is not None and worker.not_ready_reason is None else None

    @property
    def lacks_worker(self) -> bool:
        """Whether the instance cannot serve until another worker is loaded."""
        if self._immediate_retry.is_over:
            return self.worker is None or not self.worker.alive
        return self.state in WITHOUT_WORKER

    @property
    def is_crash_looping(self) -> bool:
        """Whether the instance is in a crash loop or has reached its restart limit."""
        if self.state is InstanceState.FAILED:
            return True
        return self.lacks_worker and (self._streak.is_crash_loop or self._immediate_retry.is_over)

    def problem(self) -> str | None:
        """If the instance is crash-looping or has reached its restart limit, say so, and what happens next; else return None."""
        streak, has_failed = self._streak, self.state is InstanceState.FAILED
        # If a worker is ready, earlier failures to load no longer matter, but crashes during batches do.
        exits = streak.exits if self.lacks_worker else streak.exits - streak.failures
        if not has_failed and (exits < CRASH_LOOP or self._is_proven()):
            return None
        if has_failed:
            then = (
                "no worker is started until you scale or replace the model (worker_restart_limit)"
            )
        elif streak.next_try_at is not None:
            then = next_attempt(max(0.0, streak.next_try_at - self._loop.time()))
        elif self.lacks_worker:
            then = next_attempt(0.0)
        else:
            then = "the next worker is ready"
        return describe_exits(
            f"instance {self.index}",
            streak.exits,
            self._last_exit or "",
            then,
            limit_reached=has_failed,
        )

    def info(self, lanes: int, *, standby: bool) -> messages.InstanceInfo:
        """Return the instance as shown by `status`.

        Args:
            lanes: Number of proxies that the worker serves.
            standby: Whether the instance is a standby worker.
        """
        worker = self.worker if self.worker is not None and self.worker.alive else None
        done = worker.stats.read() if worker is not None else None
        shown = self.state.value
        if self.state is InstanceState.READY:
            if worker is None:
                shown = InstanceState.BACKOFF.value  # follows once its exit is recorded
            elif worker.not_ready_reason:
                shown = "not_ready"
        devices, next_try_at = self._spec.devices, self._streak.next_try_at
        if next_try_at is not None:
            next_try_at += time.time() - self._loop.time()
        return messages.InstanceInfo(
            index=self.index,
            state=shown,
            pid=worker.pid if worker is not None else None,
            device=devices[self.index % len(devices)] if devices else None,
            lanes=lanes,
            restarts=self._restarts,
            last_exit=self._last_exit,
            standby=standby,
            batches=done.answered if done is not None else 0,
            busy_s=done.busy_s if done is not None else None,
            exits=self._exits,
            version=self.version,
            consecutive_exits=0 if self._is_proven() else self._streak.exits,
            next_try_at=next_try_at,
        )

    @property
    def _ready_worker(self) -> Worker | None:
        worker = self.worker
        if self.state is not InstanceState.READY or worker is None or not worker.alive:
            return None
        return worker

    def _is_proven(self) -> bool:
        """Return whether the current worker has answered a batch or has served for `_STABLE_AFTER_S` seconds."""
        worker = self._ready_worker
        return worker is not None and (worker.stats.read().answered > 0 or self._has_served_long())


async def _wait_for_any(*futures: asyncio.Future[Any], timeout_s: float | None = None) -> None:
    """Wait until one of the futures is done, for at most `timeout_s` seconds."""
    await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


# ── When the next worker starts: delays, the restart limit, crash loops ──


@dataclass(frozen=True)
class RestartPolicy:
    """Start timeout, back-off and restart limit of workers.

    The first restart is immediate. `limit` is the maximum number of consecutive restarts; None means unlimited.
    `resume_bounds` limits how long batches wait for a suspended model to resume.
    """

    start_timeout_s: float
    limit: int | None
    first_delay_s: float
    longest_delay_s: float
    resume_bounds: ResumeBounds = field(default_factory=ResumeBounds)

    def delay_s(self, failures: int) -> float | None:
        """Return the delay in seconds after `failures` consecutive failures; None if the limit is reached."""
        if self.limit is not None and failures > self.limit:
            return None
        if failures <= 1:
            return 0.0
        doublings = min(failures - 2, _MAX_DOUBLINGS)
        return min(self.longest_delay_s, self.first_delay_s * 2.0**doublings)


@dataclass
class Streak:
    """Consecutive worker exits of one instance.

    Attributes:
        exits: Number of consecutive workers that exited without an answered batch, even if a batch crashed them.
        failures: Number of those exits that are blamed on the instance. Each one increases the delay.
        next_try_at: When the next worker starts, in the event loop's time; None outside a back-off delay.
    """

    exits: int = 0
    failures: int = 0
    next_try_at: float | None = None

    def add(self, *, in_batch: bool = False) -> None:
        """Count a worker that exited or could not be loaded."""
        self.exits += 1
        if not in_batch:
            self.failures += 1

    def clear(self) -> None:
        """Reset the counts of consecutive exits and failures after a worker has served."""
        self.exits = self.failures = 0

    @property
    def is_crash_loop(self) -> bool:
        """Whether the instance is in a crash loop."""
        return self.failures >= CRASH_LOOP


@dataclass
class RecycleBackoff:
    """Back-off for workers that have to be recycled soon after their start, because they cannot accept another lane or their
    GPU failed.

    A replacement is likely to have the same problem: the first one starts at once, later ones after the delays of a
    crash loop. In the meantime, the old worker keeps serving its lanes.
    """

    policy: RestartPolicy
    _recycles: int = 0

    def pause_s(self, reason: messages.RecycleReason, *, soon: bool) -> float:
        """Return how many seconds to postpone recycling. `soon`: whether the worker started only recently."""
        recurs = reason in (messages.RecycleReason.NO_LANE, messages.RecycleReason.GPU)
        self._recycles = 0 if not recurs else self._recycles + 1 if soon else 1
        delay_s = self.policy.delay_s(self._recycles)
        return self.policy.longest_delay_s if delay_s is None else delay_s


class ImmediateRetry:
    """An immediate retry of one instance, on request. Concurrent callers share one attempt.

    Attributes:
        requested: Set while an immediate retry is requested.
    """

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self._attempt: asyncio.Future[None] | None = None
        self._over: RemoteFailure | None = None

    @property
    def is_over(self) -> bool:
        """Whether retries are impossible, because an internal error ended the supervisor."""
        return self._over is not None

    async def request(self) -> None:
        """Request a worker and wait until it is loaded.

        Raises:
            RemoteFailure: The worker could not be loaded.
        """
        if self._over is not None:
            raise self._over
        if self._attempt is None:
            self._attempt = asyncio.get_running_loop().create_future()
            self._attempt.add_done_callback(lambda attempt: attempt.exception())
            self.requested.set()
        await asyncio.shield(self._attempt)

    def finish(self, failure: RemoteFailure | None) -> None:
        """Report the result of an attempt to the waiting callers. None stands for success."""
        self.requested.clear()
        attempt, self._attempt = self._attempt, None
        if attempt is not None and failure is None:
            attempt.set_result(None)
        elif attempt is not None and failure is not None:
            attempt.set_exception(failure)

    def give_up(self, error: BaseException | None) -> RemoteFailure:
        """Fail all waiting and future callers, because an internal error ended the supervisor. Return the failure."""
        text = f"internal error: {error}. Replace the model; the daemon's log has the details"
        self._over = RemoteFailure(ErrorKind.INTERNAL, text)
        self.finish(self._over)
        return self._over


# ── Where a worker comes from: a new one, or the prestarted one of a suspended model ──


class WorkerStarts:
    """Starts a registration's workers: new ones, or its prestarted worker.

    Args:
        start_worker: Starts one worker.
        registrant: The process whose threads run the workers; None if the workers are processes.
        workers: The registration's workers by name. Started workers are added; exited ones are removed, except the
            last few.
        counters: Counts starts and exits.
        prestarted: Keeps a prestarted worker while the model is suspended.
        account: Memory account of the workers.
        forget: Called with the name of each exited worker that is removed.
    """

    def __init__(
        self,
        start_worker: WorkerStarter,
        registrant: Registrant | None,
        workers: dict[str, Worker],
        counters: ModelCounters,
        prestarted: PrestartedWorkers,
        account: Account,
        forget: Callable[[str], None],
    ) -> None:
        self._start_worker = start_worker
        self._registrant = registrant
        self._workers = workers
        self._counters = counters
        self._prestarted = prestarted
        self._account = account
        self._forget = forget

    async def start(self, spec: messages.ModelSpec, slot: int) -> Worker:
        """Start the worker of a slot, and return it while it is still loading the model.

        Raises:
            RemoteFailure: The worker cannot be started.
        """
        worker = self._prestarted.take(self._account) if slot == 0 else None
        if worker is None:
            worker = await self._start_new(spec, slot)
        else:
            try:
                await worker.unpark()
            except BaseException:  # no other task refers to it
                await uninterrupted(worker.stop(0))
                raise
        self._counters.add(worker)
        return worker

    def adopt(self, worker: Worker) -> None:
        """Add a worker that was started before an upgrade."""
        self._workers[worker.name] = worker
        self._counters.add(worker, adopted=True)

    async def prestart(self, spec: messages.ModelSpec, is_still_wanted: Callable[[], bool]) -> None:
        """Prestart a worker for a suspended model. If the model is resumed before the worker has started, stop the
        worker.
        """
        if not self._prestarted.room:
            return
        try:
            worker = await self._start_new(spec, 0)
        except RemoteFailure:  # the next resume reports it
            return
        worker.parked = True
        if is_still_wanted():
            await self._prestarted.put(self._account, worker)
        else:
            await worker.stop(0)

    async def stop_prestarted(self) -> None:
        """Stop the prestarted worker, if there is one."""
        await self._prestarted.drop(self._account)

    async def _start_new(self, spec: messages.ModelSpec, slot: int) -> Worker:
        worker = await self._start_worker(spec, slot, self._registrant)
        exited = [name for name, one in self._workers.items() if not one.alive]
        for name in exited[:-_MAX_EXITED_KEPT]:
            del self._workers[name]
            self._forget(name)
        self._workers[worker.name] = worker
        return worker
