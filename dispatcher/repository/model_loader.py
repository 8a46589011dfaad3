"""Loads a repository's model into tritonserver or into workers, depending on its files."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from pytriton._host.install.python_on_demand import PythonOnDemand
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.repository import cloud_models, model_folders
from pytriton.dispatcher.repository.folder_spec import Workshop, specification
from pytriton.dispatcher.repository.model_folders import FoundModel, UnservableModel
from pytriton.dispatcher.repository.model_records import (
    TRITONSERVER,
    WORKERS,
    ModelRecord,
)
from pytriton.dispatcher.repository.repository_places import CLOUD, Places
from pytriton.dispatcher.runtime.tasks import cause_of
from pytriton.dispatcher.server import own_repository
from pytriton.dispatcher.server.server_process import ServerLost
from pytriton.dispatcher.server.tritonserver import TritonServer
from pytriton.dispatcher.workers.concurrent_loads import report_to_nobody
from pytriton.formats import table

_log = structlog.get_logger(__name__)

LoadSteps = Callable[[FoundModel], Awaitable[None]]


class ModelLoader:
    """Loads models of a repository.

    Args:
        config: settings of the daemon
        models: tritonserver's own repository
        backends: the directory of tritonserver's backends
        python: provides a Python for tritonserver's own python backend
        library: the directory that contains this version of `pytriton`
        server: serves models that it has a backend for
        registry: serves the others with workers
        places: the repositories
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
        places: Places,
    ) -> None:
        self._python_backend_models = config.python_backend_model
        self._models = models
        self._backends = backends
        self._python = python
        self._workshop = Workshop(
            library, config.model_python, config.install_packages, config.model_env
        )
        self._server = server
        self._registry = registry
        self._places = places

    async def load(
        self,
        name: str,
        place: str,
        known: ModelRecord,
        config: Mapping[str, Any] | None,
        load_steps: LoadSteps,
    ) -> None:
        """Load or reload a model; a previous one serves until then.

        Args:
            name: name of the model
            place: its repository
            known: its record, which is updated
            config: a configuration that overrides the one in its folder
            load_steps: loads the steps of an ensemble first

        Raises:
            RemoteFailure, UnservableModel: it cannot be served.
        """
        self.refuse_registered(name, known)
        if place == CLOUD:
            await self._python.ensure_if_possible(name)  # only its cloud knows what it needs
            override = None if config is None else dict(config)
            try:
                await self._have_loaded(name, known, override)
            except ServerLost:
                raise
            except RemoteFailure as failure:
                raise cloud_models.explained(failure, self._backends) from failure
            known.served_by, known.config, known.backend = TRITONSERVER, override, ""
            return
        model = await self._places.read(name, place)
        if config is not None:
            model = model.with_config(json.loads(json.dumps(config)))
        form = model_folders.route(model, self._backends, self._python_backend_models)
        if form is None:
            await load_steps(model)
            await self._load_into_tritonserver(model, known, config)
            return
        if known.served_by == TRITONSERVER:
            raise UnservableModel(
                f"model {name} is served by tritonserver itself; unload it before another backend serves it"
            )
        lacking = model_folders.not_given_by_workers(model)
        if lacking:
            _log.warning("model needs a feature that workers lack", model=name, what=lacking)
        spec, payload = await specification(model, form, self._workshop, config)
        self.refuse_registered(
            name, known
        )  # check again: it may have been registered in the meantime
        known.registration = await self._registry.register(
            messages.Register(spec, replace=known.served_by == WORKERS),
            [payload],
            report_to_nobody,
            keep=False,
        )
        known.served_by, known.versions = WORKERS, spec.versions or [spec.version]

    async def load_again(self, name: str, known: ModelRecord, *, maybe_python: bool) -> None:
        """Load a model again into a tritonserver that has restarted.

        Its python backend may have been reinstalled since, by the next version of the daemon. `maybe_python`: also
        provide it for a model that may need it.

        Raises:
            RemoteFailure: it cannot be served.
        """
        if known.backend and self._python.is_needed(known.backend):
            await self._python.ensure(name)
        elif not known.backend and maybe_python:
            await self._python.ensure_if_possible(name)
        await self._have_loaded(name, known, known.config)

    async def _load_into_tritonserver(
        self, model: FoundModel, known: ModelRecord, config: Mapping[str, Any] | None
    ) -> None:
        if known.served_by == WORKERS:
            raise UnservableModel(
                f"model {model.name} is served by workers; unload it before tritonserver serves it"
            )
        backend = table.backend_of(model.config, model.files)
        if self._python.is_needed(backend):
            await self._python.ensure(model.name)
        link = self._models / model.name
        former = link.readlink() if known.served_by else None
        own_repository.link(self._models, model.name, model.folder)
        override = None if config is None else dict(config)
        if former is not None and former != model.folder:
            override = own_repository.marked(override or model.config, str(model.folder))
        try:
            await self._have_loaded(model.name, known, override)
        except BaseException as error:
            if former is None:
                if isinstance(cause_of(error), RemoteFailure) and self._server.ready:
                    await self._server.forget_failure(model.name)
                own_repository.unlink(self._models, model.name)
            else:
                own_repository.link(self._models, model.name, former)
            raise
        known.served_by, known.config, known.backend = TRITONSERVER, override, backend
        known.steps = model_folders.steps_of(model.config)
        known.versions = model_folders.served_versions(model.config, list(model.versions))

    async def _have_loaded(
        self, name: str, known: ModelRecord, config: dict[str, Any] | None
    ) -> None:
        """Load a model into tritonserver, and count consecutive exits during its loads.

        Raises:
            ServerLost: tritonserver exited, possibly for another reason.
            RemoteFailure: tritonserver refuses the model, or exits on every attempt.
        """
        was_up = self._server.ready
        try:
            await self._server.load(name, config)
        except ServerLost as lost:
            known.ends += was_up
            if not known.ends_server:
                raise
            text = (
                f"tritonserver exited {known.ends} times in a row while loading model {name}, which is not loaded "
                f"again automatically ({lost.text}). Fix it, then run: pytriton-daemon repository load {name}"
            )
            raise RemoteFailure(ErrorKind.LOAD_FAILED, text) from lost
        known.ends = 0

    def refuse_registered(self, name: str, known: ModelRecord) -> None:
        """Raise RemoteFailure if the name belongs to a registered model."""
        present = {one.spec.name: one for one in self._registry}.get(name)
        is_lazy = present is None and self._registry.restoring.is_lazy(name)
        if is_lazy or (present is not None and present is not known.registration):
            raise RemoteFailure(
                ErrorKind.EXISTS,
                f"a model named {name!r} is registered already: unregister it, then load the one of the repository",
            )
