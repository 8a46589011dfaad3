"""A keeper keeps one instance supplied with a worker: loads it, replaces it when it ends, and before it is spent.

start ──▶ load ──▶ serve ──▶ ended by itself ──▶ back-off ──▶ load …      (too often in a row: FAILED)
                     │
                     └─▶ spent (max_batches, memory): load another one beside, then end the first
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Optional, Protocol

import structlog

from pytriton.dispatcher import slots
from pytriton.dispatcher.guard import guard
from pytriton.dispatcher.states import InstanceState, StateMachine
from pytriton.dispatcher.worker import Worker
from pytriton.dispatcher.worker_process import WorkerProcess
from pytriton.ipc import messages
from pytriton.ipc.errors import ErrorKind, RemoteFailure

_log = structlog.get_logger(__name__)

#: A worker that served this long was not part of a crash loop.
_HEALTHY_S = 60.0
#: Ends that are kept for status.
_ENDS_KEPT = 5

#: Is awaited when a worker came or went: with the name of the one that is ready now, or None.
Tell = Callable[[Optional[str]], Awaitable[None]]


class StartWorker(Protocol):
    """Starts the worker of one slot, see slots.py."""

    def __call__(self, slot: int, /) -> Awaitable[Worker]: ...


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


class Keeper:
    """One instance: the worker it has now, and what happened to those before.

    Attributes:
        index: number of the instance; those from `spec.instances` on are spares.
        version: what it serves, where each version has workers of its own.
        worker: the present worker, also while it loads or after it ended.
        first: done when the first worker is ready; raises RemoteFailure when it cannot be loaded.
    """

    def __init__(
        self,
        slot: int,
        spec: messages.ModelSpec,
        start_worker: StartWorker,
        policy: RestartPolicy,
        tell: Tell,
    ) -> None:
        self._slot = slot
        self.index = slots.instance_of(spec, slot)
        self.version = slots.taken_by(spec, slot)[0].version if slots.versions(spec) else None
        self.worker: Worker | None = None
        self.last_exit: str | None = None
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # A pool that is being stopped does not ask any more why a worker failed.
        self.first.add_done_callback(lambda first: first.cancelled() or first.exception())
        self._machine = StateMachine(InstanceState.STARTING)
        self._spec = spec
        self._start_worker = start_worker
        self._policy = policy
        self._tell = tell
        self._restarts = 0
        self._ends: list[messages.WorkerEnd] = []
        self._workers: set[Worker] = set()
        self._aside: set[asyncio.Task[None]] = set()
        self._task = asyncio.get_running_loop().create_task(self._keep())
        self._task.add_done_callback(self._report_fault)

    @property
    def state(self) -> InstanceState:
        return self._machine.state

    @property
    def serving(self) -> Worker | None:
        """The worker that can take a lane now."""
        worker = self.worker
        if self.state is not InstanceState.READY or worker is None or not worker.alive:
            return None
        return worker if worker.unwilling is None else None

    async def stop(self, grace_s: float) -> None:
        """End the worker after its batch, at most `grace_s` later; its proxies go elsewhere."""
        self._task.cancel()
        self._change(InstanceState.STOPPING)
        await self._tell(None)
        await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.gather(*(worker.stop(grace_s) for worker in self._workers))
        await asyncio.gather(*self._aside)
        self._change(InstanceState.STOPPED)

    def info(self, lanes: int, *, spare: bool) -> messages.InstanceInfo:
        """Return what status shows."""
        worker = self.worker if self.worker is not None and self.worker.alive else None
        done = worker.gauge.read() if worker is not None else None
        unwilling = self.state is InstanceState.READY and worker is not None and worker.unwilling
        devices = self._spec.devices
        state = "unready" if unwilling else self.state.value
        if self.state is InstanceState.READY and worker is None:
            state = InstanceState.BACKOFF.value  # as it will be when its end has been noted
        return messages.InstanceInfo(
            index=self.index,
            state=state,
            pid=worker.pid if worker is not None else None,
            device=devices[self.index % len(devices)] if devices else None,
            lanes=lanes,
            restarts=self._restarts,
            last_exit=self.last_exit,
            spare=spare,
            batches=done.answered if done is not None else 0,
            busy_s=done.busy_s if done is not None else None,
            ends=self._ends,
            version=self.version,
        )

    # ── the life of an instance ──────────────────────────────────────────────────────────────────

    async def _keep(self) -> None:
        failures = 0
        while True:
            try:
                await self._load()
                if not self.first.done():
                    self.first.set_result(None)
                since = asyncio.get_running_loop().time()
                last = await self._serve()
                healthy = asyncio.get_running_loop().time() - since > _HEALTHY_S
                if healthy or last.batches:
                    failures = 0
            except RemoteFailure as failure:
                self.last_exit = failure.text
                if not self.first.done():
                    self._change(InstanceState.FAILED)
                    self.first.set_exception(failure)
                    return
            failures += 1
            delay_s = self._policy.delay_s(failures)
            self._change(InstanceState.FAILED if delay_s is None else InstanceState.BACKOFF)
            await self._tell(None)
            if delay_s is None:
                return
            await asyncio.sleep(delay_s)
            self._restarts += 1
            self._change(InstanceState.STARTING)

    async def _load(self) -> None:
        """Start a worker and return when it is ready.

        Raises:
            RemoteFailure: it did not become ready; it has been ended.
        """
        self.worker = await self._start()
        await self._until_ready(self.worker)
        self._change(InstanceState.READY)
        await self._tell(self.worker.name)

    async def _start(self) -> Worker:
        worker = await self._start_worker(self._slot)
        self._workers.add(worker)
        worker.exited.add_done_callback(lambda _: self._workers.discard(worker))
        if isinstance(worker, WorkerProcess):  # a registrant's threads have no limits of ours
            self._set_aside(guard(worker, self._spec.limits))
        return worker

    async def _until_ready(self, worker: Worker) -> None:
        try:
            await _wait_any(worker.greeted, worker.ready, timeout_s=self._policy.start_timeout_s)
            if worker.greeted.done() and not worker.ready.done():
                if self.state is InstanceState.STARTING:
                    self._change(InstanceState.LOADING)
                await _wait_any(worker.ready, timeout_s=self._spec.load_timeout_s)
            self._check_loaded(worker)
        except RemoteFailure:
            await worker.stop(0)
            raise

    def _check_loaded(self, worker: Worker) -> None:
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
            worker.last_lines() or None,
        )

    async def _serve(self) -> messages.WorkerEnd:
        """Return how the worker ended when it has; until then exchange it whenever it is spent."""
        while True:
            worker = self.worker
            assert worker is not None  # `_load` came before
            await _wait_any(worker.exited, worker.spent)
            if not worker.exited.done():
                await self._exchange(worker, worker.spent.result())
            if worker.exited.done():
                end = await self._note_end(worker)
                if self.worker is worker:
                    return end

    async def _exchange(self, spent: Worker, why: str) -> None:
        """Load another worker beside a spent one, then end that; if it fails, the spent one serves on for a while."""
        _log.info("worker is replaced", **self._names(spent), why=why)
        try:
            fresh = await self._start()
            await self._until_ready(fresh)
        except RemoteFailure as failure:
            _log.error(
                "no replacement, the worker serves on", **self._names(spent), why=str(failure)
            )
            await asyncio.wait([spent.exited], timeout=self._policy.longest_delay_s)
            return
        self.worker = fresh
        self._restarts += 1
        await self._tell(fresh.name)
        self._set_aside(spent.end_after_batch())

    def _set_aside(self, doing: Coroutine[None, None, None]) -> None:
        """Have something done that this instance does not wait for."""
        task = asyncio.get_running_loop().create_task(doing)
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)

    async def _note_end(self, worker: Worker) -> messages.WorkerEnd:
        """Note how a worker ended, and end what it started."""
        await worker.stop(0)
        end = worker.end_record()
        self.last_exit = end.how
        self._ends = [*self._ends[1 - _ENDS_KEPT :], end]
        _log.warning(
            "worker ended",
            **self._names(worker),
            how=end.how,
            in_batch=end.in_batch,
            batches=end.batches,
            peak_memory=end.peak_memory,
        )
        return end

    def _names(self, worker: Worker) -> dict[str, object]:
        return {
            "model": self._spec.name,
            "instance": self.index,
            "worker": worker.name,
            "worker_pid": worker.pid,
        }

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
        """A keeper ends by an exception only through a fault of ours: say so, and let nobody wait for it."""
        if task.cancelled() or task.exception() is None:
            return
        _log.error("instance keeper failed", exc_info=task.exception())
        if not self.first.done():
            self.first.set_exception(
                RemoteFailure(ErrorKind.INTERNAL, f"a fault of the daemon: {task.exception()}")
            )


async def _wait_any(*futures: asyncio.Future[Any], timeout_s: float | None = None) -> None:
    await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
