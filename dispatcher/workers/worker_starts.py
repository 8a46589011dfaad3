"""The starts of one registration's workers: each is known by its name from then on, also for a while after its end."""

from __future__ import annotations

from collections.abc import Callable

from pytriton._protocol import messages
from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.runtime.tasks import uninterrupted
from pytriton.dispatcher.workers.memory_account import Account
from pytriton.dispatcher.workers.model_counters import Tally
from pytriton.dispatcher.workers.prestarted import PrestartedWorkers
from pytriton.dispatcher.workers.process.registrant import Registrant
from pytriton.dispatcher.workers.process.worker import Worker
from pytriton.dispatcher.workers.process.worker_factory import StartWorker

#: Ended workers whose end can still be explained to proxies.
_ENDED_KEPT = 16


class WorkerStarts:
    """Starts workers, or takes the one that is parked.

    Args:
        start_worker: starts one
        registrant: in whose threads they run; None: they are processes
        workers: by name; those that are started come here
        tally: counts them
        parking: has one while the model sleeps
        account: of their memory
        forget: is told the name of one that ended long ago
    """

    def __init__(
        self,
        start_worker: StartWorker,
        registrant: Registrant | None,
        workers: dict[str, Worker],
        tally: Tally,
        parking: PrestartedWorkers,
        account: Account,
        forget: Callable[[str], None],
    ) -> None:
        self._start_worker = start_worker
        self._registrant = registrant
        self._workers = workers
        self._tally = tally
        self._parking = parking
        self._account = account
        self._forget = forget

    async def start(self, spec: messages.ModelSpec, slot: int) -> Worker:
        """Return the worker of a slot, which loads the model.

        Raises:
            RemoteFailure: it cannot be started.
        """
        worker = self._parking.take(self._account) if slot == 0 else None
        if worker is None:
            worker = await self._new(spec, slot)
        else:
            await self._unpark(worker)
        self._tally.add(worker)
        return worker

    async def _unpark(self, worker: Worker) -> None:
        """Have one that was parked load; if that cannot be, it ends, for nobody else has it."""
        try:
            await worker.unpark()
        except BaseException:
            await uninterrupted(worker.stop(0))
            raise

    def adopt(self, worker: Worker) -> None:
        """Know a worker that a former version of this process has started."""
        self._workers[worker.name] = worker
        self._tally.add(worker, adopted=True)

    async def park(self, spec: messages.ModelSpec, still: Callable[[], bool]) -> None:
        """Have a worker at hand that needs only load the model, if that `still` sleeps once it is started."""
        if not self._parking.room:
            return
        try:
            worker = await self._new(spec, 0)
        except RemoteFailure:  # the next wake tells
            return
        worker.parked = True
        if still():
            await self._parking.put(self._account, worker)
        else:
            await worker.stop(0)

    async def end_parked(self) -> None:
        """No worker is to be at hand any more."""
        await self._parking.drop(self._account)

    async def _new(self, spec: messages.ModelSpec, slot: int) -> Worker:
        worker = await self._start_worker(spec, slot, self._registrant)
        ended = [name for name, one in self._workers.items() if not one.alive]
        for name in ended[:-_ENDED_KEPT]:
            del self._workers[name]
            self._forget(name)
        self._workers[worker.name] = worker
        return worker
