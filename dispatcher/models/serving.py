"""How a model begins to be served, takes another one's place, and ends: all or nothing, one at a time for each name.

keep it (does not count yet) ──▶ workers, tritonserver ──▶ it counts ──▶ its name is its own ──▶ the former one ends
                                          └─ whatever fails: undone, and the former one serves on
"""

from __future__ import annotations

import asyncio
import itertools

import structlog

from pytriton.dispatcher.base.logs import close_model_log
from pytriton.dispatcher.base.news import News
from pytriton.dispatcher.base.tasks import uninterrupted
from pytriton.dispatcher.models.hosted_models import HostedModels
from pytriton.dispatcher.models.kept_models import KeptModels, finish
from pytriton.dispatcher.models.name_reservations import Reservations
from pytriton.dispatcher.models.patience import Patience
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.models.restoring import Restoring
from pytriton.dispatcher.models.served_models import ServedModels
from pytriton.dispatcher.models.state_dir import Entry, Unfinished
from pytriton.dispatcher.settings.declarations import DaemonConfig
from pytriton.dispatcher.triton import own_repository
from pytriton.dispatcher.triton.tritonserver import TritonServer
from pytriton.dispatcher.workers.backoff import RestartPolicy
from pytriton.dispatcher.workers.pool import ReportProgress
from pytriton.dispatcher.workers.registrant import Registrant
from pytriton.dispatcher.workers.worker_factory import StartWorker
from pytriton.ipc.errors import RemoteFailure
from pytriton.ipc.rundir import RuntimeDir

_log = structlog.get_logger(__name__)


class Serving:
    """Changes which models are served. The only place that does.

    Args:
        config: of the daemon; `use` takes over another one
        rundir: where tritonserver's repository lies
        server: loads the proxies
        start_worker: starts the workers of all registrations
        kept: the models of the next start
        restoring: those of them that are not served (yet)
        served: what is changed
        hosted: ends models that run in threads of a process when that ends

    Attributes:
        news: a model is served, or not any more.
        reservations: the names that are being changed.
    """

    def __init__(
        self,
        config: DaemonConfig,
        rundir: RuntimeDir,
        server: TritonServer,
        start_worker: StartWorker,
        *,
        kept: KeptModels,
        restoring: Restoring,
        served: ServedModels,
        hosted: HostedModels,
    ) -> None:
        self.news = News()
        self.reservations = Reservations()
        self._rundir = rundir
        self._server = server
        self._start_worker = start_worker
        self._kept = kept
        self._restoring = restoring
        self._served = served
        self._hosted = hosted
        self._serial = itertools.count(1)
        self._registering: set[asyncio.Task[object]] = set()
        self.use(config)

    def use(self, config: DaemonConfig) -> None:
        """Take over changed settings; those of workers hold for models registered from now on."""
        self._config = config
        self._policy = _policy(config)

    def patience(self, name: str, done: str, report: ReportProgress) -> Patience:
        """Return what a request waits with; `done` is what is to be done with the model then."""
        what = f"model {name} was not {done}"
        return Patience(what, self._server, self._restoring, report, self._config.busy_timeout_s)

    async def give_up_all(self) -> None:
        """End the registrations under way; return when nothing is being changed any more."""
        for task in self._registering:
            task.cancel()
        await self.reservations.until_all_free()

    async def place(
        self,
        entry: Entry,
        former: Registration | None,
        report: ReportProgress,
        *,
        kept: bool = False,
        registrant: Registrant | None = None,
    ) -> Registration:
        """Serve a model, instead of `former` if there is one; keep it for the next start, unless it is `kept`."""
        name = entry.spec.name
        keep = not kept and registrant is None  # without its registrant, there is nothing to serve
        with self.reservations.reserve(name) as task:
            self._registering.add(task)
            try:
                # Before anything is started: what cannot be kept is not served.
                unfinished = await self._kept.write(entry) if keep else None
                try:
                    registration = await self._serve(
                        self._new(entry, registrant), former, report, unfinished
                    )
                finally:
                    if unfinished is not None:
                        unfinished.discard()
            finally:
                self._registering.discard(task)
        if not kept:
            self._restoring.forget(name)
        self.news.tell()
        replaced = former is not None
        _log.info("model registered", model=name, instances=entry.spec.instances, replaced=replaced)
        return registration

    async def take_down(self, name: str, why: str, *, last: bool = False) -> None:
        """Stop serving a model; `last`: tritonserver ends next, and tells clients so until then."""
        registration = self._served.by_name(name)
        with self.reservations.reserve(name):
            registration.begin_stop()
            try:
                if last:
                    await registration.refuse_requests(self._server)
                else:
                    await registration.unload(self._server)
            finally:
                await self._retire(registration, why)
                del self._served.names[name]
                self.news.tell()
                if not last:  # tritonserver may still look at it
                    own_repository.remove_folder(self._rundir.models, name)
                close_model_log(name)

    async def _serve(
        self,
        registration: Registration,
        former: Registration | None,
        report: ReportProgress,
        unfinished: Unfinished | None,
    ) -> Registration:
        name = registration.spec.name
        try:
            await registration.start(
                self._server,
                self._rundir.models,
                report,
                self.patience(name, "registered", report),
                unready_after_s=self._config.unready_after_s,
                grace_s=self._config.grace_period_s,
            )
            if unfinished is not None:
                finish(unfinished, keep_previous=True)
            elif registration.registrant is not None:
                await self._kept.remove(name)  # what it replaces does not come back
        except BaseException:
            registration.begin_stop()
            with self.reservations.giving_up(name):
                await uninterrupted(self._undo(registration, former))
            raise
        self._served.names[name] = registration
        if registration.registrant is not None:
            self._hosted.expect(registration, registration.registrant)
        if former is not None:
            former.begin_stop()
            await uninterrupted(self._retire(former, "it was replaced"))
        return registration

    def _new(self, entry: Entry, registrant: Registrant | None) -> Registration:
        key = f"{entry.spec.name}#{next(self._serial)}"
        registration = Registration(
            key,
            entry,
            self._start_worker,
            self._policy,
            self._rundir.control_endpoint,
            registrant,
            native=self._server.proxy_is_native,
        )
        self._served.keys[key] = registration
        return registration

    async def _undo(self, registration: Registration, former: Registration | None) -> None:
        name = registration.spec.name
        if former is not None:
            own_repository.make_folder(self._rundir.models, former.spec)
            own_repository.write_config(self._rundir.models, name, former.triton_config)
        if registration.pool.proxies and self._server.ready:
            await self._take_out(name, former)  # given up after tritonserver had loaded it
        elif registration.refused and former is None and self._server.ready:
            await self._server.forget_failure(name)
        await self._retire(registration, "its registration failed")
        if former is None:
            own_repository.remove_folder(self._rundir.models, name)
            close_model_log(name)

    async def _take_out(self, name: str, former: Registration | None) -> None:
        try:
            if former is None:
                await self._server.unload(name)
            else:
                await self._server.load(name, former.triton_config)
        except RemoteFailure as failure:
            _log.error("tritonserver keeps a model given up", model=name, reason=failure.text)

    async def _retire(self, registration: Registration, why: str) -> None:
        await registration.stop(self._config.grace_period_s, why)
        del self._served.keys[registration.key]


def _policy(config: DaemonConfig) -> RestartPolicy:
    return RestartPolicy(
        start_timeout_s=config.worker_start_timeout_s,
        limit=config.worker_restart_limit,
        first_delay_s=config.worker_backoff_s,
        longest_delay_s=config.worker_backoff_max_s,
    )
