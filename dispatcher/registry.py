"""The models that are served: registered, replaced, unregistered. The only place that changes which ones there are."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence

import structlog

from pytriton.dispatcher import repository
from pytriton.dispatcher.config import DaemonConfig
from pytriton.dispatcher.logs import close_model_log
from pytriton.dispatcher.pool import ReportProgress, RestartPolicy, check_payloads
from pytriton.dispatcher.registration import Registration
from pytriton.dispatcher.tritonserver import TritonServer
from pytriton.dispatcher.worker_process import WorkerProcess
from pytriton.ipc import messages
from pytriton.ipc.errors import ErrorKind, RemoteFailure
from pytriton.ipc.rundir import RuntimeDir

_log = structlog.get_logger(__name__)

_NAME = re.compile(r"[a-zA-Z0-9._-]+")
#: A file name has at most 255 bytes, and the longest one made of a model's name is its log's.
_LONGEST_NAME = 200

SpawnWorker = Callable[[Registration, int], Awaitable[WorkerProcess]]


class Registry:
    """All registrations, by name and by key."""

    def __init__(
        self, config: DaemonConfig, rundir: RuntimeDir, server: TritonServer, spawn: SpawnWorker
    ) -> None:
        self._config = config
        self._rundir = rundir
        self._server = server
        self._spawn = spawn
        self._policy = _policy(config)
        self._serial = itertools.count(1)
        self._by_name: dict[str, Registration] = {}
        self._by_key: dict[str, Registration] = {}
        #: Who changes a name just now, so that nobody else does.
        self._busy: dict[str, asyncio.Task[object]] = {}
        self._registering: set[asyncio.Task[object]] = set()
        self._stopping = False

    def __iter__(self) -> Iterator[Registration]:
        return iter(self._by_name.values())

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
            raise RemoteFailure(ErrorKind.NOT_FOUND, text) from None

    def worker(self, name: str) -> tuple[Registration, WorkerProcess]:
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
        self, request: messages.Register, payloads: Sequence[bytes], report: ReportProgress
    ) -> Registration:
        """Serve a model; all or nothing.

        Raises:
            RemoteFailure: what was wrong. Nothing of the attempt is left, and a model that was to
                be replaced serves on.
        """
        spec = request.spec
        self._check_open(spec.name)
        _check_name(spec.name)
        check_payloads(spec, payloads)
        former = self._by_name.get(spec.name)
        if former is not None and not request.replace:
            raise RemoteFailure(
                ErrorKind.EXISTS,
                f"a model named {spec.name!r} is registered already. Unregister it first, choose another name, or "
                "say replace=True (--replace) to put this one in its place.",
            )
        with self._reserved(spec.name) as task:
            self._registering.add(task)
            try:
                return await self._register(spec, payloads, former, report)
            finally:
                self._registering.discard(task)

    async def unregister(self, name: str) -> None:
        """Stop serving a model: requests under way are answered, then its workers end.

        Raises:
            RemoteFailure: no such model, or it is being registered or unregistered now.
        """
        registration = self.by_name(name)
        with self._reserved(name):
            registration.begin_stop()
            try:
                if self._server.ready:  # else its proxies are gone already
                    await self._server.unload(name)
            finally:
                await self._retire(registration)
                del self._by_name[name]
                repository.remove_folder(self._rundir.models, name)
                close_model_log(name)
        _log.info("model unregistered", model=name)

    async def load_again(self) -> None:
        """After tritonserver was started again: load all models; their workers have kept theirs."""
        for registration in list(self):
            if not registration.ready:
                continue
            name = registration.spec.name
            try:
                await self._server.load(name, registration.triton_config)
            except RemoteFailure as failure:
                _log.error("model was not loaded again", model=name, reason=failure.text)

    def forget_proxies(self) -> None:
        """tritonserver has ended."""
        for registration in self._by_key.values():
            registration.forget_proxies()

    async def stop(self) -> None:
        """End the registrations under way, then unregister everything, all at once."""
        self._stopping = True
        for task in self._registering:
            task.cancel()
        await asyncio.gather(*self._busy.values(), return_exceptions=True)
        results = await asyncio.gather(
            *(self.unregister(name) for name in list(self._by_name)), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                _log.warning("model did not stop in order", error=str(result))

    async def _register(
        self,
        spec: messages.ModelSpec,
        payloads: Sequence[bytes],
        former: Registration | None,
        report: ReportProgress,
    ) -> Registration:
        registration = self._new(spec, payloads)
        try:
            await registration.start(self._server, self._rundir.models, report)
        except BaseException:
            registration.begin_stop()
            await self._undo(registration, former)
            raise
        self._by_name[spec.name] = registration
        if former is not None:
            former.begin_stop()
            await self._retire(former)
        _log.info(
            "model registered",
            model=spec.name,
            instances=spec.instances,
            replaced=former is not None,
        )
        return registration

    def _new(self, spec: messages.ModelSpec, payloads: Sequence[bytes]) -> Registration:
        key = f"{spec.name}#{next(self._serial)}"

        def start_worker(instance: int) -> Awaitable[WorkerProcess]:
            return self._spawn(registration, instance)

        registration = Registration(
            key, spec, payloads, start_worker, self._policy, self._rundir.control_endpoint
        )
        self._by_key[key] = registration
        return registration

    async def _undo(self, registration: Registration, former: Registration | None) -> None:
        await self._retire(registration)
        name = registration.spec.name
        if former is not None:
            repository.make_folder(self._rundir.models, former.spec)
        else:
            repository.remove_folder(self._rundir.models, name)
            close_model_log(name)

    async def _retire(self, registration: Registration) -> None:
        await registration.stop(self._config.grace_period_s)
        del self._by_key[registration.key]

    def _check_open(self, name: str) -> None:
        if self._stopping:
            raise RemoteFailure(
                ErrorKind.UNAVAILABLE, f"model {name} was not registered: the daemon is stopping"
            )
        if not self._server.ready:
            raise RemoteFailure(
                ErrorKind.UNAVAILABLE,
                f"model {name} was not registered: tritonserver is being started; try again in a moment",
            )

    def _reserved(self, name: str) -> _Reservation:
        if name in self._busy:
            raise RemoteFailure(
                ErrorKind.EXISTS,
                f"model {name!r} is being registered or unregistered by somebody else just now",
            )
        return _Reservation(self._busy, name)


def _policy(config: DaemonConfig) -> RestartPolicy:
    return RestartPolicy(
        start_timeout_s=config.worker_start_timeout_s,
        limit=config.worker_restart_limit,
        first_delay_s=config.worker_backoff_s,
        longest_delay_s=config.worker_backoff_max_s,
    )


class _Reservation:
    """Keeps others from changing a name meanwhile."""

    def __init__(self, busy: dict[str, asyncio.Task[object]], name: str) -> None:
        self._busy = busy
        self._name = name

    def __enter__(self) -> asyncio.Task[object]:
        task = asyncio.current_task()
        assert task is not None  # handlers run in tasks
        self._busy[self._name] = task
        return task

    def __exit__(self, *_: object) -> None:
        del self._busy[self._name]


def _check_name(name: str) -> None:
    """The name becomes a folder and part of URLs: refuse what could be anything else."""
    if not _NAME.fullmatch(name) or name in (".", "..") or len(name) > _LONGEST_NAME:
        raise RemoteFailure(
            ErrorKind.INVALID,
            f"{name[:80]!r} cannot be a model's name: letters, digits, dots, underscores and dashes, "
            f"at most {_LONGEST_NAME} of them",
        )
