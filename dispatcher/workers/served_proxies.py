"""The proxies of one registration: each gets a worker, and what one worker has too many goes to another."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.messages import Verdict
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import Events
from pytriton.dispatcher.workers import concurrent_loads
from pytriton.dispatcher.workers.instances import Instances
from pytriton.dispatcher.workers.process.worker import Worker
from pytriton.dispatcher.workers.routing import Routes
from pytriton.dispatcher.workers.sleep import Sleep


class ServedProxies:
    """The proxies of one pool, each with its worker; the length is how many are attached.

    Args:
        instances: of the pool
        workers: those that it has and had, by name
        sleep: of its workers
        changed: is notified when a worker came or went
        wake_up: starts the workers if they sleep
        events: takes what is decided
    """

    def __init__(
        self,
        instances: Instances,
        workers: Mapping[str, Worker],
        sleep: Sleep,
        changed: asyncio.Condition,
        wake_up: Callable[[], None],
        events: Events,
    ) -> None:
        self._instances = instances
        self._workers = workers
        self._sleep = sleep
        self._changed = changed
        self._wake_up = wake_up
        self._events = events
        self._routes = Routes(lambda: instances.lanes)
        #: The last question of each proxy that waits for a worker.
        self._questions: dict[str, object] = {}
        #: Workers that have been asked to give a proxy away, and have not yet.
        self._asked: set[str] = set()
        self._aside: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """How many proxies are attached."""
        return len(self._routes)

    def lanes_of(self, worker: str) -> int:
        """How many proxies a worker serves."""
        return self._routes.lanes_of(worker)

    def hand_over(self) -> dict[str, str]:
        """Return each proxy with its worker, for the next version of this process."""
        return self._routes.table()

    def adopt(self, table: Mapping[str, str]) -> None:
        """Go on with the proxies of a former version of this process."""
        self._routes.adopt(table)

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
            RemoteFailure: no worker will come, or not soon; or it has ended meanwhile, or asked anew.
        """
        question = self._questions[proxy] = object()
        try:
            return await self._route(proxy, lost, avoid, version, question, batch=batch)
        finally:
            if self._questions.get(proxy) is question:
                del self._questions[proxy]

    async def _route(
        self,
        proxy: str,
        lost: str | None,
        avoid: Sequence[str],
        version: int,
        question: object,
        *,
        batch: bool,
    ) -> messages.Attached:
        instances, spec = self._instances, self._instances.spec
        own = instances.own_versions
        if own and version not in own:
            text = f"model {spec.name} has no version {version}; it has {own}"
            raise RemoteFailure(ErrorKind.INVALID, text)
        self._forget(proxy)
        wake = 0  # the number of that which it waits for
        if lost is not None and lost in self._workers:
            self._workers[lost].is_deaf()
        async with self._changed:
            while True:
                if self._questions.get(proxy) is not question:
                    raise self._gone(proxy, version)  # a worker for it would be kept from others
                present = instances.ready(version)
                ready = [name for name in present if name != lost and name not in avoid]
                if self._sleep.now and not batch:
                    self._routes.rest(proxy)
                    return messages.Attached("", "", spec.execution_timeout_s)
                self._sleep.raise_refusal(wake)
                self._wake_up()
                wake = self._sleep.wakes
                if ready:
                    worker = self._workers[self._routes.assign(proxy, ready)]
                    self._do_aside(self.balance())  # a worker may lack more than this one
                    return messages.Attached(
                        worker.name, str(worker.lane_path), spec.execution_timeout_s
                    )
                if instances.stopping or instances.is_hopeless(version):
                    raise RemoteFailure(ErrorKind.UNAVAILABLE, instances.why_nobody(version))
                if avoid and present:
                    text = f"model {spec.name}: all its workers wait for this very request"
                    raise RemoteFailure(ErrorKind.UNAVAILABLE, text)
                left_s = self._sleep.left_s()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), left_s)

    def _gone(self, proxy: str, version: int) -> RemoteFailure:
        """Return why a question is not answered; a proxy that was given up may still have the batch, and tells it."""
        instances = self._instances
        if instances.stopping or instances.is_hopeless(version):
            return RemoteFailure(ErrorKind.UNAVAILABLE, instances.why_nobody(version))
        text = f"proxy {proxy} of model {instances.spec.name} has ended, or has asked anew"
        return RemoteFailure(ErrorKind.NOT_FOUND, text)

    def judge_call(self, chain: Sequence[str], waiting: Sequence[str]) -> Verdict:
        """Decide about a call that came back to this model; `waiting` workers wait for it."""
        ready = self._instances.ready()
        if not ready or any(name not in waiting for name in ready):
            return Verdict("retry")
        name = self._instances.spec.name
        return Verdict(
            "fail",
            f"the calls go round in a circle, {' → '.join([*chain, name])}, and can never end: all "
            f"{concurrent_loads.workers(len(ready))} of model {name} wait for this one. Break the circle, or register "
            f"{name} with more instances than it goes round",
        )

    def detach(self, proxy: str) -> None:
        """Forget a proxy that is gone, and what it has asked."""
        self._questions.pop(proxy, None)
        self._forget(proxy)
        self._do_aside(self.balance())

    def forget_all(self) -> None:
        """Forget all proxies, and what they have asked: tritonserver has ended."""
        self._questions.clear()
        self._routes.clear()

    def rest_all_of(self, workers: Collection[str]) -> None:
        """Leave the proxies of these workers without one: the model falls asleep."""
        self._routes.rest_all_of(workers)

    async def balance(self) -> None:
        """Have every worker without a proxy get one that another has too many; each gives one at a time."""
        for idle in self._instances.ready():
            giver = self._routes.too_many_for(idle, partial(self._alike, idle))
            if giver is not None and giver not in self._asked:
                self._asked.add(giver)
                await self._withdraw(self._workers[giver], f"worker {idle} has too few")

    async def withdraw_all(self, worker: Worker, why: str) -> None:
        """Have a worker send all its proxies elsewhere, each after what it has under way."""
        for _ in range(self._routes.lanes_of(worker.name)):
            await self._withdraw(worker, why)

    async def _withdraw(self, worker: Worker, why: str) -> None:
        """Have a worker send one of its proxies elsewhere."""
        self._events.tell(
            kinds.LANE_WITHDRAWN, instance=worker.instance, worker=worker.name, reason=why
        )
        await worker.withdraw_lane()

    def _forget(self, proxy: str) -> None:
        """Remove a proxy's route; whichever worker had it may be asked for another one again."""
        self._asked.discard(self._routes.worker_of(proxy) or "")
        self._routes.forget(proxy)

    def _alike(self, one: str, other: str) -> bool:
        """Whether two workers serve the same version, if they serve one only."""
        if not self._instances.own_versions:
            return True
        return other in self._workers and self._workers[other].version == self._workers[one].version

    def _do_aside(self, doing: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(doing)
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)
