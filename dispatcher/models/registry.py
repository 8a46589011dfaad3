"""The models that are served: registered, replaced, unregistered. The only place that changes which ones there are."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import structlog

from pytriton.dispatcher.base.logs import close_model_log
from pytriton.dispatcher.base.news import News
from pytriton.dispatcher.base.tasks import uninterrupted
from pytriton.dispatcher.models.admission import check, check_devices
from pytriton.dispatcher.models.hosted_models import HostedModels
from pytriton.dispatcher.models.kept_models import KeptModels, finish
from pytriton.dispatcher.models.name_reservations import Reservations
from pytriton.dispatcher.models.patience import Patience
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.models.restoring import Restoring
from pytriton.dispatcher.models.state_dir import Entry, Store, Unfinished
from pytriton.dispatcher.settings.declarations import DaemonConfig
from pytriton.dispatcher.triton import own_repository
from pytriton.dispatcher.triton.tritonserver import TritonServer
from pytriton.dispatcher.workers.backoff import RestartPolicy
from pytriton.dispatcher.workers.pool import ReportProgress
from pytriton.dispatcher.workers.registrant import Registrant
from pytriton.dispatcher.workers.worker import Worker
from pytriton.ipc import messages
from pytriton.ipc.errors import ErrorKind, RemoteFailure
from pytriton.ipc.rundir import RuntimeDir

_log = structlog.get_logger(__name__)


SpawnWorker = Callable[[Registration, int], Awaitable[Worker]]


class Registry:
    """All registrations, by name and by key."""

    def __init__(
        self,
        config: DaemonConfig,
        rundir: RuntimeDir,
        server: TritonServer,
        spawn: SpawnWorker,
        store: Store,
    ) -> None:
        self._config = config
        self._rundir = rundir
        self._server = server
        self._spawn = spawn
        self._kept = KeptModels(store)
        self.restoring = Restoring(store.read())
        self._policy = _policy(config)
        self._serial = itertools.count(1)
        self._by_name: dict[str, Registration] = {}
        self._by_key: dict[str, Registration] = {}
        self._reservations = Reservations()
        self._registering: set[asyncio.Task[object]] = set()
        self._stopping = False
        #: A model is served, or not any more.
        self.news = News()
        self._hosted = HostedModels(self._end_hosted)

    def __iter__(self) -> Iterator[Registration]:
        return iter(self._by_name.values())

    def problems(self) -> list[str]:
        """Return what somebody should look at, a sentence each."""
        return [*self.restoring.problems, *(text for one in self for text in one.pool.problems())]

    @property
    def busy(self) -> bool:
        """Whether a batch is under way in any worker process."""
        return any(one.pool.busy for one in self._by_key.values() if one.registrant is None)

    def use(self, config: DaemonConfig) -> None:
        """Take over changed settings; those of workers hold for models registered from now on."""
        self._config = config
        self._policy = _policy(config)

    def by_key(self, key: str) -> Registration:
        """Return the registration that a proxy belongs to.

        Raises:
            RemoteFailure: there is none (any more).
        """
        try:
            return self._by_key[key]
        except KeyError:
            raise RemoteFailure(ErrorKind.NOT_FOUND, f"registration {key} is gone") from None

    def by_name(self, name: str) -> Registration:
        """Return the registration that serves a name.

        Raises:
            RemoteFailure: there is none; names those that there are.
        """
        try:
            return self._by_name[name]
        except KeyError:
            known = ", ".join(sorted(self._by_name)) or "none"
            text = f"no model {name!r} is registered; registered models: {known}"
            why = self.restoring.error(name)
            if why is not None:
                text = (
                    f"model {name!r} is not served: it could not be restored ({why}). It is tried again at the next "
                    "start; register it anew, or unregister it."
                )
            elif self.restoring.waits(name):
                text = f"model {name!r} is not served yet: it is being restored"
            elif own_repository.is_linked(self._rundir.models, name):
                text = (
                    f"model {name!r} has no workers: it is one of a model repository, and tritonserver itself serves "
                    f"it (pytriton-daemon repository unload {name})"
                )
            raise RemoteFailure(ErrorKind.NOT_FOUND, text) from None

    def workers_of(self, model: str) -> list[str]:
        """Return the workers that serve a model; none if there is no such model."""
        found = (registration for registration in self if registration.spec.name == model)
        return [name for registration in found for name in registration.pool.ready_workers()]

    def worker(self, name: str) -> tuple[Registration, Worker]:
        """Return a worker that is alive, with its registration.

        Raises:
            RemoteFailure: no such worker.
        """
        for registration in self._by_key.values():
            worker = registration.pool.worker(name)
            if worker is not None:
                return registration, worker
        raise RemoteFailure(ErrorKind.NOT_FOUND, f"no worker {name} belongs to this daemon")

    async def register(
        self,
        request: messages.Register,
        payloads: Sequence[bytes],
        report: ReportProgress,
        registrant: Registrant | None = None,
        *,
        keep: bool = True,
    ) -> Registration:
        """Serve a model; all or nothing. `keep` it for the next start, unless it is kept elsewhere.

        One that runs in threads of its `registrant` goes when that does.

        Raises:
            RemoteFailure: what was wrong. Nothing of the attempt is left, and a model that was to
                be replaced serves on.
        """
        spec = request.spec
        check(spec, payloads)
        self._refuse_taken(request)
        patience = self._patience(spec.name, "registered", report)
        await patience.until_up()
        if request.replace:  # a restore that fails leaves nothing to be replaced, which is as good
            await patience.until_restored(spec.name)
        self._check_open(spec.name, "registered")
        own_repository.refuse_linked(self._rundir.models, spec.name)
        # Whoever interrupts a registration and makes the next one at once is not in anybody's way.
        await self._reservations.until_given_up(spec.name)
        self._refuse_taken(request)
        former = self._by_name.get(spec.name)
        entry = Entry(0, time.time(), spec, list(payloads))
        # A temporary one is not kept: as with one that is kept already, there is nothing to write.
        kept = request.temporary or not keep
        return await self._register(entry, former, report, kept=kept, registrant=registrant)

    async def rollback(self, name: str, report: ReportProgress) -> Registration:
        """Put back what a model was before it was replaced; no request fails.

        Raises:
            RemoteFailure: no such model, nothing to go back to, or it failed: the model is as it was then.
        """
        await self._until_served(name, "rolled back", report)
        former = self.by_name(name)
        previous = await self._kept.previous(name)
        if self.by_name(name) is not former:
            raise RemoteFailure(
                ErrorKind.EXISTS,
                f"model {name} was replaced by somebody else meanwhile; look, and try again",
            )
        if previous is None:
            if former.registrant is not None:
                raise RemoteFailure(
                    ErrorKind.INVALID,
                    f"model {name} runs in threads of process {former.registrant.pid}: what it may have replaced "
                    "is not kept",
                )
            raise RemoteFailure(
                ErrorKind.INVALID,
                f"model {name} has not been replaced since it was first registered: there is nothing to go back to",
            )
        check_devices(previous.spec)
        return await self._register(previous, former, report)

    async def restore(self) -> None:
        """Register again what is kept, in order."""

        async def register(entry: Entry) -> None:
            check_devices(entry.spec)
            await self._register(entry, None, _report_to_nobody, kept=True)

        await self.restoring.run(register)

    async def unregister(self, name: str) -> None:
        """Stop serving a model, and forget it: requests under way are answered, then its workers end.

        Raises:
            RemoteFailure: no such model, or it is being registered or unregistered now.
        """
        forgotten = await self.restoring.give_up(name)
        self._reservations.check(name)
        if name in self._by_name:
            try:
                await self._take_down(name, "it was unregistered")
            except RemoteFailure:
                if name not in self._by_name:  # whatever Triton says
                    await self._kept.remove(name)
                raise
        elif not forgotten:
            self.by_name(name)  # says which there are
        await self._kept.remove(name)
        _log.info("model unregistered", model=name)

    async def end(self, registration: Registration) -> None:
        """Stop serving a temporary model, whose process has ended, unless another one has its name by now."""
        name = registration.spec.name
        await self._reservations.until_free(name)
        if self._by_name.get(name) is registration and not self._stopping:
            _log.info("model ends with the process that registered it", model=name)
            await self._take_down(name, "the process that registered it has ended")

    async def _take_down(self, name: str, why: str, *, last: bool = False) -> None:
        """Stop serving a model; `last`: tritonserver ends next, and tells clients so until then."""
        registration = self.by_name(name)
        with self._reservations.reserve(name):
            registration.begin_stop()
            try:
                if last:
                    await registration.refuse_requests(self._server)
                else:
                    await registration.unload(self._server)
            finally:
                await self._retire(registration, why)
                del self._by_name[name]
                self.news.tell()
                if not last:  # tritonserver may still look at it
                    own_repository.remove_folder(self._rundir.models, name)
                close_model_log(name)

    async def scale(self, name: str, instances: int, report: ReportProgress) -> Registration:
        """Serve a model with another number of instances, each with a worker; no request fails on the way.

        Raises:
            RemoteFailure: no such model, not possible, or a new worker failed, and all is as it was; or
                an instance that it had before, and that has no worker, could not be given one.
        """
        await self._until_served(name, "scaled", report)
        registration = self.by_name(name)
        with self._reservations.reserve(name):
            await registration.scale(instances, self._server, report, self._config.grace_period_s)
            if registration.registrant is None:
                unfinished = await self._kept.write(registration.entry())
                finish(unfinished, keep_previous=False)
            _log.info("model scaled", model=name, instances=instances)
            try:
                await registration.heal(report)
            except RemoteFailure as failure:
                text = f"model {name} now has {instances} instances, but {failure.text}; it is tried again"
                raise RemoteFailure(failure.kind, text, failure.traceback) from failure
        return registration

    def preload(self) -> dict[str, dict[str, Any]]:
        """Return what a starting tritonserver can load before it opens its ports: name -> configuration."""
        return {one.spec.name: one.triton_config for one in self if one.preloadable}

    async def load_again(self, loaded: set[str]) -> None:
        """After tritonserver was started again: load all models but those; their workers have kept theirs."""
        await asyncio.gather(
            *(one.load_again(self._server, loaded=one.spec.name in loaded) for one in self)
        )
        self.news.tell()

    @property
    def loads_again(self) -> bool:
        """Whether models are missing in a tritonserver that was started again."""
        return any(one.loads_again for one in self)

    def forget_proxies(self) -> None:
        """tritonserver has ended."""
        for registration in self._by_key.values():
            registration.forget_proxies()

    async def stop(self) -> None:
        """End the registrations under way, then stop serving everything at once; the next start serves it again."""
        self._stopping = True
        for task in self._registering:
            task.cancel()
        await self._reservations.until_all_free()
        results = await asyncio.gather(
            *(self._take_down(name, "the daemon stops", last=True) for name in list(self._by_name)),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, BaseException):
                _log.warning("model did not stop in order", error=str(result))

    async def _register(
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
        with self._reservations.reserve(name) as task:
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
            self.restoring.forget(name)
        self.news.tell()
        replaced = former is not None
        _log.info("model registered", model=name, instances=entry.spec.instances, replaced=replaced)
        return registration

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
                self._patience(name, "registered", report),
                unready_after_s=self._config.unready_after_s,
                grace_s=self._config.grace_period_s,
            )
            if unfinished is not None:
                finish(unfinished, keep_previous=True)
            elif registration.registrant is not None:
                await self._kept.remove(name)  # what it replaces does not come back
        except BaseException:
            registration.begin_stop()
            with self._reservations.giving_up(name):
                await uninterrupted(self._undo(registration, former))
            raise
        self._by_name[name] = registration
        if registration.registrant is not None:
            self._hosted.expect(registration, registration.registrant)
        if former is not None:
            former.begin_stop()
            await uninterrupted(self._retire(former, "it was replaced"))
        return registration

    async def _end_hosted(self, registration: Registration) -> None:
        name = registration.spec.name
        await self._reservations.until_free(name)
        if self._by_name.get(name) is registration:
            await self.unregister(name)

    def _new(self, entry: Entry, registrant: Registrant | None) -> Registration:
        key = f"{entry.spec.name}#{next(self._serial)}"

        def start_worker(instance: int) -> Awaitable[Worker]:
            return self._spawn(registration, instance)

        registration = Registration(
            key,
            entry,
            start_worker,
            self._policy,
            self._rundir.control_endpoint,
            registrant,
            native=self._server.proxy_is_native,
        )
        self._by_key[key] = registration
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
        del self._by_key[registration.key]

    def _refuse_taken(self, request: messages.Register) -> None:
        """Refuse what need not wait to be refused.

        Raises:
            RemoteFailure: the name is taken, or about to be, and nobody said `replace`.
        """
        name = request.spec.name
        if request.replace:
            return
        if name in self._by_name:
            raise RemoteFailure(
                ErrorKind.EXISTS,
                f"a model named {name!r} is registered already. Unregister it first, choose another name, or "
                "say replace=True (--replace) to put this one in its place.",
            )
        if self.restoring.waits(name):
            raise RemoteFailure(
                ErrorKind.EXISTS,
                f"a model named {name!r} was registered when the daemon last ran and is about to be served "
                "again. Wait for it, unregister it, or say replace=True (--replace) to put this one in its place.",
            )

    def _patience(self, name: str, done: str, report: ReportProgress) -> Patience:
        what = f"model {name} was not {done}"
        return Patience(what, self._server, self.restoring, report, self._config.busy_timeout_s)

    async def until_up(self, name: str, done: str, report: ReportProgress) -> None:
        """Wait until tritonserver is up; `done` is what is to be done with the model then.

        Raises:
            RemoteFailure: it was not in time, or the daemon stops.
        """
        await self._patience(name, done, report).until_up()

    async def _until_served(self, name: str, done: str, report: ReportProgress) -> None:
        """Wait until tritonserver is up, and the model restored."""
        if not self.restoring.waits(name):
            self.by_name(name)  # what there is not need not be waited for
        patience = self._patience(name, done, report)
        await patience.until_up()
        await patience.until_restored(name)
        self._check_open(name, done)

    def _check_open(self, name: str, done: str) -> None:
        if self._stopping:
            raise RemoteFailure(
                ErrorKind.UNAVAILABLE, f"model {name} was not {done}: the daemon is stopping"
            )


def _policy(config: DaemonConfig) -> RestartPolicy:
    return RestartPolicy(
        start_timeout_s=config.worker_start_timeout_s,
        limit=config.worker_restart_limit,
        first_delay_s=config.worker_backoff_s,
        longest_delay_s=config.worker_backoff_max_s,
    )


async def _report_to_nobody(_: messages.Progress) -> None:
    """Take the progress of a registration that no client waits for."""
