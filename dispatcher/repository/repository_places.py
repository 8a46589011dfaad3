"""Finds models in the given repositories; searches them on every call, because files change."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import structlog

from pytriton._host.install.proxy_compiler import NATIVE_BACKEND
from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.repository import model_folders
from pytriton.dispatcher.repository.model_folders import FoundModel, Snapshot, UnservableModel
from pytriton.dispatcher.server import own_repository
from pytriton.dispatcher.server.own_repository import BACKEND
from pytriton.dispatcher.server.tritonserver import TritonServer
from pytriton.formats import table

_log = structlog.get_logger(__name__)

#: Stands for a cloud repository: tritonserver does not report in which one it found a model.
CLOUD = "cloud"


class Placed(NamedTuple):
    """A model in a repository: the repository, and the model's files."""

    place: str
    files: Snapshot


class Places:
    """The repositories given to the daemon, in order of precedence."""

    def __init__(
        self, repositories: tuple[str, ...], models: Path, server: TritonServer, registry: Registry
    ) -> None:
        self._repositories = repositories
        self._models = models
        self._server = server
        self._registry = registry
        #: Repositories logged as unreadable, and why.
        self._reported: dict[str, str] = {}

    def problems(self) -> list[str]:
        """Return why repositories could not be read during the last search, one sentence each."""
        return [f"a model repository was skipped: {why}" for why in self._reported.values()]

    async def names(self) -> dict[str, str]:
        """Return name -> repository; the first repository with a name takes precedence."""
        return (await self._find())[0]

    async def _find(self) -> tuple[dict[str, str], set[str]]:
        """Return the result of `names`, and the repositories that cannot be read."""
        found: dict[str, str] = {}
        unreadable = set()
        for place in self._repositories:
            if "://" in place:
                continue
            try:
                names = await asyncio.to_thread(model_folders.model_names, Path(place))
            except UnservableModel as error:
                if self._reported.get(place) != str(error):  # log it only once
                    _log.error("skipping a model repository", reason=str(error))
                self._reported[place] = str(error)
                unreadable.add(place)
                continue
            self._reported.pop(place, None)
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
            _log.error("skipping a model repository", reason=failure.text)
            return []
        return [name for name in names if name not in ours and not (self._models / name).exists()]

    async def read(self, name: str, place: str) -> FoundModel:
        """Read a model's folder.

        Raises:
            UnservableModel: its config.pbtxt cannot be read, or names another model.
        """
        return await asyncio.to_thread(model_folders.read_model, Path(place) / name)

    async def ensembles(self, names: Mapping[str, str]) -> dict[str, list[str]]:
        """Return the steps of each ensemble; unreadable models are skipped and reported when they are loaded."""
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
        """Return the repository and a snapshot of the files of each model, by name.

        A model that cannot be read keeps its entry of `former`: a repository that is briefly unreachable has not lost
        its models, and a model that is being replaced is read in the next poll.
        """
        names, unreadable = await self._find()
        now = {}
        for name, place in names.items():
            if place == CLOUD:
                continue
            try:
                found = await asyncio.to_thread(model_folders.snapshot, Path(place) / name)
            except OSError as error:
                _log.debug("model changed while it was read", model=name, reason=str(error))
                if name in former:
                    now[name] = former[name]
                continue
            known = former[name].files.unreadable if name in former else {}
            for folder in found.unreadable.keys() - known.keys():
                reason = found.unreadable[folder]
                _log.error("skipping an unreadable folder of a model", folder=folder, reason=reason)
            now[name] = Placed(place, found)
        lost = {name: one for name, one in former.items() if one.place in unreadable}
        return {**now, **lost}


# ── Models in cloud repositories (s3://, gs://, as://), whose files only tritonserver can read ──


def explained(failure: RemoteFailure, backends: Path) -> RemoteFailure:
    """Add to the failure of a load what can be served from a cloud, and what to do for other models.

    Neither the daemon nor a worker sees the files, so the model's format is unknown here.

    Args:
        failure: tritonserver's error
        backends: the directory of tritonserver's backends
    """
    there = sorted({one.name for one in backends.iterdir()} - {BACKEND, NATIVE_BACKEND})
    formats = ", ".join(one.title for one in table.FORMATS)
    return RemoteFailure(
        failure.kind,
        f"{failure.text.rstrip()}\nModels in a cloud are served by tritonserver itself: those of the backends that it "
        f"has ({', '.join(there) or 'none'}), with a config.pbtxt. Workers serve {formats} models too, but only of "
        "folders on this machine: copy the repository to one (`aws s3 sync`, `gcloud storage rsync`, `azcopy sync`), "
        "and start the daemon with --model-repository FOLDER.",
        failure.traceback,
    )
