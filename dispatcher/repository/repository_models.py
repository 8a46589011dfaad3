"""The models of the repositories that the daemon is given: loaded, unloaded, loaded anew at run time.

tritonserver has one repository, the daemon's own. A model that it serves itself is linked into that one;
one of a backend that it lacks is registered like any callable, but kept nowhere: its folder is what is kept.
Repositories in a cloud (s3://, gs://, as://) are tritonserver's own business, and so are their models.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from pytriton._host.install.python_on_demand import PythonOnDemand
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.repository import model_folders
from pytriton.dispatcher.repository.file_watch import FileWatch
from pytriton.dispatcher.repository.load_queue import LoadQueue
from pytriton.dispatcher.repository.materialize import BadFileName, MaterializedFiles
from pytriton.dispatcher.repository.model_folders import FoundModel, UnservableModel
from pytriton.dispatcher.repository.model_loading import ModelLoading
from pytriton.dispatcher.repository.model_records import (
    TRITONSERVER,
    ModelRecord,
    ModelRecords,
)
from pytriton.dispatcher.repository.repository_places import Places
from pytriton.dispatcher.runtime.upgrade_snapshot import RepositoriesState
from pytriton.dispatcher.server import own_repository
from pytriton.dispatcher.server.server_process import ServerLost
from pytriton.dispatcher.server.tritonserver import TritonServer
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import LOG_ONLY, Events

_log = structlog.get_logger(__name__)

#: States of tritonserver's for a model that it does not serve (any more).
_GONE = ("", "UNAVAILABLE")
_LOOK_S = 0.05


class RepositoryModels:
    """The models of all given repositories: loads, unloads and lists them by name."""

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
        """`is_adopted`: a former version of the daemon has loaded models; `adopt` follows."""
        self._config = config
        self._events = events
        self._models = models
        self._python = python
        self._server = server
        self._registry = registry
        self._places = Places(config.model_repository, models, server, registry)
        self.known = ModelRecords(server, registry)
        self._loading = ModelLoading(
            config,
            models=models,
            backends=backends,
            python=python,
            library=library,
            server=server,
            registry=registry,
            places=self._places,
        )
        self._given = MaterializedFiles(models.parent / "given", is_adopted=is_adopted)
        self._begun = False
        self._many = LoadQueue(self.load, self.known, server, registry, events)
        #: Of those that tritonserver serves itself: state, reason and ends before they were loaded again.
        self._former: dict[str, tuple[str, str, int]] = {}
        #: With "poll".
        self.watch = FileWatch(self._places, config.repository_poll_s, self._follow)
        self._needs_python = False
        #: Whether all that are to be served from the start are, or could not be.
        self.tried = False

    # ── life ─────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Load what the control mode says; with "poll", go on looking. What fails is told by `index`."""
        polls = self._config.model_control_mode == "poll"
        if polls:
            # First of all: the loads may take minutes, and what changes meanwhile is loaded then.
            await self.watch.begin()
        if not self.tried:
            await self._load_wanted()
        elif self._needs_python:  # the backends have been laid out anew
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
            self.known.of(name).state = "loading"
        self._begun = True
        await self._many.at_start(wanted, await self._places.ensembles(names))
        self.tried = True
        self._registry.news.tell()

    async def load_again(self) -> None:
        """After tritonserver was started again: load the models that it serves itself."""
        self._former = {
            name: (one.state, one.reason, one.ends)
            for name, one in self.known.items()
            if one.served_by == TRITONSERVER
        }
        # An ensemble's steps were loaded before it, so they were known before.
        in_order = sorted(self._former, key=lambda name: self.known.of(name).loaded_at)
        # Those during whose load tritonserver has ended are loaded one by one, so that it is seen which one ends it.
        alone = [name for name in in_order if self.known.of(name).steps or self.known.of(name).ends]
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
        if not survived:  # the next one is told to load all that are ready
            return
        self.known.server_lost = False
        self._registry.news.tell()

    async def _load_missing(self, name: str) -> bool:
        """Load a model into a tritonserver that was started again; False: that has ended meanwhile."""
        known = self.known.of(name)
        async with known.lock:
            if not known.is_missing:
                return True
            try:
                await self._loading.load_again(name, known, maybe_python=self._needs_python)
            except ServerLost:
                return False
            except RemoteFailure as failure:
                known.state, known.reason = "failed", failure.text
                self._events.tell(kinds.NOT_LOADED, model=name, reason=failure.text)
            else:
                known.state, known.reason = "ready", ""
        return True

    def former_serves_on(self) -> None:
        """Undo the last `load_again`: the tritonserver that was to replace another one does not."""
        for name, (state, reason, ends) in self._former.items():
            known = self.known.of(name)
            if known.served_by == TRITONSERVER and not known.lock.locked():
                known.state, known.reason, known.ends = state, reason, ends
        self.known.server_lost = False
        self._registry.news.tell()

    def use(self, config: DaemonConfig) -> None:
        """Take over changed settings."""
        self._config = config

    async def stop(self) -> None:
        """Have tritonserver unload what it serves itself; returns when requests under way are answered.

        At the most, that takes the grace period.
        """
        leaving = {name for name, known in self.known.items() if known.served_by == TRITONSERVER}
        for name in leaving:
            await self._try_to_unload(name, self._server.unload(name))
        deadline = asyncio.get_running_loop().time() + self._config.grace_period_s
        while leaving and self._server.ready and asyncio.get_running_loop().time() < deadline:
            try:
                states = await self._server.repository_states()
            except RemoteFailure:  # it has ended
                return
            leaving = {name for name in leaving if states.get(name, "") not in _GONE}
            await asyncio.sleep(_LOOK_S)  # tritonserver tells only who asks

    def problems(self) -> list[str]:
        """Return which repositories cannot be read, and why, a sentence each."""
        return self._places.problems()

    # ── an upgrade of the daemon ─────────────────────────────────────────────────────────────────

    @property
    def settled(self) -> bool:
        """Whether no model is being loaded or unloaded."""
        return self.tried and not any(one.lock.locked() for one in self.known.values())

    def hand_over(self) -> RepositoriesState:
        """Return what the next version needs; all is settled."""
        python = self._python.is_there or self._needs_python  # it may be under way
        return RepositoriesState(self.known.hand_over(), python, self.watch.hand_over())

    def adopt(self, state: RepositoriesState) -> None:
        """Go on with the models that a former version has loaded; those of workers are registered already."""
        self.known.adopt(state.models)
        self.watch.adopt(state.seen)
        self._needs_python = state.python
        self._begun = self.tried = True

    # ── at run time ──────────────────────────────────────────────────────────────────────────────

    async def load(
        self,
        name: str,
        config: Mapping[str, Any] | None = None,
        files: Mapping[str, bytes] | None = None,
        above: Sequence[str] = (),
    ) -> None:
        """Load a model, or load it anew: the one that is there serves until then.

        Steps of an ensemble that are not served yet are loaded first, as tritonserver does with its own.

        Args:
            name: of the model
            config: a configuration to use instead of the one in its folder
            files: all that its folder is to hold ("file:1/model.onnx"), until it is unloaded or loaded without
            above: the ensembles whose step it is

        Raises:
            RemoteFailure: there is no such model, or it cannot be served; what was there serves on.
        """
        # One that a client has registered keeps its name, if it can be restored.
        await self._registry.restoring.until_settled(name)
        names = await self.names()
        given = await self._write(name, files) if files else None
        if given is not None:
            names[name] = str(given)
        if name not in names:
            known = ", ".join(sorted(names)) or "none"
            raise RemoteFailure(
                ErrorKind.NOT_FOUND,
                f"no model repository has a model {name!r}; there are: {known}",
            )
        known_model = self.known.of(name)
        async with known_model.lock:
            self.known.mend(name)
            before = dataclasses.replace(known_model)
            unneeded = given
            known_model.state, known_model.loading_since = "loading", time.time()
            try:
                await self._loading.load(
                    name, names[name], known_model, config, partial(self._load_steps, above=above)
                )
            except (RemoteFailure, UnservableModel) as error:
                serves_on = before.served_by != "" and not known_model.ends_server
                known_model.state = before.state if serves_on else "failed"
                known_model.served_by, known_model.reason = before.served_by, str(error)
                if isinstance(error, RemoteFailure):  # ServerLost among them
                    raise
                raise RemoteFailure(ErrorKind.LOAD_FAILED, str(error)) from error
            except BaseException:
                known_model.state = before.state
                raise
            else:
                if str(known_model.given) != names[name]:
                    unneeded, known_model.given = known_model.given, given
            finally:
                known_model.loading_since = 0.0
                self._given.remove(unneeded)
            known_model.state, known_model.reason = "ready", ""
            known_model.as_step = bool(above) and (before.as_step or not before.served_by)
            known_model.loaded_at = time.time()
        self._registry.news.tell()
        _log.info("model of a repository loaded", model=name, served_by=known_model.served_by)

    async def unload(self, name: str) -> None:
        """Stop serving a model; requests under way are answered.

        Raises:
            RemoteFailure: it is not served from a repository.
        """
        await self._server.placed.wait()
        known = self._served(name)
        async with known.lock:
            self.known.mend(name)
            self._served(name)
            state, known.state = known.state, "unloading"
            try:
                if known.served_by == TRITONSERVER:
                    await self._server.unload(name)
                    own_repository.unlink(self._models, name)
                elif known.registration is not None:
                    await self._registry.adaptations.give_way(name)
                    await self._registry.end(known.registration, "it was unloaded")
            except BaseException:
                known.state = state
                raise
            known.unload()
            self._given.remove(known.given)
            known.given = None
        _log.info("model of a repository unloaded", model=name)

    async def index(self) -> list[messages.RepositoryModel]:
        """Return all models that there are, with what became of them."""
        names = await self.names()
        loading = not self._begun
        for name, known in self.known.items():
            if not known.lock.locked():
                self.known.mend(name)
        return [
            messages.RepositoryModel(
                name=name,
                repository=names.get(name, ""),
                versions=self.known.of(name).versions,
                state="loading" if loading else self.known.state_of(name),
                served_by=self.known.of(name).served_by,
                reason=self.known.of(name).reason,
            )
            for name in sorted({*names, *self.known})
        ]

    async def names(self) -> dict[str, str]:
        """Return name -> repository; that of files which came with a request is the last to count."""
        found = await self._places.names()
        for name, known in self.known.items():
            if known.given is not None:
                found.setdefault(name, str(known.given))
        return found

    # ── how ──────────────────────────────────────────────────────────────────────────────────────

    def _served(self, name: str) -> ModelRecord:
        """Return the record of a model that is served from a repository; raises RemoteFailure if it is not."""
        known = self.known.get(name)
        if known is None or not known.served_by:
            raise RemoteFailure(
                ErrorKind.NOT_FOUND, f"no model {name!r} of a model repository is loaded"
            )
        return known

    async def _write(self, name: str, files: Mapping[str, bytes]) -> Path:
        try:
            return await asyncio.to_thread(self._given.write, name, files)
        except BadFileName as error:
            raise RemoteFailure(ErrorKind.INVALID, f"files for model {name}: {error}") from error
        except OSError as error:
            raise RemoteFailure(
                ErrorKind.UNAVAILABLE, f"the files of model {name} cannot be kept: {error}"
            ) from error

    async def _try_to_unload(self, name: str, unloading: Awaitable[None]) -> None:
        try:
            await unloading
        except RemoteFailure as failure:
            _log.error("tritonserver refused", model=name, reason=failure.text)

    async def _load_steps(self, model: FoundModel, *, above: Sequence[str]) -> None:
        """Load the steps of an ensemble that nobody serves; of those that no repository has, tritonserver tells.

        Raises:
            UnservableModel: one cannot be loaded.
        """
        steps = model_folders.steps_of(model.config)
        if not steps:
            return
        above = [*above, model.name]
        for step in steps:
            self._registry.restoring.ask_for(step)
            await self._registry.restoring.until_settled(step)
        ours = {registration.spec.name for registration in self._registry}
        there = await self.names()
        for step in dict.fromkeys(steps):
            if step in above or step in ours or step not in there or self.known.of(step).served_by:
                continue
            known = self.known.of(step)
            if known.ends_server:
                raise UnservableModel(
                    f"ensemble {model.name}: its step {step} cannot be loaded: {known.reason}"
                )
            try:
                await self.load(step, above=above)
            except ServerLost:  # it may have been another model's fault
                raise
            except RemoteFailure as failure:
                raise UnservableModel(
                    f"ensemble {model.name}: its step {step} cannot be loaded: {failure.text}"
                ) from failure

    async def _follow(self, changed: list[str], gone: list[str]) -> None:
        """Load what has appeared or changed in the repositories, unload what is gone."""
        ensembles = await self._places.ensembles(await self._places.names()) if changed else {}
        await self._many.anew(changed, ensembles)
        for name in gone:
            if self.known.serves(name):
                await self._many.until_up()
                await self._try_to_unload(name, self.unload(name))
            elif self.known.forget_failure(name):
                self._registry.news.tell()
