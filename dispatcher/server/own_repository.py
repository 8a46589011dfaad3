"""tritonserver's model repository: an empty version directory per model, and the configuration to load it with.

A model's code is the backend `pytriton` (the proxy), so its directory is empty, and its configuration is part of the
load request. Triton only requires that the version's directory exists.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from pytriton._host.install.proxy_compiler import NATIVE_BACKEND
from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.parameters import (
    CONTROL_PARAMETER,
    MENDED_PARAMETER,
    PYTHON_MODEL_PARAMETER,
    REGISTRATION_PARAMETER,
    VERSIONS_PARAMETER,
)
from pytriton.formats import pbtxt

_log = structlog.get_logger(__name__)

BACKEND = "pytriton"


def make_folder(models: Path, spec: messages.ModelSpec) -> None:
    """Create a model's directory with exactly its versions."""
    remove_folder(models, spec.name)
    folder = models / spec.name
    for version in spec.versions or [spec.version]:
        (folder / str(version)).mkdir(parents=True)
    _link_files(folder, spec)


def _link_files(folder: Path, spec: messages.ModelSpec) -> None:
    """Link the files of the model's own directory that Triton itself reads: labels."""
    named = {entry.get("label_filename", "") for entry in spec.config.get("output", ())}
    # Workers of models that are not Python start in the model's directory (folder_spec.py).
    own = Path(spec.python_model.folder if spec.python_model is not None else spec.world.cwd)
    for name in named:
        there = Path(name)
        if not name or not own.is_absolute() or there.is_absolute() or ".." in there.parts:
            continue
        if (own / there).exists() and not (folder / there).exists():
            (folder / there).parent.mkdir(parents=True, exist_ok=True)
            (folder / there).symlink_to(own / there)


def write_config(models: Path, name: str, config: Mapping[str, Any]) -> None:
    """Write a model's configuration to its directory, so that clients of tritonserver can load it by name alone.

    The daemon's own loads pass the configuration in the request. A client that unloads a model or restarts all models
    does not.
    """
    path = models / name / pbtxt.FILE
    try:
        text = pbtxt.write(config)
        written = path.with_suffix(".new")
        written.write_text(text, encoding="utf-8")
        written.replace(path)
    except (pbtxt.ConfigFileError, OSError) as error:  # a client's load is refused then
        _log.warning("could not write a model's configuration", model=name, reason=str(error))


def remove_folder(models: Path, name: str) -> None:
    """Remove a model's directory."""
    shutil.rmtree(models / name, ignore_errors=True)


def link(models: Path, name: str, folder: Path) -> None:
    """Make a model of the user's repository, which tritonserver serves itself, visible to tritonserver."""
    unlink(models, name)
    remove_folder(models, name)
    (models / name).symlink_to(folder, target_is_directory=True)


def unlink(models: Path, name: str) -> None:
    """Remove the link of such a model. Does nothing if the name is not one."""
    if is_linked(models, name):
        (models / name).unlink()


def is_linked(models: Path, name: str) -> bool:
    """Return whether the name belongs to a model that tritonserver serves itself."""
    # Path.is_symlink() raises for a string that cannot be a file name; this returns False.
    return os.path.islink(models / name)


def refuse_linked(models: Path, name: str) -> None:
    """Check that a name can be registered.

    Raises:
        RemoteFailure: the name belongs to a model that tritonserver serves itself.
    """
    if is_linked(models, name):
        raise RemoteFailure(
            ErrorKind.EXISTS,
            f"tritonserver itself serves a model named {name!r} of a model repository. Unload that one "
            "first, or choose another name.",
        )


def with_folder_mark(config: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Return the configuration with the directory added as a parameter, so that it differs from the same model
    elsewhere.

    Triton (2.51) treats a model as unchanged if its files are older than those of the loaded one, wherever they are.
    """
    parameters = {**config.get("parameters", {}), MENDED_PARAMETER: {"string_value": folder}}
    return {**config, "parameters": parameters}


def cloud_repositories(places: Sequence[str]) -> list[str]:
    """Return the repositories that tritonserver reads itself: s3://, gs:// and as://."""
    return [place for place in places if "://" in place]


def triton_config(
    spec: messages.ModelSpec,
    endpoint: str,
    registration: str,
    lanes: int,
    mended: int = 0,
    proxied: int = 0,
    *,
    native: bool = False,
) -> dict[str, Any]:
    """Return the configuration to load a model with: the user's, with the changes that route it to our workers.

    Sets `lanes` proxy instances per worker, on the CPU: workers handle devices. The user's rate limiter and host policy
    are kept. Triton keeps its instances if only their number differs, so a model whose proxies must restart is loaded
    with another number in `mended`. `model_warmup` is removed: workers run it, see worker/warmup.py.

    Args:
        native: tritonserver has the compiled proxy
        proxied: number of instances whose Python proxies are kept, even if there are fewer workers
    """
    parameters = dict(spec.config.get("parameters", {}))
    parameters[CONTROL_PARAMETER] = {"string_value": endpoint}
    parameters[REGISTRATION_PARAMETER] = {"string_value": registration}
    if spec.python_model is not None:
        value = "streams" if spec.python_model.streams else "details"
        parameters[PYTHON_MODEL_PARAMETER] = {"string_value": value}
    if spec.versions and spec.python_model is None:
        parameters[VERSIONS_PARAMETER] = {"string_value": ",".join(map(str, spec.versions))}
    if mended:
        parameters[MENDED_PARAMETER] = {"string_value": str(mended)}
    groups = spec.config.get("instance_group") or [{}]
    instances = spec.instances if native else max(spec.instances, proxied)
    config = {name: value for name, value in spec.config.items() if name != "model_warmup"}
    return {
        **config,
        "name": spec.name,
        "backend": NATIVE_BACKEND if native else BACKEND,
        "instance_group": [{**groups[0], "kind": "KIND_CPU", "count": instances * lanes}],
        "parameters": parameters,
    }
