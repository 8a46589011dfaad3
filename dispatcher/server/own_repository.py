"""The model repository that the daemon creates for tritonserver, and the configurations for loading its models.

The code of every model is the backend `pytriton` (the proxy), and its configuration is part of the load request, so a
model's directory only contains an empty directory for each version, which Triton requires.
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
    """Create the directory of a model with a subdirectory for each version, replacing an existing one."""
    remove_folder(models, spec.name)
    folder = models / spec.name
    for version in spec.versions or [spec.version]:
        (folder / str(version)).mkdir(parents=True)
    _link_files(folder, spec)


def _link_files(folder: Path, spec: messages.ModelSpec) -> None:
    """Link those files of the model's own directory that Triton itself reads (labels)."""
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
    """Write a model's configuration to its directory, so that clients of tritonserver can reload the model by name.

    (The daemon itself passes the configuration in its load requests.)
    """
    path = models / name / pbtxt.FILE
    try:
        text = pbtxt.write(config)
        written = path.with_suffix(".new")
        written.write_text(text, encoding="utf-8")
        written.replace(path)
    except (pbtxt.ConfigFileError, OSError) as error:  # clients cannot reload this model then
        _log.warning("could not write a model's configuration", model=name, reason=str(error))


def remove_folder(models: Path, name: str) -> None:
    """Remove a model's directory."""
    shutil.rmtree(models / name, ignore_errors=True)


def link(models: Path, name: str, folder: Path) -> None:
    """Link a model from the user's model repository into tritonserver's, for tritonserver itself to serve."""
    unlink(models, name)
    remove_folder(models, name)
    (models / name).symlink_to(folder, target_is_directory=True)


def unlink(models: Path, name: str) -> None:
    """If `link` made a link of this name, remove it."""
    if is_linked(models, name):
        (models / name).unlink()


def is_linked(models: Path, name: str) -> bool:
    """Return whether tritonserver itself serves a model with this name from a user's model repository."""
    # Unlike Path.is_symlink(), this returns False for a string that cannot be a file name.
    return os.path.islink(models / name)


def refuse_linked(models: Path, name: str) -> None:
    """Check that tritonserver does not serve a model with this name itself.

    Raises:
        RemoteFailure: tritonserver serves such a model
    """
    if is_linked(models, name):
        raise RemoteFailure(
            ErrorKind.EXISTS,
            f"tritonserver already serves a model named {name!r} from a model repository. Unload that model "
            "first, or choose another name.",
        )


def with_folder_mark(config: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Return the configuration with the model's directory as a parameter, so that Triton reloads a model that has
    moved.

    Triton (2.51) considers a model unchanged if its files are older than the loaded ones, even in another directory.
    """
    parameters = {**config.get("parameters", {}), MENDED_PARAMETER: {"string_value": folder}}
    return {**config, "parameters": parameters}


def cloud_repositories(places: Sequence[str]) -> list[str]:
    """Return the repositories in cloud storage (s3://, gs:// and as://), which tritonserver reads itself."""
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
    """Return the configuration with which to load a model: the user's own, changed so that requests go to our workers.

    The model gets `lanes` proxies per worker, on the CPU, since workers manage devices themselves. The user's rate
    limiter and host policy are kept. `model_warmup` is removed, because workers run it (worker/warmup.py).

    Args:
        spec: the model
        endpoint: address on which its proxies reach the daemon
        registration: key of the registration
        lanes: number of proxies per worker
        mended: number of loads that had to restart all proxies. Triton reuses proxies if only their number changes;
            another value here makes it restart them.
        proxied: minimum number of workers' worth of Python proxies to keep, even if there are fewer workers
        native: whether tritonserver has the compiled proxy
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
