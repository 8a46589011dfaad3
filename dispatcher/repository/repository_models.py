"""The models of the configured repositories: loads, unloads and reloads.

tritonserver has a single repository, the daemon's own. If tritonserver itself serves a model, the model is linked into
that repository. If it lacks the model's backend, the model is registered like any callable, but not persisted, since
its folder already persists it. Repositories in a cloud (s3://, gs://, as://) and their models are handled by
tritonserver alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from pytriton._host.install.python_on_demand import PythonOnDemand
from pytriton._host.settings import core_faults
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._host.settings.triton_options import repository_poll_s
from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.repository import model_folders
from pytriton.dispatcher.repository.model_folders import FoundModel, UnservableModel
from pytriton.dispatcher.repository.model_loader import LoadQueue, ModelLoader
from pytriton.dispatcher.repository.model_records import (
    TRITONSERVER,
    ModelRecord,
    ModelRecords,
)
from pytriton.dispatcher.repository.repositories import (
    CLOUD,
    BadFileName,
    Repositories,
    UploadedModels,
)
from pytriton.dispatcher.repository.watch import FileWatch
from pytriton.dispatcher.server import own_repository
from pytriton.dispatcher.server.server_process import ServerLost
from pytriton.dispatcher.server.tritonserver import TritonServer
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import LOG_ONLY, Events
from pytriton.dispatcher.upgrade.snapshot import RepositoriesState

_log = structlog.get_logger(__name__)

#: tritonserver's states of a model that it does not serve.
_GONE = ("", "UNAVAILABLE")
_POLL_INTERVAL_S = 0.05


class RepositoryModels:
    """The models of all configured repositories: loads, unloads and lists them by name."""

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
        is_adopted: bool = False,
        events: Events = LOG_ONLY,
    ) -> None:
        """Create the object. With `is_adopted`, the next call must be `adopt`, with the models from before an
        upgrade.
        """
        self._config = config
        self._events = events
        self._models = models
        self._python = python
        self._server = server
        self._registry = registry
        self._places = Repositories(config.model_repository, models, server, registry.served)
        self.records = ModelRecords(server, registry)
        self._loader = ModelLoader(
            config,
            models=models,
            backends=backends,
            python=python,
            library=library,
            server=server,
            registry=registry,
            places=self._places,
            events=events,
        )
        self._uploads = UploadedModels(models.parent / "given", is_adopted=is_adopted)
        self._has_started = False
        self._load_queue = LoadQueue(self.load, self.records, server, registry, events)
        #: State, reason and exits of models in tritonserver, before they were loaded again.
        self._former: dict[str, tuple[str, str, int]] = {}
        #: Used in the control mode "poll".
        self.watch = FileWatch(
            self._places, repository_poll_s(config.tritonserver_options), self._follow
        )
        self._needs_python = False
        #: Whether all models to load at the start were loaded or failed.
        self.tried = False

    # ── lifetime ─────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Load the models as the control mode requires. In mode "poll", keep polling. `index` shows failures."""
        polls = self._config.model_control_mode == "poll"
        if polls:
            # Before the loads, which may take minutes: changes during them are loaded afterwards.
            await self.watch.begin()
        if not self.tried:
            await self._load_wanted()
        elif self._needs_python:  # the backends have been reinstalled
            await self._python.ensure_if_possible("of a repository")
        if polls:
            await self.watch.run()

    async def _load_wanted(self) -> None:
        names = await self.names()
        wanted = list(names)
        if self._config.model_control_mode == "explicit":
            wanted = list(self._config.load_model)
            wanted = list(names) if wanted == ["*"] else wanted
        for name in wanted:
            self.records.of(name).state = "loading"
        self._has_started = True
        await self._load_queue.load_all(wanted, await self._places.ensembles(names))
        self.tried = True
        self._registry.changes.notify()

    async def reload_all(self) -> None:
        """Load the models that tritonserver itself serves into a restarted tritonserver."""
        self._former = {
            name: (one.state, one.reason, one.server_exits)
            for name, one in self.records.items()
            if one.served_by == TRITONSERVER
        }
        # An ensemble's steps were loaded before it, so order by time.
        in_order = sorted(self._former, key=lambda name: self.records.of(name).loaded_at)
        # Models during whose load tritonserver exited are loaded one by one, to identify the one that crashes it.
        alone = [
            name
            for name in in_order
            if self.records.of(name).steps or self.records.of(name).server_exits
        ]
        loads: list[asyncio.Task[bool]] = []
        try:
            for name in in_order:
                if name not in alone:
                    await self._registry.load_slots.until_free()
                    loads.append(self._registry.load_slots.begin(name, self._load_missing(name)))
            survived = all(await asyncio.gather(*loads))
        finally:
            for load in loads:
                load.cancel()
        for name in alone:
            survived = survived and await self._load_missing(name)
        if not survived:  # the next server loads all models that are ready
            return
        self.records.server_lost = False
        self._registry.changes.notify()

    async def _load_missing(self, name: str) -> bool:
        """Load a model into a restarted tritonserver. Return False if tritonserver exited during the load."""
        record = self.records.of(name)
        async with record.lock:
            if not record.needs_reload:
                return True
            try:
                await self._loader.reload(name, record, maybe_python=self._needs_python)
            except ServerLost:
                return False
            except RemoteFailure as failure:
                record.state, record.reason = "failed", failure.text
                self._events.emit(kinds.REPOSITORY_LOAD_FAILED, model=name, reason=failure.text)
            else:
                record.state, record.reason = "ready", ""
        return True

    def undo_reload(self) -> None:
        """Undo the last `reload_all`, because the replacement of tritonserver failed."""
        for name, (state, reason, ends) in self._former.items():
            record = self.records.of(name)
            if record.served_by == TRITONSERVER and not record.lock.locked():
                record.state, record.reason, record.server_exits = state, reason, ends
        self.records.server_lost = False
        self._registry.changes.notify()

    def use(self, config: DaemonConfig) -> None:
        """Apply changed settings."""
        self._config = config

    async def stop(self) -> None:
        """Unload the models that tritonserver itself serves.

        Return once the requests in progress have been answered, or after the grace period.
        """
        leaving = {
            name for name, record in self.records.items() if record.served_by == TRITONSERVER
        }
        for name in leaving:
            await self._unload_or_log(name, self._server.unload(name))
        deadline = asyncio.get_running_loop().time() + self._config.grace_period_s
        while leaving and self._server.ready and asyncio.get_running_loop().time() < deadline:
            try:
                states = await self._server.repository_states()
            except RemoteFailure:  # it has exited
                return
            leaving = {name for name in leaving if states.get(name, "") not in _GONE}
            await asyncio.sleep(_POLL_INTERVAL_S)  # tritonserver does not notify

    def problems(self) -> list[str]:
        """Return one sentence for each repository that cannot be read, with the reason."""
        return self._places.problems()

    # ── an upgrade of the daemon ─────────────────────────────────────────────────────────────────

    @property
    def is_quiescent(self) -> bool:
        """Whether no model is being loaded or unloaded."""
        return self.tried and not any(one.lock.locked() for one in self.records.values())

    def hand_over(self) -> RepositoriesState:
        """Return the state to be handed over in an upgrade. No model may be loading or unloading."""
        python = self._python.is_there or self._needs_python  # it may be in progress
        return RepositoriesState(self.records.hand_over(), python, self.watch.hand_over())

    def adopt(self, state: RepositoriesState) -> None:
        """Restore the models that were loaded before an upgrade. Those served by workers are already registered."""
        self.records.adopt(state.models)
        self.watch.adopt(state.seen)
        self._needs_python = state.python
        self._has_started = self.tried = True

    # ── at run time ──────────────────────────────────────────────────────────────────────────────

    async def load(
        self,
        name: str,
        config: Mapping[str, Any] | None = None,
        files: Mapping[str, bytes] | None = None,
        parent_ensembles: Sequence[str] = (),
    ) -> None:
        """Load or reload a model; a previous one keeps serving until the new one is ready.

        Steps of an ensemble that are not served yet are loaded first, as tritonserver does.

        Args:
            name: name of the model
            config: a configuration that overrides the one in its folder
            files: the complete content of its folder, by name ("file:1/model.onnx"); used until the model is unloaded or
                loaded without files
            parent_ensembles: the ensembles that have it as a step

        Raises:
            RemoteFailure: the model does not exist or cannot be served. A previous one keeps serving.
        """
        # A registered model keeps its name if it can be restored.
        await self._registry.restoring.until_attempted(name)
        names = await self.names()
        uploaded = await self._write(name, files) if files else None
        if uploaded is not None:
            names[name] = str(uploaded)
        if name not in names:
            available = ", ".join(sorted(names)) or "none"
            raise RemoteFailure(
                ErrorKind.NOT_FOUND,
                f"no model repository has a model {name!r}; available: {available}",
            )
        record = self.records.of(name)
        async with record.lock:
            self.records.refresh(name)
            before = dataclasses.replace(record)
            unneeded = uploaded
            record.state, record.loading_since = "loading", time.time()
            try:
                await self._loader.load(
                    name,
                    names[name],
                    record,
                    config,
                    partial(self._load_steps, parent_ensembles=parent_ensembles),
                )
            except (RemoteFailure, UnservableModel) as error:
                serves_on = before.served_by != "" and not record.crashes_server
                record.state = before.state if serves_on else "failed"
                record.served_by, record.reason = before.served_by, str(error)
                if isinstance(error, RemoteFailure):  # including ServerLost
                    raise
                raise RemoteFailure(ErrorKind.LOAD_FAILED, str(error)) from error
            except BaseException:
                record.state = before.state
                raise
            else:
                if str(record.uploaded) != names[name]:
                    unneeded, record.uploaded = record.uploaded, uploaded
            finally:
                record.loading_since = 0.0
                self._uploads.remove(unneeded)
            record.state, record.reason = "ready", ""
            record.as_step = bool(parent_ensembles) and (before.as_step or not before.served_by)
            record.loaded_at = time.time()
        self._registry.changes.notify()
        _log.info("repository model loaded", model=name, served_by=record.served_by)

    async def unload(self, name: str) -> None:
        """Stop serving a model. Requests in progress are answered.

        Raises:
            RemoteFailure: no loaded repository model has this name.
        """
        await self._server.placed.wait()
        record = self._served(name)
        async with record.lock:
            self.records.refresh(name)
            self._served(name)
            state, record.state = record.state, "unloading"
            try:
                if record.served_by == TRITONSERVER:
                    await self._server.unload(name)
                    own_repository.unlink(self._models, name)
                elif record.registration is not None:
                    await self._registry.background_changes.preempt(name)
                    await self._registry.end(record.registration, "it was unloaded")
            except BaseException:
                record.state = state
                raise
            record.unload()
            self._uploads.remove(record.uploaded)
            record.uploaded = None
        _log.info("repository model unloaded", model=name)

    async def index(self) -> list[messages.RepositoryModel]:
        """Return all models with their states."""
        names = await self.names()
        loading = not self._has_started
        for name, record in self.records.items():
            if not record.lock.locked():
                self.records.refresh(name)
        return [
            messages.RepositoryModel(
                name=name,
                repository=names.get(name, ""),
                versions=self.records.of(name).versions,
                state="loading" if loading else self.records.state_of(name),
                served_by=self.records.of(name).served_by,
                reason=self.records.of(name).reason,
            )
            for name in sorted({*names, *self.records})
        ]

    async def names(self) -> dict[str, str]:
        """Return the repository of each model, by name. Files sent with a load request have the lowest precedence."""
        found = await self._places.names()
        for name, record in self.records.items():
            if record.uploaded is not None:
                found.setdefault(name, str(record.uploaded))
        return found

    # ── internals ────────────────────────────────────────────────────────────────────────────────

    def _served(self, name: str) -> ModelRecord:
        """Return the record of a loaded repository model; raise RemoteFailure if there is none."""
        record = self.records.get(name)
        if record is None or not record.served_by:
            raise RemoteFailure(
                ErrorKind.NOT_FOUND,
                f"no model named {name!r} has been loaded from a model repository",
            )
        return record

    async def _write(self, name: str, files: Mapping[str, bytes]) -> Path:
        try:
            return await asyncio.to_thread(self._uploads.write, name, files)
        except BadFileName as error:
            raise RemoteFailure(ErrorKind.INVALID, f"files for model {name}: {error}") from error
        except OSError as error:
            raise RemoteFailure(
                ErrorKind.UNAVAILABLE, f"the files of model {name} cannot be stored: {error}"
            ) from error

    async def _unload_or_log(self, name: str, unloading: Awaitable[None]) -> None:
        try:
            await unloading
        except RemoteFailure as failure:
            _log.error("tritonserver refused to unload a model", model=name, reason=failure.text)

    async def _load_steps(self, model: FoundModel, *, parent_ensembles: Sequence[str]) -> None:
        """Load those steps of an ensemble that are not served yet. If a step is in no repository, tritonserver reports
        it.

        Raises:
            UnservableModel: a step cannot be loaded, or the ensemble triggers a fault of tritonserver's core.
        """
        steps = model_folders.steps_of(model.config)
        if not steps:
            return
        parent_ensembles = [*parent_ensembles, model.name]
        for step in steps:
            self._registry.restoring.restore_now(step)
            await self._registry.restoring.until_attempted(step)
        ours = {registration.spec.name for registration in self._registry.served}
        available = await self.names()
        for step in dict.fromkeys(steps):
            if (
                step in parent_ensembles
                or step in ours
                or step not in available
                or self.records.of(step).served_by
            ):
                continue
            record = self.records.of(step)
            if record.crashes_server:
                raise UnservableModel(
                    f"ensemble {model.name}: its step {step} cannot be loaded: {record.reason}"
                )
            try:
                await self.load(step, parent_ensembles=parent_ensembles)
            except ServerLost:  # possibly caused by another model
                raise
            except RemoteFailure as failure:
                raise UnservableModel(
                    f"ensemble {model.name}: its step {step} cannot be loaded: {failure.text}"
                ) from failure
        await self._check_core_faults(model, available)

    async def _check_core_faults(self, ensemble: FoundModel, available: Mapping[str, str]) -> None:
        """Refuse an ensemble that could block forever in this version of tritonserver, and warn about one whose memory
        is unbounded.

        Raises:
            UnservableModel: the ensemble could block.
        """
        configs: dict[str, Mapping[str, Any]] = {}
        registered = {one.spec.name: one.spec.config for one in self._registry.served}
        for step in set(model_folders.steps_of(ensemble.config)):
            place = available.get(step, CLOUD)
            if step in registered:
                configs[step] = registered[step]
            elif (record := self.records.get(step)) is not None and record.config is not None:
                configs[step] = record.config
            elif place != CLOUD:
                with contextlib.suppress(
                    UnservableModel
                ):  # the step may be served as it was before
                    configs[step] = (await self._places.read(step, place)).config
        version = self._server.info().version
        why = core_faults.blocked_by_full_queue(ensemble.config, configs, version)
        if why is not None:
            raise UnservableModel(f"ensemble {ensemble.name}: {why}")
        producer = core_faults.unbounded_step(ensemble.config, configs)
        if producer is not None:
            _log.warning(
                "ensemble may use unlimited memory",
                model=ensemble.name,
                reason=f"all responses of its decoupled step {producer} are held in memory until the next step takes them",
                fix="limit the number of responses to a request; tritonserver 26.05 or later has max_inflight_requests",
            )

    async def _follow(self, changed: list[str], removed: list[str]) -> None:
        """Load models that were added or changed in the repositories, and unload removed ones."""
        ensembles = await self._places.ensembles(await self._places.names()) if changed else {}
        await self._load_queue.reload(changed, ensembles)
        for name in removed:
            if self.records.serves(name):
                await self._load_queue.wait_until_up()
                await self._unload_or_log(name, self.unload(name))
            elif self.records.reset_failure(name):
                self._registry.changes.notify()
