"""Routing of proxies to workers: which worker serves a proxy, and when a proxy moves to another one.

Each worker should serve `lanes` proxies. A proxy is assigned to a worker that serves some proxies but fewer than
`lanes`, otherwise to the worker that serves the fewest. So standby workers stay free until another worker exits.
When a worker exits, its proxies are reassigned at once. When its replacement is ready, overloaded workers give it
their surplus proxies.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.messages import Verdict
from pytriton.dispatcher.runtime.tasks import run_in_background
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import Events
from pytriton.dispatcher.workers.instances import Instances
from pytriton.dispatcher.workers.suspension import Suspension
from pytriton.dispatcher.workers.worker import Worker


class ProxyRouter:
    """Assigns workers to the proxies of one pool. Its length is the number of attached proxies.

    Args:
        instances: Instances of the pool.
        workers: Current and former workers, by name.
        suspension: Suspension state of the pool's workers.
        changed: Notified when the set of workers changes.
        resume: Starts the workers if the model is suspended.
        events: Receives the events about rebalancing.
    """

    def __init__(
        self,
        instances: Instances,
        workers: Mapping[str, Worker],
        suspension: Suspension,
        changed: asyncio.Condition,
        resume: Callable[[], None],
        events: Events,
    ) -> None:
        self._instances = instances
        self._workers = workers
        self._suspension = suspension
        self._changed = changed
        self._resume = resume
        self._events = events
        self._routes = Routes(lambda: instances.lanes)
        #: Identifies the latest request of each proxy that waits for a worker.
        self._requests: dict[str, object] = {}
        #: Workers that have been asked to give up a proxy and have not done so yet.
        self._withdrawing: set[str] = set()
        self._background_tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """Return the number of attached proxies."""
        return len(self._routes)

    def lanes_of(self, worker: str) -> int:
        """Return the number of proxies that a worker serves."""
        return self._routes.lanes_of(worker)

    def hand_over(self) -> dict[str, str]:
        """Return each proxy's worker, to be handed over in an upgrade."""
        return dict(self._routes.worker_of)

    def adopt(self, table: Mapping[str, str]) -> None:
        """Restore the routes from before an upgrade."""
        self._routes.worker_of.update(table)

    async def route(
        self,
        proxy: str,
        lost: str | None,
        avoid: Sequence[str] = (),
        version: int = 0,
        *,
        batch: bool = False,
    ) -> messages.Attached:
        """Wait until a worker is ready, assign it to `proxy`, and return it.

        If the model is suspended, a proxy that has a batch resumes it. A proxy without a batch gets no worker, and asks
        again once it has a batch.

        Args:
            proxy: Name of the proxy's instance.
            lost: A worker that the proxy could not reach.
            avoid: Workers that are waiting for this batch, if it is a call between models.
            version: The version that the proxy serves; only used if each version has its own workers.
            batch: Whether a batch is waiting for the worker.

        Raises:
            RemoteFailure: No worker is expected soon, or the proxy has exited or sent a newer request.
        """
        request = self._requests[proxy] = object()
        try:
            return await self._route(proxy, lost, avoid, version, request, batch=batch)
        finally:
            if self._requests.get(proxy) is request:
                del self._requests[proxy]

    async def _route(
        self,
        proxy: str,
        lost: str | None,
        avoid: Sequence[str],
        version: int,
        request: object,
        *,
        batch: bool,
    ) -> messages.Attached:
        instances, spec = self._instances, self._instances.spec
        own = instances.own_versions
        if own and version not in own:
            text = f"model {spec.name} has no version {version}; it has {own}"
            raise RemoteFailure(ErrorKind.INVALID, text)
        self._forget(proxy)
        resume = 0  # number of the resume it waits for
        if lost is not None and lost in self._workers:
            self._workers[lost].connection_failed()
        async with self._changed:
            while True:
                if self._requests.get(proxy) is not request:
                    # Do not assign a worker that others could use.
                    raise self._outdated(proxy, version)
                present = instances.ready(version)
                ready = [name for name in present if name != lost and name not in avoid]
                if self._suspension.in_effect and not batch:
                    self._routes.release(proxy)
                    return messages.Attached("", "", spec.execution_timeout_s)
                self._suspension.raise_refusal(resume)
                self._resume()
                resume = self._suspension.resumes
                if ready:
                    worker = self._workers[self._routes.assign(proxy, ready)]
                    # The worker may need more proxies.
                    run_in_background(self._background_tasks, self.balance())
                    return messages.Attached(
                        worker.name, str(worker.lane_path), spec.execution_timeout_s
                    )
                if instances.stopping or instances.is_crash_looping(version):
                    raise RemoteFailure(ErrorKind.UNAVAILABLE, instances.why_no_worker(version))
                if avoid and present:
                    text = f"model {spec.name}: all its workers wait for this request"
                    raise RemoteFailure(ErrorKind.UNAVAILABLE, text)
                left_s = self._suspension.left_s()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), left_s)

    def _outdated(self, proxy: str, version: int) -> RemoteFailure:
        """Return the failure with which an outdated request is answered.

        If the proxy still has the batch, clients get the failure's text.
        """
        instances = self._instances
        if instances.stopping or instances.is_crash_looping(version):
            return RemoteFailure(ErrorKind.UNAVAILABLE, instances.why_no_worker(version))
        text = (
            f"proxy {proxy} of model {instances.spec.name} has exited, or has sent a newer request"
        )
        return RemoteFailure(ErrorKind.NOT_FOUND, text)

    def judge_call(self, chain: Sequence[str], waiting: Sequence[str]) -> Verdict:
        """Decide whether a call that leads back to this model may run. The workers in `waiting` are waiting for this
        call.
        """
        ready = self._instances.ready()
        if not ready or any(name not in waiting for name in ready):
            return Verdict("retry")
        name = self._instances.spec.name
        return Verdict(
            "fail",
            f"the calls form a cycle, {' → '.join([*chain, name])}, and would deadlock: all "
            f"{workers_text(len(ready))} of model {name} are waiting for this one. Break the cycle, or register "
            f"{name} with enough instances for all nested calls",
        )

    def detach(self, proxy: str) -> None:
        """Forget a proxy that has exited, and its pending request."""
        self._requests.pop(proxy, None)
        self._forget(proxy)
        run_in_background(self._background_tasks, self.balance())

    def forget_all(self) -> None:
        """Forget all proxies and their pending requests, because tritonserver has exited."""
        self._requests.clear()
        self._routes.worker_of.clear()

    def release_workers(self, workers: Collection[str]) -> None:
        """Keep the proxies of these workers attached, but without a worker, because the model is suspended."""
        self._routes.release_workers(workers)

    async def balance(self) -> None:
        """Move surplus proxies to workers that have too few. Each worker gives up one proxy at a time."""
        for idle in self._instances.ready():
            giver = self._routes.giver_for(idle, partial(self._serves_same_version, idle))
            if giver is not None and giver not in self._withdrawing:
                self._withdrawing.add(giver)
                await self._withdraw(self._workers[giver], f"worker {idle} has too few")

    async def withdraw_all(self, worker: Worker, why: str) -> None:
        """Move all proxies of a worker to others, each after its current batch."""
        for _ in range(self._routes.lanes_of(worker.name)):
            await self._withdraw(worker, why)

    async def _withdraw(self, worker: Worker, why: str) -> None:
        """Ask a worker to give up one of its proxies."""
        self._events.emit(
            kinds.LANE_WITHDRAWN, instance=worker.instance, worker=worker.name, reason=why
        )
        await worker.withdraw_lane()

    def _forget(self, proxy: str) -> None:
        """Remove a proxy's route. After that, its worker may be asked to give up another proxy."""
        self._withdrawing.discard(self._routes.worker_of.get(proxy, ""))
        self._routes.forget(proxy)

    def _serves_same_version(self, one: str, other: str) -> bool:
        """Return whether two workers serve the same versions."""
        if not self._instances.own_versions:
            return True
        return other in self._workers and self._workers[other].version == self._workers[one].version


