"""Starting of one registration's workers, and the index of workers by name, which keeps exited ones for a while."""

from __future__ import annotations

from collections.abc import Callable

from pytriton._protocol import messages
from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.runtime.tasks import uninterrupted
from pytriton.dispatcher.workers.memory_account import Account
from pytriton.dispatcher.workers.model_counters import ModelCounters
from pytriton.dispatcher.workers.prestarted import PrestartedWorkers
from pytriton.dispatcher.workers.process.registrant import Registrant
from pytriton.dispatcher.workers.process.worker import Worker
from pytriton.dispatcher.workers.process.worker_factory import WorkerStarter

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
