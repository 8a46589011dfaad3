"""Deploys models: serves new ones, replaces them, and removes them.

A change is all or nothing, and each name has at most one change at a time.

write entry (uncommitted) ──▶ workers, tritonserver ──▶ commit, take the name ──▶ stop the previous registration
                                       └─ failure: undo everything; the previous registration keeps serving
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import structlog

from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.files.rundir import RuntimeDir
from pytriton._protocol.messages.model_spec import registration_digest
from pytriton.dispatcher.models.client_bound_models import HostedModels
from pytriton.dispatcher.models.persistence.registration_store import (
    PendingChange,
    Persistence,
    RegistrationStore,
    finish,
)
from pytriton.dispatcher.models.persistence.restorer import Restorer
from pytriton.dispatcher.models.persistence.state_dir import Entry
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.models.served_models import ServedModels
from pytriton.dispatcher.models.server_wait import ServerWait
from pytriton.dispatcher.runtime.logs import close_model_log
from pytriton.dispatcher.runtime.tasks import ChangeSignal, uninterrupted
from pytriton.dispatcher.server import own_repository
from pytriton.dispatcher.server.tritonserver import TritonServer
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import LOG_ONLY, Events
from pytriton.dispatcher.telemetry.events.kinds import EventKind
from pytriton.dispatcher.upgrade.snapshot import RegistrationState
from pytriton.dispatcher.workers.hosted_worker import Registrant
from pytriton.dispatcher.workers.memory_account import MemoryAccounts
from pytriton.dispatcher.workers.pool import AdoptWorker, ReportProgress
from pytriton.dispatcher.workers.prestarted import PrestartedWorkers
from pytriton.dispatcher.workers.supervisor import RestartPolicy
from pytriton.dispatcher.workers.suspension import ResumeBounds
from pytriton.dispatcher.workers.worker_process import WorkerStarter

_log = structlog.get_logger(__name__)

#: Called when a registration starts to serve.
OnServed = Callable[[Registration], None]
#: Called just before a change begins; raises RemoteFailure if the change is no longer wanted.
StillWanted = Callable[[], object]


class Reservations:
    """The names of models being registered, unregistered or scaled, each with the task that is making the change."""

    def __init__(self) -> None:
        self._busy: dict[str, asyncio.Task[object]] = {}
        self._rolled_back: set[str] = set()

    def is_free(self, name: str) -> bool:
        """Return whether no change is in progress for this name."""
        return name not in self._busy

    def holder(self, name: str) -> asyncio.Task[object] | None:
        """Return the task that is making a change for this name, or None."""
        return self._busy.get(name)

    def check(self, name: str) -> None:
        """Check that no change is in progress for this name.

        Raises:
            RemoteFailure: a change is in progress.
        """
        if name in self._busy:
            raise RemoteFailure(
                ErrorKind.EXISTS,
                f"model {name!r} is being registered or unregistered by another client",
            )

    @contextmanager
    def reserve(self, name: str) -> Iterator[asyncio.Task[object]]:
        """Reserve a name until the end of the block, and yield the current task.

        Raises:
            RemoteFailure: the name is already reserved.
        """
        self.check(name)
        task = asyncio.current_task()
        assert task is not None  # handlers run in tasks
        self._busy[name] = task
        try:
            yield task
        finally:
            del self._busy[name]

    @contextmanager
    def rolling_back(self, name: str) -> Iterator[None]:
        """Mark a reserved name as being rolled back until the end of the block."""
        self._rolled_back.add(name)
        try:
            yield
        finally:
            self._rolled_back.discard(name)

    async def until_rolled_back(self, name: str) -> None:
        """If a change for this name is being rolled back, wait until the rollback is done."""
        while name in self._rolled_back:
            await asyncio.wait([self._busy[name]])

    async def until_free(self, name: str) -> None:
        """Wait until no change is in progress for this name."""
        while name in self._busy:
            await asyncio.wait([self._busy[name]])

    async def until_all_free(self) -> None:
        """Wait until all tasks that currently hold a name are done."""
        await asyncio.gather(*self._busy.values(), return_exceptions=True)


class ModelDeployer:
    """Deploys, replaces and removes models; nothing else changes the table of registrations.

    Args:
        config: settings of the daemon; `use` replaces them
        rundir: contains tritonserver's repository
        server: loads the proxies
        start_worker: starts the workers of all registrations
        store: the persisted models
        restoring: the persisted models that are not served yet
        served: the table of registrations
        hosted: unregisters a model in threads of a process when that process exits
        accounts: the memory used by each model
        events: receives events about models

    Attributes:
        changes: notified when a model starts or stops being served.
        scaling_changes: notified when a model begins to resume, or when its autoscaling rules change.
        reservations: the names that are being changed.
    """

    def __init__(
        self,
        config: DaemonConfig,
        rundir: RuntimeDir,
        server: TritonServer,
        start_worker: WorkerStarter,
        *,
        store: RegistrationStore,
        restoring: Restorer,
        served: ServedModels,
        hosted: HostedModels,
        accounts: MemoryAccounts | None = None,
        events: Events = LOG_ONLY,
    ) -> None:
        self.changes = ChangeSignal()
        self.scaling_changes = ChangeSignal()
        self.reservations = Reservations()
        self._late_undos: set[asyncio.Future[None]] = set()
        self._rundir = rundir
        self._server = server
        self._start_worker = start_worker
        self._store = store
        self._restoring = restoring
        self._served = served
        self._hosted = hosted
        self._events = events
        #: Number of the last registration.
        self.serial = 0
        self._registering: set[asyncio.Task[object]] = set()
        self._is_stopping = False
        self.prestarted = PrestartedWorkers(config.prestarted_workers)
        self._accounts = accounts or MemoryAccounts()
        self.use(config)

    def use(self, config: DaemonConfig) -> None:
        """Apply changed settings. Worker settings apply to models registered from now on."""
        self._config = config
        self._policy = _policy(config)
        self.prestarted.max_workers = config.prestarted_workers

    def server_wait(self, name: str, done: str, report: ReportProgress) -> ServerWait:
        """Return an object that waits on behalf of a request; `done` completes the error "model m was not ..."."""
        what = f"model {name} was not {done}"
        return ServerWait(
            what, self._server, self._restoring, report, self._config.server_wait_timeout_s
        )

    def is_deploying(self, name: str) -> bool:
        """Return whether a model of this name is being deployed, or the model that it replaced is being stopped."""
        return self.reservations.holder(name) in self._registering

    async def cancel_all(self) -> None:
        """Cancel all registrations in progress. Return once no model is being changed."""
        self._is_stopping = True
        for task in self._registering:
            task.cancel()
        self._server.abandon_loads()
        await self.reservations.until_all_free()

    async def deploy(
        self,
        entry: Entry,
        former: Registration | None,
        report: ReportProgress,
        *,
        persistence: Persistence = Persistence.PERSISTED,
        registrant: Registrant | None = None,
        on_served: OnServed | None = None,
    ) -> Registration:
        """Serve a model, replacing `former` if given.

        Args:
            entry: the model
            former: the registration that serves the name now
            report: sends progress to the client
            persistence: whether the model is persisted
            registrant: the process whose threads run the model; None for worker processes
            on_served: called once the model is serving, even if the client cancels immediately afterwards

        Raises:
            RemoteFailure: the deployment failed and was undone.
            CancelledError: the client cancelled, possibly too late to undo the deployment.
        """
        name = entry.spec.name
        with self.reservations.reserve(name) as task:
            self._registering.add(task)
            try:
                # Do this first: a model that cannot be persisted must not be served.
                prepared = await self._store.prepare(entry, persistence)
                try:
                    registration = self._new(entry, persistence, registrant, former)
                    take_over = partial(
                        self._take_over, registration, former, persistence, prepared, on_served
                    )
                    await self._start(registration, former, report, take_over)
                finally:
                    if prepared is not None:
                        prepared.discard()
                if former is not None:
                    await uninterrupted(self._decommission(former, "it was replaced", "replace"))
            except asyncio.CancelledError:
                if not self._is_stopping:
                    raise
                text = f"model {name} was not registered: the daemon is stopping"
                raise RemoteFailure(ErrorKind.UNAVAILABLE, text) from None
            finally:
                self._registering.discard(task)
        return registration

    def deploy_suspended(self, entry: Entry) -> None:
        """Register a persisted model without starting a worker. tritonserver loads the model when it next starts."""
        registration = self._new(entry, Persistence.ALREADY_PERSISTED, None, None)
        registration.begin_suspended(
            self._server,
            self._rundir.models,
            not_ready_after_s=self._config.not_ready_after_s,
            grace_s=self._config.grace_period_s,
        )
        self._served.add(registration)

    async def cancel_preload(self, registration: Registration) -> None:
        """Undo `deploy_suspended` because tritonserver did not load the model."""
        del self._served.names[registration.spec.name]
        registration.begin_stop()
        await self._undo(registration, None)

    async def undeploy(self, name: str, why: str, *, last: bool = False) -> None:
        """Stop serving a model. `last` means that tritonserver is about to stop: clients get 503 and the reason."""
        registration = self._served.by_name(name)
        with self.reservations.reserve(name):
            registration.begin_stop()
            try:
                if last:
                    await registration.refuse_requests(self._server)
                else:
                    await registration.unload(self._server)
                    if registration.in_triton.load_failed and self._server.ready:
                        await self._server.clear_failure(name)
            finally:
                await self._decommission(registration, why)
                del self._served.names[name]
                self.changes.notify()
                if not last:  # tritonserver may still read it
                    own_repository.remove_folder(self._rundir.models, name)
                close_model_log(name)

    async def _start(
        self,
        registration: Registration,
        former: Registration | None,
        report: ReportProgress,
        take_over: Callable[[], Awaitable[None]],
    ) -> None:
        name = registration.spec.name
        try:
            await registration.start(
                self._server,
                self._rundir.models,
                report,
                self.server_wait(name, "registered", report),
                take_over,
                not_ready_after_s=self._config.not_ready_after_s,
                grace_s=self._config.grace_period_s,
            )
        except BaseException:
            registration.begin_stop()
            with self.reservations.rolling_back(name):
                await uninterrupted(self._undo(registration, former))
            raise

    async def _take_over(
        self,
        registration: Registration,
        former: Registration | None,
        persistence: Persistence,
        prepared: PendingChange | None,
        on_served: OnServed | None,
    ) -> None:
        """Assign the name to a registration that tritonserver has loaded, even if the client has disconnected."""
        name = registration.spec.name
        if prepared is not None:
            finish(prepared)
        self._served.add(registration)
        if persistence is not Persistence.EXTERNAL:
            self._restoring.forget(name)
        if registration.registrant is not None:
            self._hosted.expect(registration, registration.registrant)
        if former is not None:
            former.begin_stop()
        if on_served is not None:
            on_served(registration)
        self.changes.notify()

    def adopt(
        self, state: RegistrationState, entry: Entry, adopt_worker: AdoptWorker
    ) -> Registration:
        """Adopt a model that the previous version of this process served."""
        persistence = Persistence.ALREADY_PERSISTED if state.kept else Persistence.EPHEMERAL
        registration = self._new(
            entry,
            persistence,
            None,
            None,
            key=state.key,
            suspended=state.pool.suspended,
            identity=state.identity,
        )
        registration.adopt(
            state,
            self._server,
            self._rundir.models,
            adopt_worker,
            not_ready_after_s=self._config.not_ready_after_s,
            grace_s=self._config.grace_period_s,
        )
        self._served.add(registration)
        if state.kept:
            self._restoring.forget(entry.spec.name)
        return registration

    def _new(
        self,
        entry: Entry,
        persistence: Persistence,
        registrant: Registrant | None,
        former: Registration | None,
        *,
        key: str = "",
        suspended: bool | None = None,
        identity: str = "",
    ) -> Registration:
        if not key:
            self.serial += 1
            key = f"{entry.spec.name}#{self.serial}"
        if suspended is None:
            suspended = starts_suspended(
                entry.spec, restored=persistence is Persistence.ALREADY_PERSISTED
            )
        registration = Registration(
            key,
            entry,
            self._start_worker,
            self._policy,
            self._rundir.control_endpoint,
            registrant,
            native=self._server.proxy_is_native,
            kept=persistence in (Persistence.PERSISTED, Persistence.ALREADY_PERSISTED),
            former=former,
            counters=self._served.counter_registry.of(entry.spec.name),
            events=self._events,
            suspended=suspended,
            prestarted=self.prestarted,
            account=self._accounts.open(
                entry.spec,
                payload=max(map(len, entry.payloads), default=0),
                hosted=registrant is not None,
                registration=identity or _identity(entry, persistence),
                background=persistence in (Persistence.ALREADY_PERSISTED, Persistence.EXTERNAL),
                events=self._events.about(entry.spec.name, entry.spec.version),
            ),
            on_scaling_change=self.scaling_changes.notify,
        )
        self._served.keys[key] = registration
        return registration

    async def _undo(self, registration: Registration, former: Registration | None) -> None:
        name = registration.spec.name
        if former is not None:
            own_repository.make_folder(self._rundir.models, former.spec)
            own_repository.write_config(self._rundir.models, name, former.in_triton.config)
        late = self._server.late_load(name)
        if late is not None:
            task = asyncio.ensure_future(self._undo_late_load(name, late, former))
            self._late_undos.add(task)
            task.add_done_callback(self._late_undos.discard)
        elif registration.pool.proxies and self._server.ready:
            async with registration.load_lock:
                # cancelled after tritonserver had loaded it
                await self._unload_failed(name, former)
        elif registration.in_triton.load_failed and former is None and self._server.ready:
            await self._server.clear_failure(name)
        await self._decommission(registration, "its registration failed")
        if former is None and late is None:
            own_repository.remove_folder(self._rundir.models, name)
            close_model_log(name)

    async def _undo_late_load(
        self, name: str, late: asyncio.Future[None], former: Registration | None
    ) -> None:
        """Wait for a load that was still in progress when its registration was undone, and undo the load, too.

        Otherwise a failed load would keep tritonserver not ready, and a successful one would serve without workers.
        """
        await asyncio.wait([late])
        try:
            with self.reservations.reserve(name):
                if former is None and name in self._served.names:
                    return
                if self._server.ready and (late.cancelled() or late.exception() is not None):
                    if former is None:
                        await self._server.clear_failure(name)
                elif self._server.ready:
                    await self._unload_failed(name, former)
                if former is None:
                    own_repository.remove_folder(self._rundir.models, name)
                    close_model_log(name)
        except RemoteFailure:
            return  # a change of this name is in progress: its load decides

    async def _unload_failed(self, name: str, former: Registration | None) -> None:
        try:
            if former is None or not former.ready:  # it is loaded when one of its workers is back
                await self._server.unload(name)
            else:
                await self._server.load(name, former.in_triton.config)
        except RemoteFailure as failure:
            _log.error(
                "could not unload a model after its registration failed",
                model=name,
                reason=failure.text,
            )

    async def _decommission(
        self, registration: Registration, why: str, reason: str = "stop"
    ) -> None:
        await registration.stop(self._config.grace_period_s, why, reason)
        if registration.left_to_server:  # its proxies may still send requests
            return
        del self._served.keys[registration.key]
        name = registration.spec.name
        if all(one.spec.name != name for one in self._served.keys.values()):
            self._served.counter_registry.forget(name)


def starts_suspended(spec: messages.ModelSpec, *, restored: bool) -> bool:
    """Return whether a model starts suspended: it is lazy, or it was restored and may scale to 0 instances."""
    return spec.lazy or (restored and spec.autoscale is not None and spec.autoscale.least == 0)


def _identity(entry: Entry, persistence: Persistence) -> str:
    """Return an id that distinguishes registrations with the same name, even across restarts of the daemon."""
    if persistence is Persistence.EXTERNAL:  # its payloads are small: they only name the files
        return registration_digest(entry.spec, entry.payloads)
    return repr(entry.registered_at)


def _policy(config: DaemonConfig) -> RestartPolicy:
    return RestartPolicy(
        start_timeout_s=config.worker_start_timeout_s,
        limit=config.worker_restart_limit,
        first_delay_s=config.worker_backoff_s,
        longest_delay_s=config.worker_backoff_max_s,
        resume_bounds=ResumeBounds(config.resume_timeout_s, config.resume_queue_size),
    )


# ── Events for failed changes to models: what was requested, and why it failed ──


@contextmanager
def emit_on_failure(
    events: Events, kind: EventKind, model: str, numbers: Mapping[str, float] | None = None
) -> Iterator[None]:
    """Emit an event of kind `kind` if the block fails or is cancelled."""
    try:
        yield
    except RemoteFailure as failure:
        events.emit(kind, model=model, reason=failure.text, numbers=numbers)
        raise
    except asyncio.CancelledError:
        events.emit(kind, model=model, reason="its client cancelled it or exited", numbers=numbers)
        raise


def emit_on_register_failure(
    events: Events, request: messages.Register, served: Container[str]
) -> AbstractContextManager[None]:
    """Emit an event if the block fails to register or replace a model. `served` contains the served models' names."""
    name = request.spec.name
    kind = kinds.REPLACE_FAILED if request.replace and name in served else kinds.REGISTRATION_FAILED
    return emit_on_failure(events, kind, name)
