"""The look-up of models in the given repositories: anew each time, since files come and go."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import structlog

from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.repository import model_folders
from pytriton.dispatcher.repository.model_folders import FoundModel, Snapshot, UnservableModel
from pytriton.dispatcher.server import own_repository
from pytriton.dispatcher.server.tritonserver import TritonServer

_log = structlog.get_logger(__name__)

#: In place of a repository's path: tritonserver does not tell in which of them it found a model.
CLOUD = "cloud"


class Placed(NamedTuple):
    """A model in a repository: which one that is, and the model's files."""

    place: str
    files: Snapshot


class Places:
    """The repositories that the daemon was given, in order: the first one that has a name counts."""

    def __init__(
        self, repositories: tuple[str, ...], models: Path, server: TritonServer, registry: Registry
    ) -> None:
        self._repositories = repositories
        self._models = models
        self._server = server
        self._registry = registry
        #: Repositories of which the log says that they cannot be read, and why.
        self._told: dict[str, str] = {}

    def problems(self) -> list[str]:
        """Return why repositories could not be read when they were last looked through, a sentence each."""
        return [f"a model repository is passed over: {why}" for why in self._told.values()]

    async def names(self) -> dict[str, str]:
        """Return name -> repository; the first repository that has a name counts."""
        return (await self._find())[0]

    async def _find(self) -> tuple[dict[str, str], set[str]]:
        """Return what `names` does, and the repositories that cannot be read."""
        found: dict[str, str] = {}
        unreadable = set()
        for place in self._repositories:
            if "://" in place:
                continue
            try:
                names = await asyncio.to_thread(model_folders.model_names, Path(place))
            except UnservableModel as error:
                if self._told.get(place) != str(error):  # once, however often it is asked for
                    _log.error("a model repository is passed over", reason=str(error))
                self._told[place] = str(error)
                unreadable.add(place)
                continue
            self._told.pop(place, None)
            for name in names:
                found.setdefault(name, place)
        for name in await self._cloud_names():
            found.setdefault(name, CLOUD)
        return found, unreadable

    async def _cloud_names(self) -> list[str]:
        if not own_repository.cloud(self._repositories) or not self._server.ready:
            return []
        ours = {registration.spec.name for registration in self._registry}
        try:
            names = list(await self._server.repository_states())
        except RemoteFailure as failure:
            _log.error("a model repository is passed over", reason=failure.text)
            return []
        return [name for name in names if name not in ours and not (self._models / name).exists()]

    async def read(self, name: str, place: str) -> FoundModel:
        """Read a model's folder.

        Raises:
            UnservableModel: its config.pbtxt cannot be read, or is of another model.
        """
        return await asyncio.to_thread(model_folders.read_model, Path(place) / name)

    async def ensembles(self, names: Mapping[str, str]) -> dict[str, list[str]]:
        """Return the steps of those models that are made of others; what cannot be read is told when it is loaded."""
        found = {}
        for name, place in names.items():
            if place == CLOUD:
                continue
            with contextlib.suppress(UnservableModel):
                model = await self.read(name, place)
                steps = model_folders.steps_of(model.config)
                if steps:
                    found[name] = steps
        return found

    async def snapshots(self, former: Mapping[str, Placed]) -> dict[str, Placed]:
        """Return where each model is and what its files are, by name.

        A model that cannot be read just now keeps its entry of `former`: a repository that is out of reach for a moment
        has not lost its models, and a model that is being exchanged is looked at the next time.
        """
        names, unreadable = await self._find()
        now = {}
        for name, place in names.items():
            if place == CLOUD:
                continue
            try:
                found = await asyncio.to_thread(model_folders.snapshot, Path(place) / name)
            except OSError as error:
                _log.debug("a model changes while it is looked at", model=name, reason=str(error))
                if name in former:
                    now[name] = former[name]
                continue
            known = former[name].files.unreadable if name in former else {}
            for folder in found.unreadable.keys() - known.keys():
                reason = found.unreadable[folder]
                _log.error("a folder of a model is passed over", folder=folder, reason=reason)
            now[name] = Placed(place, found)
        lost = {name: one for name, one in former.items() if one.place in unreadable}
        return {**now, **lost}
