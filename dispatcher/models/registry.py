"""The operations on models: registering, replacing, scaling, rolling back and unregistering them.

The registry decides whether each request may proceed, restores models after a start of the daemon, and hands them over
in an upgrade. served_models.py looks registrations up; deployer.py changes them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import structlog

from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.files.rundir import RuntimeDir
from pytriton.dispatcher.models.admission import check_devices, check_free, check_lease
from pytriton.dispatcher.models.background_changes import BackgroundChanges
from pytriton.dispatcher.models.client_bound_models import HostedModels
from pytriton.dispatcher.models.deployer import (
    ModelDeployer,
    OnServed,
    StillWanted,
    emit_on_failure,
)
from pytriton.dispatcher.models.load_slots import LoadSlots
from pytriton.dispatcher.models.persistence.registration_store import Persistence, RegistrationStore
from pytriton.dispatcher.models.persistence.restorer import (
    OnUnavailable,
    Restorer,
    ignore_unavailable,
)
from pytriton.dispatcher.models.persistence.state_dir import Entry, Store
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.models.served_models import ServedModels
from pytriton.dispatcher.models.server_starts import ServerStarts
from pytriton.dispatcher.server import own_repository
from pytriton.dispatcher.server.tritonserver import TritonServer
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import LOG_ONLY, Events
from pytriton.dispatcher.upgrade.snapshot import (
    HandOver,
    RegistrationState,
    UnusableHandOver,
)
from pytriton.dispatcher.workers.hosted_worker import Registrant
from pytriton.dispatcher.workers.memory_account import MemoryAccounts
from pytriton.dispatcher.workers.pool import AdoptWorker, ReportProgress, report_to_nobody
from pytriton.dispatcher.workers.worker_process import WorkerStarter

_log = structlog.get_logger(__name__)


class Registry:
    """The operations on the daemon's registrations.

    Attributes:
        served: the registrations.
        restoring: the persisted models that are not served.
        changes: notified when a model starts or stops being served.
        scaling_changes: notified when a model begins to resume, or when its autoscaling rules change.
        is_deploying: returns whether a registration of this name is being deployed or rolled back.
        server_starts: the models that tritonserver loads when it starts.
        accounts: the memory used by each model.
        load_slots: limits concurrent loads after a start.
        prestarted: the prestarted workers of suspended models.
        background_changes: the changes that the daemon makes by itself.
    """

    def __init__(
        self,
        config: DaemonConfig,
        rundir: RuntimeDir,
        server: TritonServer,
        start_worker: WorkerStarter,
        store: Store,
        events: Events = LOG_ONLY,
        accounts: MemoryAccounts | None = None,
        on_unavailable: OnUnavailable = ignore_unavailable,
    ) -> None:
        self.accounts = accounts or MemoryAccounts()
        self.load_slots = LoadSlots(self.accounts.until_deferred)
        self.restoring = Restorer(store.read(), events, self.load_slots, on_unavailable)
        self._models = rundir.models
        self.served = ServedModels(rundir.models, self.restoring)
        self._config = config
        self._server = server
        self._events = events
        self._store = RegistrationStore(store)
        self._deployer = ModelDeployer(
            config,
            rundir,
            server,
            start_worker,
            store=self._store,
            restoring=self.restoring,
            served=self.served,
            hosted=HostedModels(self._end_hosted),
            accounts=self.accounts,
            events=events,
        )
        self.changes, self.scaling_changes = self._deployer.changes, self._deployer.scaling_changes
        self.prestarted = self._deployer.prestarted
        self.is_deploying = self._deployer.is_deploying
        self.stopping = (
            False  #: the daemon is stopping: all models stop serving, but stay persisted
        )
        self.refusal = ""  #: why models may no longer be changed, although all keep serving
        self.background_changes = BackgroundChanges(
            self._deployer.reservations, self.served, server, lambda: self._config.grace_period_s
        )
        self.server_starts = ServerStarts(server, self.served, self._deployer, self.restoring)

    def problems(self) -> list[str]:
        """Return one sentence for each problem that an administrator should fix."""
        return [
            *self.restoring.problems,
            *(text for one in self.served for text in one.pool.problems()),
        ]

    @property
    def busy(self) -> bool:
        """Whether any worker process is running a batch."""
        return any(one.pool.busy for one in self.served.keys.values() if one.registrant is None)

    def use(self, config: DaemonConfig) -> None:
        """Apply changed settings. Worker settings apply to models registered from now on."""
        self._config = config
        self._deployer.use(config)

    async def register(
        self,
        request: messages.Register,
        payloads: Sequence[bytes],
        report: ReportProgress,
        registrant: Registrant | None = None,
        *,
        keep: bool = True,
        on_served: OnServed | None = None,
    ) -> Registration:
        """Serve a model, or fail without side effects. The caller must have checked the request (admission.py).

        Args:
            request: the registration
            payloads: its pickled callables and check
            report: sends progress to the client
            registrant: the process whose threads run the model; when it exits, the model is unregistered
            keep: persist the model in the state directory; False if its repository persists it
            on_served: called as soon as the model is serving

        Raises:
            RemoteFailure: the registration failed and was undone; a model that it would have replaced keeps serving.
        """
        spec = request.spec
        self._refuse_taken(request)
        server_wait = self._deployer.server_wait(spec.name, "registered", report)
        await server_wait.until_up()
        if request.replace:  # if a restore fails, there is nothing to replace, which is fine
            await server_wait.until_restored(spec.name)
        self.check_open(spec.name, "registered")
        own_repository.refuse_linked(self._models, spec.name)
        # A client that interrupts a registration may retry at once: wait here until the first one is undone.
        await self._deployer.reservations.until_rolled_back(spec.name)
        await self.background_changes.preempt(spec.name)
        self.check_open(spec.name, "registered")
        self._refuse_taken(request)
        persistence = Persistence.PERSISTED if keep else Persistence.EXTERNAL
        if request.ephemeral or registrant is not None:
            persistence = Persistence.EPHEMERAL
        former = self.served.names.get(spec.name)
        undoable = persistence is Persistence.PERSISTED and (former is None or former.kept)
        check_lease(spec, can_roll_back=undoable)
        before = {} if former is None else {"before": former.spec.instances}
        registration = await self._deployer.deploy(
            Entry(0, time.time(), spec, list(payloads)),
            former,
            report,
            persistence=persistence,
            registrant=registrant,
            on_served=on_served,
        )
        kind = kinds.REGISTERED if former is None else kinds.REPLACED
        registration.events.emit(kind, numbers={"instances": spec.instances, **before})
        return registration

    async def rollback(
        self, name: str, report: ReportProgress, still: StillWanted = lambda: None
    ) -> Registration:
        """Roll a model back to the registration that it replaced, even if the model could not be restored. No request
        fails.

        Raises:
            RemoteFailure: the model is unknown or has replaced nothing, the rollback failed, or `still` refused it.
                Nothing has changed.
        """
        await self._until_served(name, "rolled back", report)
        still()
        former = self._former(name)
        before = former.spec.instances
        with emit_on_failure(self._events, kinds.ROLLBACK_FAILED, name):
            registration = await self._roll_back(former, report, still)
        now = registration.spec.instances
        registration.events.emit(kinds.ROLLED_BACK, numbers={"instances": now, "before": before})
        return registration

    async def _roll_back(
        self, former: Registration | Entry, report: ReportProgress, still: StillWanted
    ) -> Registration:
        name = former.spec.name
        served = former if isinstance(former, Registration) else None
        if served is not None:
            served.check_persisted()
        previous = await self._store.previous(name)
        self.check_open(name, "rolled back")
        still()
        if self._former(name) is not former:
            text = (
                f"another client has replaced model {name} in the meantime. Check it, and try again"
            )
            raise RemoteFailure(ErrorKind.EXISTS, text)
        if previous is None:
            text = f"model {name} has not been replaced since it was first registered: there is nothing to roll back to"
            raise RemoteFailure(ErrorKind.INVALID, text)
        check_devices(previous.spec)
        # The previous registration may have been provisional; an explicit rollback makes it permanent.
        spec = msgspec.structs.replace(previous.spec, lease=None)
        return await self._deployer.deploy(
            msgspec.structs.replace(previous, spec=spec), served, report
        )

    def _former(self, name: str) -> Registration | Entry:
        """Return the model with this name, even if it could not be restored. Raise RemoteFailure if there is none."""
        return (
            self.served.names.get(name)
            or self.restoring.failures().get(name)
            or self.served.by_name(name)
        )

    async def undo(self, name: str, still: StillWanted) -> None:
        """Roll a persisted model back to the registration that it replaced, or remove it if it replaced none.

        Raises:
            RemoteFailure: `still` refused it, or the previous registration cannot be served.
        """
        if await self._store.is_first(name):
            await self.unregister(name, still)
        else:
            await self.rollback(name, report_to_nobody, still)

    async def restore(self) -> None:
        """Restore the persisted models. Return once each of them is served or has failed."""

        async def register(entry: Entry) -> None:
            check_devices(entry.spec)
            if entry.spec.name in self.served:
                text = f"another model named {entry.spec.name!r} is served"
                raise RemoteFailure(ErrorKind.EXISTS, text)
            await self._deployer.deploy(
                entry, None, report_to_nobody, persistence=Persistence.ALREADY_PERSISTED
            )

        await self.restoring.run(register)

    async def unregister(self, name: str, still: StillWanted = lambda: None) -> None:
        """Stop serving a model and delete it: requests in flight are answered, then its workers exit.

        Raises:
            RemoteFailure: the model is unknown, another change is in progress, `still` refused it, or the daemon is
                stopping.
        """
        still()
        if self.stopping:  # the next start restores all persisted models
            self.check_open(name, "unregistered")
        await self._server.placed.wait()
        await self.restoring.cancel(name)
        await self.background_changes.preempt(name)
        if not self.restoring.knows(name):
            still()
        if name in self.served.names:
            try:
                await self._deployer.undeploy(name, "it was unregistered")
            except RemoteFailure:
                if name not in self.served.names:  # whether or not Triton answers with an error
                    await self._store.remove(name)
                raise
            self.restoring.forget(name)
            await self._store.remove(name)
        elif self.restoring.knows(name):
            # A registration that replaces it has reserved the name. Deleting the model before that one is done would
            # leave a file that cannot be unregistered, and that the next start restores.
            with self._deployer.reservations.reserve(name):
                self.restoring.forget(name)
                await self._store.remove(name)
            await self.restoring.on_unavailable(name)
        else:
            self._deployer.reservations.check(name)
            self.served.by_name(name)  # raises, and lists the known models
        self.accounts.sizes.pop(name, None)
        self._events.emit(kinds.UNREGISTERED, model=name)

    async def end(
        self, registration: Registration, why: str = "the process that registered it has exited"
    ) -> None:
        """Stop serving a model that is not persisted. Do nothing if another one has replaced it."""
        name = registration.spec.name
        await self._server.placed.wait()
        await self._deployer.reservations.until_free(name)
        if self.served.names.get(name) is registration and not self.stopping:
            await self._deployer.undeploy(name, why)
            self._events.emit(kinds.UNREGISTERED, model=name, reason=why)

    async def scale(
        self,
        name: str,
        instances: int,
        report: ReportProgress,
        autoscale: messages.Autoscale | None = None,
    ) -> Registration:
        """Change a model's number of instances, and thus of its workers. No request fails.

        With `autoscale`, the model follows its load from now on, and `instances` is ignored.

        Raises:
            RemoteFailure: the model is unknown or cannot have this number of instances, a new worker failed and the
                change was undone, or an instance that had lost its worker did not get one.
        """
        await self._until_served(name, "scaled", report)
        registration = self.served.by_name(name)
        before = registration.spec.instances
        if autoscale is not None:
            instances = min(max(before, autoscale.least), autoscale.most)
        wanted = {"instances": instances, "before": before}
        with emit_on_failure(self._events, kinds.SCALE_FAILED, name, numbers=wanted):
            await self._scale(registration, instances, report, autoscale)
        return registration

    async def _scale(
        self,
        registration: Registration,
        instances: int,
        report: ReportProgress,
        autoscale: messages.Autoscale | None,
    ) -> None:
        former, entry = registration.spec, registration.entry() if registration.kept else None
        name, before, grace_s = former.name, former.instances, self._config.grace_period_s
        scale = partial(registration.scale, server=self._server, report=report, grace_s=grace_s)
        with self._deployer.reservations.reserve(name):
            undo = partial(scale, before, autoscale=former.autoscale)
            async with self._store.amending(entry, undo, instances=instances, autoscale=autoscale):
                await scale(instances, autoscale=autoscale)
            registration.events.emit(
                kinds.SCALED, numbers={"instances": instances, "before": before}
            )
            try:
                await registration.retry_now(report)
            except RemoteFailure as failure:
                text = f"model {name} now has {instances} instances, but {failure.text}. The daemon retries"
                raise RemoteFailure(failure.kind, text, failure.traceback) from failure

    async def amend(
        self, name: str, still: StillWanted = lambda: None, **changes: object
    ) -> Registration:
        """Change fields of a model's declaration, in memory and on disk, without affecting its workers.

        Raises:
            RemoteFailure: the model is unknown, another change is in progress, the change cannot be persisted, or
                `still` refused it.
        """
        await self.background_changes.preempt(name)
        still()
        registration = self.served.by_name(name)
        with self._deployer.reservations.reserve(name):
            former = registration.spec
            registration.spec = msgspec.structs.replace(former, **changes)
            try:
                if registration.kept:
                    await self._store.amend(registration.entry(), **changes)
            except BaseException:
                registration.spec = former
                raise
        return registration

    async def stop(self) -> None:
        """Cancel the registrations in progress, then stop serving all models. They stay persisted."""
        self.stopping = True
        self.background_changes.stop()
        self.restoring.stop()
        await self._deployer.cancel_all()
        ends = [
            self._deployer.undeploy(name, "the daemon is stopping", last=True)
            for name in self.served.names
        ]
        results = await asyncio.gather(*ends, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                _log.warning("could not stop a model", error=str(result))

    async def _end_hosted(self, registration: Registration) -> None:
        name = registration.spec.name
        await self._deployer.reservations.until_free(name)
        if self.served.names.get(name) is registration and not self.stopping:
            await self.unregister(name)

    def _refuse_taken(self, request: messages.Register) -> None:
        name = request.spec.name
        current = self.served.names.get(name)
        check_free(
            request, None if current is None else current.spec, self.restoring.is_expected(name)
        )

    async def until_up(self, name: str, done: str, report: ReportProgress) -> None:
        """Wait until tritonserver is up; `done` completes the error "model m was not ...".

        Raises:
            RemoteFailure: a timeout, or the daemon is stopping.
        """
        await self._deployer.server_wait(name, done, report).until_up()

    async def _until_served(self, name: str, done: str, report: ReportProgress) -> None:
        """Wait until tritonserver is up and the model is restored."""
        self.check_open(name, done)  # a stopping daemon must not answer "unknown model"
        if not self.restoring.is_expected(name):
            self._former(name)  # fail early if the model is unknown
        server_wait = self._deployer.server_wait(name, done, report)
        await server_wait.until_up()
        await server_wait.until_restored(name)
        await self.background_changes.preempt(name)
        self.check_open(name, done)

    def check_open(self, name: str, done: str) -> None:
        """Check that models may be changed now.

        Raises:
            RemoteFailure: they may not. `done` completes the error "model m was not ...".
        """
        why = "the daemon is stopping" if self.stopping else self.refusal
        if why:
            raise RemoteFailure(ErrorKind.UNAVAILABLE, f"model {name} was not {done}: {why}")

    # ── upgrade ──────────────────────────────────────────────────────────────────────────────────

    @property
    def serial(self) -> int:
        """Number of the last registration."""
        return self._deployer.serial

    def why_not_quiescent(self) -> str:
        """Describe a change in progress that prevents an upgrade; "" if there is none."""
        under_way = self.restoring.unfinished
        if under_way is not None:
            return f"model {under_way} is being restored"
        for key, registration in self.served.keys.items():
            name = registration.spec.name
            if self.served.names.get(name) is not registration:
                return f"model {name} is being registered, replaced or unregistered"
            if not self._deployer.reservations.is_free(name) or not registration.is_quiescent:
                return f"a worker of model {key.partition('#')[0]} is being started or stopped"
        return ""

    def hand_over(self, owner_of: Callable[[Registration], int | None]) -> list[RegistrationState]:
        """Return the state of all models, which must be quiescent. `owner_of` returns the pid a model is bound to."""
        return [one.hand_over(owner_of(one)) for one in self.served]

    def adopt(self, state: HandOver, adopt_worker: AdoptWorker) -> list[Registration]:
        """Adopt the models that the previous version of this process served.

        Raises:
            UnusableHandOver: the state directory lacks the payloads of one of them.
        """
        self._deployer.serial = state.serials[1]
        for counters in state.counters:
            self.served.counter_registry.of(counters.name).adopt(counters)
        payloads = {one.spec.name: one.payloads for one in self.restoring.entries()}
        adopted = []
        for one in state.registrations:
            if one.kept and one.spec.name not in payloads:
                raise UnusableHandOver(f"the state directory lacks model {one.spec.name}")
            entry = Entry(
                0,
                one.registered_at,
                one.spec,
                payloads[one.spec.name] if one.kept else one.payloads,
            )
            adopted.append(self._deployer.adopt(one, entry, adopt_worker))
        self.changes.notify()
        return adopted