class Routes:
    """The routing table of one registration, with the rules for choosing a worker.

    Args:
        lanes: Returns how many proxies each worker should currently serve.

    Attributes:
        worker_of: Worker of each proxy; "" for a proxy that is attached without a worker.
    """

    def __init__(self, lanes: Callable[[], int] = lambda: 1) -> None:
        self.worker_of: dict[str, str] = {}
        self._lanes = lanes

    def __len__(self) -> int:
        """Return the number of attached proxies."""
        return len(self.worker_of)

    def lanes_of(self, worker: str) -> int:
        """Return the number of proxies that a worker serves."""
        return sum(name == worker for name in self.worker_of.values())

    def assign(self, proxy: str, ready: Sequence[str]) -> str:
        """Assign `proxy` to one of the ready workers, and return the worker's name."""
        self.forget(proxy)
        worker = min(ready, key=self._burden)
        self.worker_of[proxy] = worker
        return worker

    def _burden(self, worker: str) -> tuple[int, int]:
        count = self.lanes_of(worker)
        return (0, -count) if 0 < count < self._lanes() else (1, count)

    def release(self, proxy: str) -> None:
        """Keep a proxy attached, but without a worker, because its model is suspended."""
        self.worker_of[proxy] = ""

    def release_workers(self, workers: Collection[str]) -> None:
        """Keep the proxies of these workers attached, but without a worker."""
        for proxy, worker in self.worker_of.items():
            if worker in workers:
                self.release(proxy)

    def forget(self, proxy: str) -> None:
        """Remove the route of a proxy that has exited or is about to be reassigned."""
        self.worker_of.pop(proxy, None)

    def giver_for(self, idle: str, alike: Callable[[str], bool] = lambda _: True) -> str | None:
        """Return the worker from which `idle` should get a proxy; None if no worker has too many, or `idle` has enough.

        `alike` returns whether a worker serves the same version as `idle`.
        """
        givers = {name for name in self.worker_of.values() if name and alike(name)}
        if not givers or self.lanes_of(idle) >= self._lanes():
            return None
        busiest = max(givers, key=self.lanes_of)
        return busiest if self.lanes_of(busiest) > self._lanes() else None


def workers_text(count: int) -> str:
    """Return a number of workers as text, such as "2 workers"."""
    return "1 worker" if count == 1 else f"{count} workers"
