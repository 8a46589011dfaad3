"""tritonserver's model repository: one empty version folder per model, and the configuration that it is loaded with.

A model's code is the backend `pytriton` (the proxy), so its folder holds nothing; its configuration
goes with the load request. Triton insists only that the folder of the version exists.
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
    """Make a model's folder with just the versions it has."""
    remove_folder(models, spec.name)
    folder = models / spec.name
    for version in spec.versions or [spec.version]:
        (folder / str(version)).mkdir(parents=True)
    _link_files(folder, spec)


def _link_files(folder: Path, spec: messages.ModelSpec) -> None:
    """Let Triton see the files of a model's own folder that it reads itself: labels."""
    named = {entry.get("label_filename", "") for entry in spec.config.get("output", ())}
    # The workers of a model of another format than Python begin in its folder (folder_spec.py).
    own = Path(spec.python_model.folder if spec.python_model is not None else spec.world.cwd)
    for name in named:
        there = Path(name)
        if not name or not own.is_absolute() or there.is_absolute() or ".." in there.parts:
            continue
        if (own / there).exists() and not (folder / there).exists():
            (folder / there).parent.mkdir(parents=True, exist_ok=True)
            (folder / there).symlink_to(own / there)


def write_config(models: Path, name: str, config: Mapping[str, Any]) -> None:
    """Let a model's folder say how it is loaded, which our loads say themselves: for clients of tritonserver.

    One that has unloaded a model, or restarts all of them, loads it by its name alone.
    """
    path = models / name / pbtxt.FILE
    try:
        text = pbtxt.write(config)
        written = path.with_suffix(".new")
        written.write_text(text, encoding="utf-8")
        written.replace(path)
    except (pbtxt.ConfigFileError, OSError) as error:  # then a client's load is refused
        _log.warning("a model's configuration was not written", model=name, reason=str(error))


def remove_folder(models: Path, name: str) -> None:
    """Remove a model's folder."""
    shutil.rmtree(models / name, ignore_errors=True)


def link(models: Path, name: str, folder: Path) -> None:
    """Let tritonserver see a model that it serves itself, in a repository of the user's."""
    unlink(models, name)
    remove_folder(models, name)
    (models / name).symlink_to(folder, target_is_directory=True)


def unlink(models: Path, name: str) -> None:
    """Let tritonserver not see it any more; nothing happens when it is no such model."""
    if is_linked(models, name):
        (models / name).unlink()


def is_linked(models: Path, name: str) -> bool:
    """Whether a name belongs to a model that tritonserver serves itself."""
    # is_symlink() raises for what cannot be a file's name; this says False.
    return os.path.islink(models / name)


def refuse_linked(models: Path, name: str) -> None:
    """See that a name can be registered.

    Raises:
        RemoteFailure: it belongs to a model that tritonserver serves itself.
    """
    if is_linked(models, name):
        raise RemoteFailure(
            ErrorKind.EXISTS,
            f"tritonserver itself serves a model named {name!r} of a model repository. Unload that one "
            "first, or choose another name.",
        )


def marked(config: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Return a configuration that differs from that of the same model in another folder.

    Triton (2.51) takes a model for unchanged whose files are older than those that it had, wherever they lie.
    """
    parameters = {**config.get("parameters", {}), MENDED_PARAMETER: {"string_value": folder}}
    return {**config, "parameters": parameters}


def cloud(places: Sequence[str]) -> list[str]:
    """Return those of the repositories that tritonserver reads itself: s3://, gs:// and as://."""
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
    """Return the configuration to load a model with: the user's, plus what makes it ours.

    `lanes` proxy instances per worker, on the CPU: devices are the workers' business; a rate limiter
    or host policy that the user gave them stays. Triton keeps the
    instances that it has when nothing but their number differs, so a model whose proxies have to be
    started anew is loaded with another number in `mended`. `native`: tritonserver has the compiled proxy.
    `proxied`: so many instances have Python proxies that stay, though there are fewer workers.
    `model_warmup` is the workers' business: see worker/warmup.py.
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
    given = spec.config.get("instance_group") or [{}]
    instances = spec.instances if native else max(spec.instances, proxied)
    config = {name: value for name, value in spec.config.items() if name != "model_warmup"}
    return {
        **config,
        "name": spec.name,
        "backend": NATIVE_BACKEND if native else BACKEND,
        "instance_group": [{**given[0], "kind": "KIND_CPU", "count": instances * lanes}],
        "parameters": parameters,
    }
