"""Loads repository models, into tritonserver or into workers depending on their files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from pytriton._host.install.proxy_compiler import NATIVE_BACKEND
from pytriton._host.install.python_on_demand import PythonOnDemand
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.models.admission import check
from pytriton.dispatcher.models.deployer import emit_on_register_failure
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.repository import model_folders
from pytriton.dispatcher.repository.folder_spec import WorkerSetup, specification
from pytriton.dispatcher.repository.model_folders import FoundModel, UnservableModel
from pytriton.dispatcher.repository.model_records import (
    TRITONSERVER,
    WORKERS,
    ModelRecord,
    ModelRecords,
)
from pytriton.dispatcher.repository.repositories import CLOUD, Repositories
from pytriton.dispatcher.runtime.tasks import cause_of
from pytriton.dispatcher.server import own_repository
from pytriton.dispatcher.server.own_repository import BACKEND
from pytriton.dispatcher.server.server_process import ServerLost
from pytriton.dispatcher.server.tritonserver import TritonServer
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import LOG_ONLY, Events
from pytriton.dispatcher.workers.pool import report_to_nobody
from pytriton.formats import table

_log = structlog.get_logger(__name__)

LoadSteps = Callable[[FoundModel], Awaitable[None]]


class ModelLoader:
    """Loads one repository model at a time.

    Args:
        config: settings of the daemon
        models: tritonserver's own repository
        backends: the directory of tritonserver's backends
        python: provides a Python for tritonserver's own python backend
        library: the directory that contains this version of `pytriton`
        server: serves the models for which it has a backend
        registry: serves the others with workers
        places: the repositories
        events: receives failed registrations
    """

    def __init__(
        self,
        config: DaemonConfig,
        *,
        models: Path,
        backends: Path,
        python: PythonOnDemand,
        library: Path,
        server: TritonServer,
        registry: Registry,
        places: Repositories,
        events: Events,
    ) -> None:
        self._python_backend_models = config.python_backend_model
        self._models = models
        self._backends = backends
        self._python = python
        self._worker_setup = WorkerSetup(
            library, config.model_python, config.install_packages, config.model_env
        )
        self._server = server
        self._registry = registry
        self._places = places
        self._events = events

    async def load(
        self,
        name: str,
        place: str,
        record: ModelRecord,
        config: Mapping[str, Any] | None,
        load_steps: LoadSteps,
    ) -> None:
        """Load or reload a model. A previous one keeps serving until the new one is ready.

        Args:
            name: name of the model
            place: its repository
            record: its record, which is updated
            config: a configuration that overrides the one in its folder
            load_steps: loads the steps of an ensemble first

        Raises:
            RemoteFailure, UnservableModel: the model cannot be served.
        """
        self._refuse_registered(name, record)
        if place == CLOUD:
            await self._python.ensure_if_possible(name)  # the model is readable only there
            override = None if config is None else dict(config)
            try:
                await self._load_counting_exits(name, record, override)
            except ServerLost:
                raise
            except RemoteFailure as failure:
                raise cloud_failure(failure, self._backends) from failure
            record.served_by, record.config, record.backend = TRITONSERVER, override, ""
            return
        model = await self._places.read(name, place)
        if config is not None:
            model = model.with_config(json.loads(json.dumps(config)))
        form = model_folders.route(model, self._backends, self._python_backend_models)
        if form is None:
            await load_steps(model)
            await self._load_into_tritonserver(model, record, config)
            return
        if record.served_by == TRITONSERVER:
            raise UnservableModel(
                f"model {name} is served by tritonserver itself. Unload it first; then workers can serve it"
            )
        lacking = model_folders.feature_workers_lack(model)
        if lacking:
            _log.warning("model needs a feature that workers lack", model=name, what=lacking)
        spec, payload = await specification(model, form, self._worker_setup, config)
        # It may have been registered in the meantime.
        self._refuse_registered(name, record)
        request = messages.Register(spec, replace=record.served_by == WORKERS)
        check(spec, [payload])
        with emit_on_register_failure(self._events, request, self._registry.served.names):
            record.registration = await self._registry.register(
                request, [payload], report_to_nobody, keep=False
            )
        record.served_by, record.versions = WORKERS, spec.versions or [spec.version]

    async def reload(self, name: str, record: ModelRecord, *, maybe_python: bool) -> None:
        """Load a model into a restarted tritonserver.

        With `maybe_python`, provide a Python for tritonserver's python backend even if it is unknown whether the model
        needs that backend. An upgrade may have reinstalled the backends.

        Raises:
            RemoteFailure: the model cannot be served.
        """
        if record.backend and self._python.is_needed(record.backend):
            await self._python.ensure(name)
        elif not record.backend and maybe_python:
            await self._python.ensure_if_possible(name)
        await self._load_counting_exits(name, record, record.config)

    async def _load_into_tritonserver(
        self, model: FoundModel, record: ModelRecord, config: Mapping[str, Any] | None
    ) -> None:
        if record.served_by == WORKERS:
            raise UnservableModel(
                f"model {model.name} is served by workers. Unload it first, then load it into tritonserver"
            )
        backend = table.backend_of(model.config, model.files)
        if self._python.is_needed(backend):
            await self._python.ensure(model.name)
        link = self._models / model.name
        former = link.readlink() if record.served_by else None
        own_repository.link(self._models, model.name, model.folder)
        override = None if config is None else dict(config)
        if former is not None and former != model.folder:
            override = own_repository.with_folder_mark(override or model.config, str(model.folder))
        try:
            await self._load_counting_exits(model.name, record, override)
        except BaseException as error:
            if former is None:
                if isinstance(cause_of(error), RemoteFailure) and self._server.ready:
                    await self._server.clear_failure(model.name)
                own_repository.unlink(self._models, model.name)
            else:
                own_repository.link(self._models, model.name, former)
            raise
        record.served_by, record.config, record.backend = TRITONSERVER, override, backend
        record.steps = model_folders.steps_of(model.config)
        record.versions = model_folders.served_versions(model.config, list(model.versions))

    async def _load_counting_exits(
        self, name: str, record: ModelRecord, config: dict[str, Any] | None
    ) -> None:
        """Load a model into tritonserver. Count how many times in a row tritonserver has exited while loading it.

        Raises:
            ServerLost: tritonserver exited, possibly for another reason.
            RemoteFailure: tritonserver refuses the model, or exits on every attempt.
        """
        was_up = self._server.ready
        try:
            await self._server.load(name, config)
        except ServerLost as lost:
            record.server_exits += was_up
            if not record.crashes_server:
                raise
            text = (
                f"tritonserver exited {record.server_exits} times in a row while loading model {name}, which will not be "
                f"loaded again automatically ({lost.text}). Fix it, then run: pytriton-daemon repository load {name}"
            )
            raise RemoteFailure(ErrorKind.LOAD_FAILED, text) from lost
        record.server_exits = 0

    def _refuse_registered(self, name: str, record: ModelRecord) -> None:
        """Raise RemoteFailure if the name belongs to a registered model."""
        present = {one.spec.name: one for one in self._registry.served}.get(name)
        is_lazy = present is None and self._registry.restoring.is_lazy(name)
        if is_lazy or (present is not None and present is not record.registration):
            raise RemoteFailure(
                ErrorKind.EXISTS,
                f"a model named {name!r} is already registered: unregister it, then load the repository's model",
            )


def cloud_failure(failure: RemoteFailure, backends: Path) -> RemoteFailure:
    """Add to the error of a failed load from a bucket which formats buckets support, and what to do about the others.

    The model's format is unknown here, since only tritonserver sees the files.

    Args:
        failure: tritonserver's error
        backends: the directory of tritonserver's backends
    """
    available = sorted({one.name for one in backends.iterdir()} - {BACKEND, NATIVE_BACKEND})
    formats = ", ".join(one.title for one in table.FORMATS)
    return RemoteFailure(
        failure.kind,
        f"{failure.text.rstrip()}\nModels in cloud storage are served by tritonserver itself, if they have a config.pbtxt "
        f"and it has their backend (available: {', '.join(available) or 'none'}). Workers also serve {formats} models, but only "
        "from folders on this machine: copy the repository to one (`aws s3 sync`, `gcloud storage rsync`, `azcopy sync`), "
        "and start the daemon with --model-repository FOLDER.",
        failure.traceback,
    )


# ── Loads many models: at the start, and when files have changed ──


#: Maximum attempts for a model loaded alone. A model that crashes tritonserver fails earlier, see `crashes_server` in model_records.py.
_MAX_ATTEMPTS = 3


class LoadQueue:
    """Loads many models. A failure does not affect the other models.

    Args:
        load: loads one model
        records: the records of the models
        server: tritonserver
        registry: the models that workers serve
        events: receives failures
    """

    def __init__(
        self,
        load: Callable[[str], Awaitable[None]],
        records: ModelRecords,
        server: TritonServer,
        registry: Registry,
        events: Events = LOG_ONLY,
    ) -> None:
        self._events = events
        self._load = load
        self._records = records
        self._server = server
        self._registry = registry
        self._ensemble_lock = asyncio.Lock()  #: one ensemble may be a step of another

    async def load_all(self, names: Sequence[str], ensembles: Mapping[str, Sequence[str]]) -> None:
        """Load models, several at a time. Store failures in their records.

        Args:
            names: names of the models
            ensembles: the steps of each ensemble among them
        """
        loads = {
            name: asyncio.create_task(self._load_in_turn(name))
            for name in names
            if name not in ensembles
        }
        for name in names:
            if name in ensembles:
                steps = [loads[step] for step in _steps(name, ensembles) if step in loads]
                loads[name] = asyncio.create_task(self._load_ensemble(name, steps))
        try:
            if loads:
                await asyncio.wait(loads.values())
        except asyncio.CancelledError:
            for load in loads.values():
                load.cancel()
            await asyncio.wait(loads.values())
            raise
        for name, load in loads.items():  # ensembles are last
            if not load.result() and not self._records.of(name).served_by:
                await self._try_alone(name)

    async def _load_in_turn(self, name: str) -> bool:
        slots = self._registry.load_slots
        await slots.until_free()
        return await slots.begin(name, self._try(name))

    async def _load_ensemble(self, name: str, steps: Sequence[asyncio.Task[bool]]) -> bool:
        """Load an ensemble once its steps have loaded or failed. Return False if tritonserver exited during the load."""
        if steps:
            await asyncio.wait(steps)
        if not all(step.result() for step in steps):
            return False
        async with self._ensemble_lock:
            return bool(self._records.of(name).served_by) or await self._try(name)

    async def reload(self, names: Sequence[str], ensembles: Collection[str]) -> None:
        """Load or reload models one by one, ensembles last."""
        for name in sorted(names, key=lambda name: name in ensembles):
            await self._try_alone(name)

    async def wait_until_up(self) -> None:
        """Wait until tritonserver is up and has reloaded its previous models."""
        while True:
            waits = [
                asyncio.ensure_future(signal.next.wait())
                for signal in (self._server.changes, self._registry.changes)
            ]
            try:
                if self._server.ready and not self._records.server_lost:
                    return
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for change in waits:
                    change.cancel()

    async def _try_alone(self, name: str) -> None:
        for _ in range(_MAX_ATTEMPTS):
            if await self._try(name):
                return
        record = self._records.of(name)
        _not_loaded(record, record.reason)
        self._events.emit(kinds.REPOSITORY_LOAD_FAILED, model=name, reason=record.reason)

    async def _try(self, name: str) -> bool:
        """Load a model. On failure, store the reason in its record. Return False if tritonserver exited during the
        load.
        """
        record = self._records.of(name)
        await self.wait_until_up()
        try:
            await self._load(name)
        except ServerLost as lost:
            _not_loaded(record, lost.text, "loading")
            _log.warning("tritonserver exited, reloading a model", model=name)
            return False
        except RemoteFailure as failure:
            _not_loaded(record, failure.text)
            self._events.emit(kinds.REPOSITORY_LOAD_FAILED, model=name, reason=failure.text)
        except Exception as error:  # on any error, continue with the other models
            _not_loaded(record, f"internal error: {error!r}")
            _log.exception("internal error: a repository model was not loaded")
            self._events.emit(kinds.REPOSITORY_LOAD_FAILED, model=name, reason=record.reason)
        return True


def _steps(name: str, ensembles: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the models that an ensemble uses, directly or through other ensembles, but not the ensembles themselves."""
    seen, left = {name}, [name]
    while left:
        for step in ensembles[left.pop()]:
            if step in seen:
                continue
            seen.add(step)
            if step in ensembles:
                left.append(step)
            else:
                yield step


def _not_loaded(record: ModelRecord, reason: str, state: str = "failed") -> None:
    """Store the reason why a model was not loaded. If its previous version is still served, keep the model's state."""
    record.reason = reason
    if not record.served_by:
        record.state = state
