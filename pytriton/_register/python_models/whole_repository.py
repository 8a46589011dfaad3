"""Registers all Triton Python models of a model repository, each with its own workers.

It is all or nothing: every model is read before the first one is registered, and if a registration fails, the previous
ones are rolled back.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytriton._control.connection import Report
from pytriton._protocol import messages
from pytriton._register.python_models import model_dir, model_programs
from pytriton.exceptions import PyTritonBadParameterError, PyTritonDaemonError, PyTritonError

if TYPE_CHECKING:
    from pytriton.daemon_client import DaemonClient
    from pytriton.run_options import StrPath
    from pytriton.served_model import Model

#: Arguments of `register_model` that cannot apply to a whole repository.
_OF_ONE_MODEL = ("model_name", "config", "version")


@dataclass(frozen=True)
class RepositoryFolder:
    """A model repository, and the options for its models."""

    folder: Path
    options: Mapping[str, Any]


def is_repository(target: object) -> bool:
    """Return True if `target` is a folder that contains models and is not itself a model."""
    if not isinstance(target, (str, os.PathLike)):
        return False
    folder = Path(target).expanduser().absolute()
    return folder.is_dir() and not _is_model(folder) and bool(_models_in(folder))


def repository_of(folder: StrPath, options: Mapping[str, Any]) -> RepositoryFolder:
    """Return the repository in a folder, with the options for its models.

    Raises:
        PyTritonBadParameterError: the folder contains no models, or an option can be set for a single model only
    """
    path = Path(folder).expanduser().absolute()
    if not is_repository(path):
        raise PyTritonBadParameterError(
            f"{path} is not a model repository: it must contain one folder per model, each with "
            f"{model_dir.CONFIG_FILE} and 1/model.py."
        )
    single = [name for name in _OF_ONE_MODEL if options.get(name) is not None]
    if single:
        raise PyTritonBadParameterError(
            f"{path} is a model repository, but {' and '.join(single)} can be set for a single model only. Omit "
            f"{'it' if len(single) == 1 else 'them'}, or register the models one by one."
        )
    shared = {name: value for name, value in options.items() if name not in _OF_ONE_MODEL}
    return RepositoryFolder(path, shared)


def register_all(
    repository: RepositoryFolder, client: DaemonClient, report: Report | None
) -> list[Model]:
    """Register all models of a repository in the order of their names, and return them.

    Raises:
        PyTritonBadParameterError, PyTritonValidationError: a model cannot be read, or is not a Python model;
            nothing was registered
        RegistrationError: a registration failed; the text says which models had been registered, and what happened to
            them
    """
    folders = _models_in(repository.folder)
    _refuse_others(repository.folder, folders)
    prepared = [_prepare(folder, repository, report) for folder in folders]
    before = {model.name for model in client.models()}
    served: list[Model] = []
    names = [message.spec.name for message, _ in prepared]
    try:
        for message, payloads in prepared:
            served.append(client.register_prepared(message, payloads, report))
    except BaseException as error:
        outcomes = [_roll_back(client, model.name, before) for model in reversed(served)]
        if isinstance(error, PyTritonError):
            failed, *waiting = names[len(served) :]
            error.message = _failure_text(repository, failed, error, outcomes, waiting)
        raise
    return served


def _is_model(folder: Path) -> bool:
    if (folder / model_dir.CONFIG_FILE).exists():
        return True
    numbered = (one for one in folder.iterdir() if one.name.isdecimal() and one.is_dir())
    return any(True for one in numbered for _ in one.iterdir())


def _models_in(folder: Path) -> list[Path]:
    there = (one for one in folder.iterdir() if one.is_dir() and one.name[0] != ".")
    return sorted(one for one in there if _is_model(one))


def _refuse_others(repository: Path, folders: Sequence[Path]) -> None:
    """Check that a repository contains Python models only.

    Raises:
        PyTritonBadParameterError: it contains others; the text lists them with their backends
    """
    others = {}
    for folder in folders:
        served_by = model_programs.backend_of(folder)
        if served_by != "python":
            others[folder.name] = served_by
    if not others:
        return
    named = ", ".join(f"{name} ({backend})" for name, backend in others.items())
    python = [str(folder) for folder in folders if folder.name not in others]
    raise PyTritonBadParameterError(
        f"{repository}: register_model registers Python models, but these are not: {named}. Nothing was "
        f"registered. To serve the whole repository, pass it to the daemon: pytriton-daemon start "
        f"--model-repository {repository}"
        + (
            f". To register only the Python models, register each of these folders: {', '.join(python)}"
            if python
            else ""
        )
    )


def _prepare(
    folder: Path, repository: RepositoryFolder, report: Report | None
) -> tuple[messages.Register, list[bytes]]:
    try:
        return model_programs.prepare_model(folder, None, None, None, repository.options, report)
    except PyTritonError as error:
        error.message = (
            f"{repository.folder}: model {folder.name} cannot be registered, so no model of the repository was. "
            f"{error.message}"
        )
        raise


def _roll_back(client: DaemonClient, name: str, before: set[str]) -> str:
    """Undo a registration: roll back a model that existed before, unregister others. Return a description of the outcome."""
    try:
        if name in before:
            client.rollback(name, progress=False)
            return f"{name} was rolled back"
        client.unregister(name)
        return f"{name} was unregistered"
    except PyTritonDaemonError as error:
        return f"{name} could not be rolled back ({error.message})"


def _failure_text(
    repository: RepositoryFolder,
    failed: str,
    error: PyTritonError,
    outcomes: Sequence[str],
    waiting: Sequence[str],
) -> str:
    parts = [f"{repository.folder}: model {failed} was not registered. {error.message}"]
    if outcomes:
        parts.append(f"Registered before it: {'; '.join(outcomes)}.")
    if waiting:
        parts.append(f"Not registered: {', '.join(waiting)}.")
    return "\n".join(parts)
