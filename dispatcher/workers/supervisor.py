"""The supervisor of one instance: loads a worker, restarts it when it exits, and recycles it when it is due.

start ──▶ load ──▶ serve ──▶ exited ──▶ back-off ──▶ load …      (without end, or up to a restart limit: FAILED)
                     │
                     └─▶ due for recycling (max_batches, memory): load a replacement, then stop the old worker
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional, cast

import structlog

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.runtime.states import LACKING, InstanceState, StateMachine
from pytriton.dispatcher.runtime.tasks import uninterrupted
from pytriton.dispatcher.runtime.upgrade_snapshot import SupervisedState, WorkerState
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import LOG_ONLY, Events
from pytriton.dispatcher.workers import slots
from pytriton.dispatcher.workers.hosted_worker import Registrant
from pytriton.dispatcher.workers.load_wait import load_failure, until_loaded, wait_any
from pytriton.dispatcher.workers.memory_account import Account, MemoryAccounts
from pytriton.dispatcher.workers.model_counters import ModelCounters
from pytriton.dispatcher.workers.prestarted import PrestartedWorkers
from pytriton.dispatcher.workers.suspension import WakeBounds
from pytriton.dispatcher.workers.worker import Worker
from pytriton.dispatcher.workers.worker_factory import WorkerStarter
from pytriton.dispatcher.workers.worker_process import WorkerProcess

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
                from pytriton.dispatcher.workers.hard_limits import guard

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


# ── The history of one instance across its workers: how they exited, and how status describes that ──

#: Number of worker exits that are kept for `status`.
_MAX_EXITS_KEPT = 5


class InstanceRecord:
    """The history of one instance.

    Args:
        index: Number of the instance.
        version: The version it serves, if each version has its own workers.

    Attributes:
        restarts: Number of workers it has had after the first.
        last_exit: How the last worker exited or why it could not be loaded; None if that has not happened.
        streak: The consecutive worker exits.
    """

    def __init__(self, index: int, version: int | None) -> None:
        self.restarts = 0
        self.last_exit: str | None = None
        self.streak = Streak()
        self._index = index
        self._version = version
        self._exits: list[messages.WorkerExit] = []

    def add(self, end: messages.WorkerExit) -> None:
        """Record how a worker ended."""
        self.last_exit = end.how
        self._exits = [*self._exits[1 - _MAX_EXITS_KEPT :], end]

    def adopt(self, state: SupervisedState) -> None:
        """Restore the history from before an upgrade."""
        self.restarts, self.last_exit, self._exits = state.restarts, state.last_exit, state.exits

    def hand_over(self, slot: int, worker: WorkerState | None) -> SupervisedState:
        """Return the state to hand over in an upgrade."""
        return SupervisedState(slot, worker, self.restarts, self.last_exit, self._exits)

    def problem(self, state: InstanceState, *, lacks_worker: bool, proven: bool) -> str | None:
        """Describe a crash loop or a reached restart limit and the next step; return None if there is neither.

        Args:
            state: State of the instance.
            lacks_worker: Whether no worker serves until another one is loaded.
            proven: Whether the current worker has shown that it serves.
        """
        streak, given_up = self.streak, state is InstanceState.FAILED
        # If a worker is ready, earlier failures to load no longer matter, but crashes during batches do.
        ended = streak.fruitless if lacks_worker else streak.fruitless - streak.failures
        if not given_up and (ended < CRASH_LOOP or proven):
            return None
        how = "has reached its restart limit" if given_up else "is in a crash loop"
        if given_up:
            then = "no other one is started (worker_restart_limit) until you scale or replace it"
        elif streak.next_try_at is not None:
            then = f"the next one is started in {max(0.0, streak.next_try_at - time.time()):.1f} s"
        elif lacks_worker:
            then = "the next one is being loaded"
        else:
            then = "the next one is ready"
        times = "1 worker" if streak.fruitless == 1 else f"{streak.fruitless} workers in a row"
        what = f"{times} ended without having answered a batch, the last: {self.last_exit}"
        return f"instance {self._index} {how}: {what}; {then}"

    def info(
        self,
        state: InstanceState,
        worker: Worker | None,
        devices: Sequence[str | None],
        lanes: int,
        *,
        standby: bool,
        proven: bool,
    ) -> messages.InstanceInfo:
        """Return the instance as shown by `status`.

        Args:
            state: State of the instance.
            worker: The current worker; None if none is alive.
            devices: Devices of the model.
            lanes: Number of proxies that the worker serves.
            standby: Whether the instance is a standby worker.
            proven: Whether the worker has shown that it serves.
        """
        done = worker.stats.read() if worker is not None else None
        ready = state is InstanceState.READY
        shown = (
            "not_ready" if ready and worker is not None and worker.not_ready_reason else state.value
        )
        if ready and worker is None:
            shown = InstanceState.BACKOFF.value  # the state that follows once its exit is recorded
        return messages.InstanceInfo(
            index=self._index,
            state=shown,
            pid=worker.pid if worker is not None else None,
            device=devices[self._index % len(devices)] if devices else None,
            lanes=lanes,
            restarts=self.restarts,
            last_exit=self.last_exit,
            standby=standby,
            batches=done.answered if done is not None else 0,
            busy_s=done.busy_s if done is not None else None,
            exits=self._exits,
            version=self._version,
            consecutive_exits=0 if proven else self.streak.fruitless,
            next_try_at=self.streak.next_try_at,
        )


# ── The restart policy for workers: back-off delay, restart limit, and the definition of a crash loop ──

#: Number of consecutive failures that make a crash loop.
CRASH_LOOP = 3
#: Limits the exponent of the delay to avoid overflow. After so many doublings, any delay exceeds the longest one.
_MAX_DOUBLINGS = 60


@dataclass(frozen=True)
class RestartPolicy:
    """Start timeout, back-off and restart limit of workers.

    The first restart is immediate. `limit` is the number of consecutive restarts; None means unlimited. `wake_bounds`
    limits how long batches wait for a suspended model to wake.
    """

    start_timeout_s: float
    limit: int | None
    first_delay_s: float
    longest_delay_s: float
    wake_bounds: WakeBounds = field(default_factory=WakeBounds)

    def delay_s(self, failures: int) -> float | None:
        """Return the delay in seconds after this many consecutive failures, or None when the limit is reached."""
        if self.limit is not None and failures > self.limit:
            return None
        if failures <= 1:
            return 0.0
        doublings = min(failures - 2, _MAX_DOUBLINGS)
        return min(self.longest_delay_s, self.first_delay_s * 2.0**doublings)


@dataclass
class Exchanges:
    """Back-off for workers that are recycled soon after their start because they cannot accept another lane.

    A replacement is likely to have the same problem. So the first one starts at once, and later ones after the delays
    of a crash loop. Until then the old worker keeps serving its existing lanes.
    """

    policy: RestartPolicy
    _in_row: int = 0

    def pause_s(self, why: str, *, soon: bool) -> float:
        """Return how long, in seconds, to postpone the recycling; `soon`: the worker has not served for long."""
        lacks_lanes = why.startswith(messages.NO_LANE)
        self._in_row = 0 if not lacks_lanes else self._in_row + 1 if soon else 1
        delay_s = self.policy.delay_s(self._in_row)
        return self.policy.longest_delay_s if delay_s is None else delay_s


@dataclass
class Streak:
    """Consecutive worker exits of one instance.

    Attributes:
        failures: Exits blamed on the instance. Each one increases the delay.
        fruitless: Workers that exited without having answered a batch, including those that a batch crashed.
        next_try_at: When the next worker starts, in seconds since the epoch; None outside a back-off delay.
    """

    failures: int = 0
    fruitless: int = 0
    next_try_at: float | None = None

    def add(self, *, in_batch: bool = False) -> None:
        """Count a worker that exited or could not be loaded."""
        self.fruitless += 1
        if not in_batch:
            self.failures += 1

    def clear(self) -> None:
        """Reset the streak after a worker has served."""
        self.failures = self.fruitless = 0

    @property
    def is_crash_loop(self) -> bool:
        """Whether the instance is in a crash loop."""
        return self.failures >= CRASH_LOOP


# ── A request to retry an instance immediately instead of waiting for its back-off ──


class ImmediateRetry:
    """Lets callers request an immediate retry of one instance. Concurrent callers share one attempt.

    Attributes:
        hurry: Set while an immediate retry is requested.
    """

    def __init__(self) -> None:
        self.hurry = asyncio.Event()
        self._attempt: asyncio.Future[None] | None = None
        self._over: RemoteFailure | None = None

    @property
    def is_over(self) -> bool:
        """Whether no more attempts are made, because an internal error ended the supervisor."""
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
            self.hurry.set()
        await asyncio.shield(self._attempt)

    def attempted(self, failure: RemoteFailure | None) -> None:
        """Report the result of an attempt to the waiting callers; None means that it succeeded."""
        self.hurry.clear()
        attempt, self._attempt = self._attempt, None
        if attempt is not None and failure is None:
            attempt.set_result(None)
        elif attempt is not None and failure is not None:
            attempt.set_exception(failure)

    def over(self, fault: BaseException | None) -> RemoteFailure:
        """Fail the waiting callers and all later ones, because an internal error ended the supervisor."""
        text = f"internal error: {fault}. Replace the model; the daemon's log has the details"
        self._over = RemoteFailure(ErrorKind.INTERNAL, text)
        self.attempted(self._over)
        return self._over


# ── Starting of one registration's workers, and the index of workers by name, which keeps exited ones for a while ──

#: Number of exited workers that are kept, so that their exit can be explained to proxies.
_MAX_EXITED_KEPT = 16


class WorkerStarts:
    """Starts workers, or takes the prestarted one.

    Args:
        start_worker: Starts one worker.
        registrant: The process whose threads run the workers; None if the workers are processes.
        workers: By name. Started workers are added here.
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
        """Start the worker of a slot and return it. It then loads the model.

        Raises:
            RemoteFailure: The worker cannot be started.
        """
        worker = self._prestarted.take(self._account) if slot == 0 else None
        if worker is None:
            worker = await self._new(spec, slot)
        else:
            await self._unpark(worker)
        self._counters.add(worker)
        return worker

    async def _unpark(self, worker: Worker) -> None:
        """Make a prestarted worker load its model; stop it on failure, as no other task refers to it."""
        try:
            await worker.unpark()
        except BaseException:
            await uninterrupted(worker.stop(0))
            raise

    def adopt(self, worker: Worker) -> None:
        """Add a worker that was started before an upgrade."""
        self._workers[worker.name] = worker
        self._counters.add(worker, adopted=True)

    async def park(self, spec: messages.ModelSpec, still: Callable[[], bool]) -> None:
        """Prestart a worker for a suspended model. Stop it again if `still()` is false once it has started."""
        if not self._prestarted.room:
            return
        try:
            worker = await self._new(spec, 0)
        except RemoteFailure:  # the next wake-up reports it
            return
        worker.parked = True
        if still():
            await self._prestarted.put(self._account, worker)
        else:
            await worker.stop(0)

    async def end_parked(self) -> None:
        """Stop the prestarted worker, if there is one."""
        await self._prestarted.drop(self._account)

    async def _new(self, spec: messages.ModelSpec, slot: int) -> Worker:
        worker = await self._start_worker(spec, slot, self._registrant)
        ended = [name for name, one in self._workers.items() if not one.alive]
        for name in ended[:-_MAX_EXITED_KEPT]:
            del self._workers[name]
            self._forget(name)
        self._workers[worker.name] = worker
        return worker
