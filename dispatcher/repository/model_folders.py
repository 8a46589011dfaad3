"""Reads model folders in the user's repositories, and decides whether tritonserver or workers serve each model.

```
REPOSITORY/NAME/config.pbtxt       optional if the file itself contains enough information
REPOSITORY/NAME/VERSION/model.onnx (or another name, depending on the format)
```
The layout is Triton's (model_repository.md). This module loads no model and imports no framework.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pytriton._host.install.proxy_compiler import NATIVE_BACKEND
from pytriton._protocol.arguments import with_article
from pytriton.dispatcher.server.own_repository import BACKEND
from pytriton.formats import pbtxt, table

#: Number of versions served by default (model_configuration.md, "Version Policy").
_DEFAULT_LATEST = 1
#: A custom batching library (user_guide/batcher.md, "Custom Batching").
_BATCH_STRATEGY = "batchstrategy.so"


class UnservableModel(Exception):
    """A repository model cannot be served. The text says which model, why, and what to do about it."""


@dataclass(frozen=True)
class FoundModel:
    """A model's folder.

    Args:
        name: name of the folder and of the model
        folder: path of the folder
        config: config.pbtxt in JSON form; empty if there is none
        versions: for each version, the names in its folder
    """

    name: str
    folder: Path
    config: Mapping[str, Any]
    versions: Mapping[int, frozenset[str]]

    @property
    def files(self) -> frozenset[str]:
        """Names of the files in all version folders."""
        return frozenset().union(*self.versions.values())

    def with_config(self, config: Mapping[str, Any]) -> FoundModel:
        """Return a copy of the model with a different configuration."""
        return FoundModel(self.name, self.folder, config, self.versions)


def model_names(repository: Path) -> list[str]:
    """Return the names of the models in a repository, sorted, without hidden folders.

    Raises:
        UnservableModel: the repository cannot be read.
    """
    try:
        return sorted(
            one.name for one in repository.iterdir() if one.is_dir() and one.name[0] != "."
        )
    except OSError as error:
        raise UnservableModel(
            f"the model repository {repository} cannot be read: {error.strerror}"
        ) from error


def read_model(folder: Path) -> FoundModel:
    """Read a model's folder.

    Raises:
        UnservableModel: its config.pbtxt cannot be read, or names another model.
    """
    file = folder / pbtxt.FILE
    try:
        config = pbtxt.read(file) if file.exists() else {}
        versions = {
            int(one.name): frozenset(entry.name for entry in one.iterdir())
            for one in folder.iterdir()
            if one.is_dir() and one.name.isdecimal() and one.name[0] != "0"
        }
    except (pbtxt.ConfigFileError, OSError) as error:
        raise UnservableModel(f"model {folder.name}: {error}") from error
    if config.get("name", folder.name) != folder.name:
        raise UnservableModel(
            f"model {folder.name}: {file} names the model {config['name']!r}. Use the name of the folder, or "
            "remove `name`"
        )
    return FoundModel(folder.name, folder, config, versions)


def served_versions(config: Mapping[str, Any], versions: Sequence[int]) -> list[int]:
    """Return the versions selected by the model's version policy, in order."""
    policy = config.get("version_policy", {})
    there = sorted(versions)
    if "all" in policy:
        return there
    if "specific" in policy:
        wanted = {int(one) for one in policy["specific"].get("versions", ())}
        return [one for one in there if one in wanted]
    count = int(policy.get("latest", {}).get("num_versions", _DEFAULT_LATEST))
    return there[-count:]


def route(
    model: FoundModel, backends: Path, python_backend_models: Sequence[str] = ()
) -> table.Format | None:
    """Return the model's format if workers serve it, or None if tritonserver itself does.

    tritonserver serves a model if its backend is in the backends directory or beside the model. Workers serve
    Python models, except those that need features only tritonserver's own python backend has.

    Args:
        model: the model
        backends: the directory of tritonserver's backends
        python_backend_models: names of Python models for tritonserver's own backend; "*" means all

    Raises:
        UnservableModel: neither of them can serve it.
    """
    backend = table.backend_of(model.config, model.files)
    if backend == table.PYTHON.backend and why_not_workers(model, python_backend_models) is None:
        return table.PYTHON
    if backend == "ensemble" or (backend and _has_backend(model, backends, backend)):
        return None
    form = table.format_of(model.config, model.files)
    if form is not None:
        return form
    if not backend:
        known = ", ".join(f"{one.files[0]} ({one.title})" for one in table.FORMATS)
        raise UnservableModel(
            f"model {model.name}: {model.folder} has no config.pbtxt that names a backend, and no version folder "
            f"that contains a file with a known name ({known}, or model.py)"
        )
    raise UnservableModel(
        f"model {model.name}: this tritonserver has no backend {backend!r} ({_backend_list(backends)}), and "
        f"workers cannot serve the model either. Use a tritonserver that has this backend (the tritonserver setting), or a model in "
        f"one of these formats: {', '.join(one.title for one in table.FORMATS)}"
    )


