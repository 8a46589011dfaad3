"""From a model's folder to a registration that workers serve: what `DaemonClient.register` makes elsewhere."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from pytriton.dispatcher.child import bound_to_us
from pytriton.dispatcher.model_folders import FoundModel, UnservableModel, files_of
from pytriton.formats import complete, table
from pytriton.formats.recipe import Recipe
from pytriton.ipc import messages

_log = structlog.get_logger(__name__)

#: Of a configuration, what is not for the proxy that stands in the model's place.
_NOT_FOR_TRITON = (
    "backend",
    "cc_model_filenames",
    "default_model_filename",
    "instance_group",
    "model_warmup",
    "optimization",
    "platform",
    "runtime",
    "version_policy",
)
#: Of the daemon's environment, what frameworks read.
_VARIABLES = ("CUDA_", "LD_LIBRARY_PATH", "MKL_", "NVIDIA_", "OMP_", "ORT_", "TF_", "TORCH_")
#: A framework may take long to import, and a model to load.
_PROBE_S = 600.0


async def specification(
    model: FoundModel, form: table.Format, python: str | None, library: Path
) -> tuple[messages.ModelSpec, bytes]:
    """Return what a worker needs to serve a model of a repository.

    Args:
        model: of a format that workers serve
        form: that format
        python: interpreter of the workers; None is the daemon's own
        library: the folder that holds this version of `pytriton`

    Raises:
        UnservableModel: its files or its configuration are wrong, or incomplete.
    """
    interpreter = python or sys.executable
    files = files_of(model, form)
    config = dict(model.config)
    if not complete.is_complete(config):
        newest = str(files[max(files)])
        config = await _completed(model, form, newest, interpreter, library)
    config["name"] = model.name
    instances, devices = instance_groups(config)
    recipe = Recipe(
        model.name,
        form.title,
        form.loader,
        config,
        {version: str(path) for version, path in files.items()},
    )
    batching = int(config.get("max_batch_size", 0))
    spec = messages.ModelSpec(
        name=model.name,
        version=max(files),
        config=_for_triton(config, sorted(files)),
        world=messages.World(interpreter, [], str(model.folder), _environment()),
        instances=instances,
        devices=devices,
        factory=True,
        # As registered callables have it: see pytriton/registration.py.
        lanes=1 if batching > 1 or any(config.get("dynamic_batching", {}).values()) else 2,
        versions=sorted(files) if len(files) > 1 else [],
    )
    return spec, recipe.payload()


def instance_groups(config: Mapping[str, Any]) -> tuple[int, list[str | None]]:
    """Return the number of workers that `instance_group` asks for, and the device of each.

    As in Triton, a group has `count` instances, or that many for each of its GPUs; without groups there is one.
    A device is a value of CUDA_VISIBLE_DEVICES: "" is the CPU, None leaves it to the worker.
    """
    devices: list[str | None] = []
    for group in config.get("instance_group", ()):
        count = max(1, int(group.get("count", 1)))
        kind = group.get("kind", "KIND_AUTO")
        gpus: list[str | None] = [str(gpu) for gpu in group.get("gpus", ())]
        places = [""] if kind == "KIND_CPU" else gpus or [None]
        devices.extend(place for place in places for _ in range(count))
    return max(1, len(devices)), devices


def _for_triton(config: Mapping[str, Any], versions: list[int]) -> dict[str, Any]:
    document = {key: value for key, value in config.items() if key not in _NOT_FOR_TRITON}
    document.setdefault("max_batch_size", 0)
    if int(document["max_batch_size"]) == 0:
        document.pop("dynamic_batching", None)  # there is nothing to put together
    document["version_policy"] = {"specific": {"versions": versions}}
    return document


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)}


async def _completed(
    model: FoundModel, form: table.Format, path: str, python: str, library: Path
) -> dict[str, Any]:
    """Ask the file itself, in a process of its own: no framework is loaded into the daemon."""
    code = f"import sys; sys.path[0] = {str(library)!r}; from pytriton.formats.probe import main; main()"
    question = {
        "title": form.title,
        "loader": form.loader,
        "path": path,
        "config": dict(model.config),
    }
    try:
        process = await asyncio.create_subprocess_exec(
            *bound_to_us([python, "-c", code]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=str(model.folder),
            # A look at the file needs no GPU.
            env={**os.environ, **_environment(), "CUDA_VISIBLE_DEVICES": ""},
        )
    except OSError as error:
        raise UnservableModel(
            f"model {model.name}: the interpreter {python} (setting model_python) cannot be run: {error.strerror}"
        ) from error
    try:
        said, complaint = await asyncio.wait_for(
            process.communicate(json.dumps(question).encode()), _PROBE_S
        )
    except BaseException as error:
        if process.returncode is None:
            process.kill()
        if isinstance(error, asyncio.TimeoutError):
            raise UnservableModel(
                f"model {model.name}: {path} was not loaded within {_PROBE_S:g} s"
            ) from error
        raise
    return _answer(model, path, said.decode("utf-8", "replace"), complaint)


def _answer(model: FoundModel, path: str, said: str, complaint: bytes) -> dict[str, Any]:
    lines = said.strip().splitlines()
    words = complaint.decode("utf-8", "replace").strip()
    try:
        answer: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        raise UnservableModel(
            f"model {model.name}: looking into {path} to complete its configuration failed: {words[-2000:]}"
        ) from None
    if "error" in answer:
        _log.info("a model file was refused", model=model.name, output=words[-4000:])
        raise UnservableModel(f"model {model.name}: {answer['error']}")
    completed: dict[str, Any] = answer["config"]
    return completed
