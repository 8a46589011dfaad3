"""Finds model folders: in the configured repositories, or in a folder for files that were sent with a load request.

The repositories are searched on every call, because files change.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import structlog

from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.models.served_models import ServedModels
from pytriton.dispatcher.repository import model_folders
from pytriton.dispatcher.repository.model_folders import FoundModel, Snapshot, UnservableModel
from pytriton.dispatcher.server import own_repository
from pytriton.dispatcher.server.tritonserver import TritonServer

_log = structlog.get_logger(__name__)

#: Stands for a cloud repository: tritonserver does not report in which one it found a model.
CLOUD = "cloud"
#: Prefix of file names in a load request, as in Triton's model repository extension: "file:1/model.onnx".
_FILE_PREFIX = "file:"


class ModelSnapshot(NamedTuple):
    """A model's repository, and a snapshot of its files."""

    place: str
    files: Snapshot


class Repositories:
    """The configured repositories, in order of precedence."""

    def __init__(
        self,
        repositories: tuple[str, ...],
        models: Path,
        server: TritonServer,
        served: ServedModels,
    ) -> None:
        self._repositories = repositories
        self._models = models
        self._server = server
        self._served = served
        #: Repositories logged as unreadable, and why.
        self._reported: dict[str, str] = {}

    def problems(self) -> list[str]:
        """Return one sentence for each repository that could not be read during the last search."""
        return [f"a model repository was skipped: {why}" for why in self._reported.values()]

    async def names(self) -> dict[str, str]:
        """Return the repository of each model, by name. If several contain a model, the first takes precedence."""
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
        if not own_repository.cloud_repositories(self._repositories) or not self._server.ready:
            return []
        ours = {registration.spec.name for registration in self._served}
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
        """Return the steps of each ensemble. Skip unreadable models; their errors are reported when they are loaded."""
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

    async def snapshots(self, former: Mapping[str, ModelSnapshot]) -> dict[str, ModelSnapshot]:
        """Return each model's repository and a snapshot of the model's files, by name.

        If a model cannot be read, its entry is taken from `former`: its repository may be unreachable for a moment, or
        the model is just being replaced.
        """
        names, unreadable = await self._find()
        now = {}
        for name, place in names.items():
            if place == CLOUD:
                continue
            try:
                found = await asyncio.to_thread(model_folders.snapshot, Path(place) / name)
            except OSError as error:
                _log.debug("model changed while its files were read", model=name, reason=str(error))
                if name in former:
                    now[name] = former[name]
                continue
            known = former[name].files.unreadable if name in former else {}
            for folder in found.unreadable.keys() - known.keys():
                reason = found.unreadable[folder]
                _log.error("skipping an unreadable model folder", folder=folder, reason=reason)
            now[name] = ModelSnapshot(place, found)
        lost = {name: one for name, one in former.items() if one.place in unreadable}
        return {**now, **lost}


# ── Files of load requests ───────────────────────────────────────────────────────────────────────


class BadFileName(ValueError):
    """A file name is not allowed in a model's folder."""


class UploadedModels:
    """Models whose files were sent with the load request, each in a separate repository: SERIAL/MODEL/VERSION/FILE.

    Args:
        folder: the directory
        is_adopted: whether to keep the folder's content, because it is still being served after an upgrade; otherwise
            the folder is emptied
    """

    def __init__(self, folder: Path, *, is_adopted: bool = False) -> None:
        self._folder = folder
        last = 0
        if is_adopted and folder.exists():
            last = max((int(one.name) for one in folder.iterdir()), default=0)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        self._serial = itertools.count(last + 1)

    def write(self, model: str, files: Mapping[str, bytes]) -> Path:
        """Write a model's files. Return the repository that contains only this model.

        Raises:
            BadFileName: a name is not allowed.
            OSError: the files cannot be written.
        """
        inside = {relative_path(name): content for name, content in files.items()}
        if "/" in model or model in ("", ".", ".."):
            raise BadFileName(
                f"{model!r} is not a valid name for a model whose files are sent with the request"
            )
        repository = self._folder / str(next(self._serial))
        try:
            for path, content in inside.items():
                place = repository / model / path
                place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                place.write_bytes(content)
        except OSError:
            self.remove(repository)
            raise
        return repository

    def remove(self, repository: Path | None) -> None:
        """Remove a repository created by `write`. Ignore None."""
        if repository is not None:
            shutil.rmtree(repository, ignore_errors=True)


def relative_path(name: str) -> PurePosixPath:
    """Convert a file name from a load request to a path within the model's folder.

    Raises:
        BadFileName: the name lacks the prefix "file:", or leads out of the folder.

    Example:
        >>> str(relative_path("file:1/model.py"))
        '1/model.py'
    """
    path = PurePosixPath(name[len(_FILE_PREFIX) :])
    if not name.startswith(_FILE_PREFIX) or not path.name:
        raise BadFileName(f'{name!r} is not a valid file name: use "file:1/model.py"')
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise BadFileName(f"{name!r} points outside the model's folder")
    return path