def why_not_workers(model: FoundModel, python_backend_models: Sequence[str]) -> str | None:
    """Return the reason for serving a Python model with tritonserver's own python backend; None if workers serve it."""
    if model.name in python_backend_models or "*" in python_backend_models:
        return "the setting python_backend_model names it"
    if model.config.get("model_repository_agents"):
        return "only tritonserver itself runs its model_repository_agents"
    places = [model.folder, *(model.folder / str(version) for version in model.versions)]
    if any((place / _BATCH_STRATEGY).exists() for place in places):
        return f"only tritonserver itself uses the {_BATCH_STRATEGY} in its folder"
    return None


def feature_workers_lack(model: FoundModel) -> str | None:
    """Describe a feature that a Python model needs but workers lack. Return None if there is none."""
    forced = model.config.get("parameters", {}).get("FORCE_CPU_ONLY_INPUT_TENSORS", {})
    if str(forced.get("string_value", "")).lower() == "no":
        return (
            "it takes inputs in GPU memory (FORCE_CPU_ONLY_INPUT_TENSORS: no), but workers pass inputs in CPU memory. "
            f"To serve it with tritonserver's own python backend, set python_backend_model = [{model.name!r}]"
        )
    return None


def steps_of(config: Mapping[str, Any]) -> list[str]:
    """Return the names of an ensemble's steps; an empty list for other models."""
    steps = config.get("ensemble_scheduling", {}).get("step", ())
    return [str(step.get("model_name", "")) for step in steps]


def files_of(model: FoundModel, form: table.Format) -> dict[int, Path]:
    """Return the model's file for each version that workers serve.

    Raises:
        UnservableModel: no version is served, or a version lacks its file.
    """
    versions = served_versions(model.config, list(model.versions))
    if not versions:
        there = ", ".join(map(str, sorted(model.versions))) or "none"
        raise UnservableModel(
            f"model {model.name}: its version policy selects none of its versions; {model.folder} has {there}"
        )
    files = {}
    for version in versions:
        name = table.file_name(form, model.config, model.versions[version])
        if name is None:
            wanted = model.config.get("default_model_filename") or " or ".join(form.files)
            raise UnservableModel(
                f"model {model.name}: {model.folder / str(version)} has no {wanted}, which "
                f"{with_article(form.title)} model needs"
            )
        files[version] = model.folder / str(version) / name
    return files


class Snapshot(NamedTuple):
    """Sizes and times of a model's files. Two snapshots differ if a file has changed.

    Attributes:
        files: size and time in nanoseconds of each file. Folders are excluded, so that a Python model's `__pycache__`
            does not count as a change
        unreadable: for each folder that cannot be read, the reason
    """

    files: dict[str, tuple[int, int]]
    unreadable: dict[str, str]


def snapshot(folder: Path) -> Snapshot:
    """Take a snapshot of all files of a model.

    Raises:
        OSError: a folder has disappeared, for example because the model is being replaced.
    """
    unreadable: dict[str, str] = {}

    def note(error: OSError) -> None:
        if isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise error
        unreadable[str(error.filename)] = error.strerror or repr(error)

    files = {}
    for parent, folders, names in os.walk(folder, onerror=note):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in (*folders, *names):
            path = os.path.join(parent, name)
            try:
                status = os.stat(path)
            except OSError:  # a dangling link, or a file that is being replaced
                continue
            what = (status.st_size, status.st_mtime_ns)
            files[path] = (0, 0) if stat.S_ISDIR(status.st_mode) else what
    return Snapshot(files, unreadable)


def _has_backend(model: FoundModel, backends: Path, backend: str) -> bool:
    library = f"libtriton_{backend}.so"
    places = [model.folder, *(model.folder / str(version) for version in model.versions)]
    # The python backend is installed when its first model is loaded.
    return (
        backend == "python"
        or (backends / backend).is_dir()
        or any((place / library).exists() for place in places)
    )


def _backend_list(backends: Path) -> str:
    names = sorted(
        one.name
        for one in backends.iterdir()
        if one.is_dir() and one.name not in (BACKEND, NATIVE_BACKEND)
    )
    return f"it has {', '.join(names) or 'none'}"
