"""Builds the specifications of the repository models that workers serve, from the models' folders.

A separate process inspects a model's files, so that the daemon loads neither frameworks nor user code.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import structlog

from pytriton._host import gpus
from pytriton._protocol import env_variables as rules
from pytriton._protocol import messages
from pytriton._protocol.payload import Header, pack
from pytriton.autoscale import autoscale_in
from pytriton.dispatcher.repository.model_folders import FoundModel, UnservableModel, files_of
from pytriton.dispatcher.runtime.child import with_parent_death_signal
from pytriton.dispatcher.runtime.worker_library import library_of
from pytriton.exceptions import PyTritonValidationError
from pytriton.formats import complete, table
from pytriton.formats.recipe import Recipe

#: Lists a model's required packages in its folder; used if the setting install_packages is on.
REQUIREMENTS = "requirements.txt"
#: Variable of the worker; see pytriton/_register/environments.py.
_PACKAGES_VARIABLE = "PYTRITON_WORKER_PACKAGES"
#: The module whose `main` inspects a model: it reads a JSON object from stdin and prints one as its last line.
_INSPECTOR = "pytriton._register.python_models.prepare_folder"
#: Time limit: importing a framework, loading a model or creating an environment may take long.
_INSPECTION_LIMIT_S = 600.0
#: How long to wait for a killed inspector.
_KILL_WAIT_S = 5.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class WorkerSetup:
    """Library, interpreter and environment of the workers of repository models.

    Args:
        library: the directory that contains this version of `pytriton`
        python: interpreter of the workers; None for the daemon's own
        install: whether to create an environment with the packages that `python` lacks
        env: further variables for the workers, from the setting `model_env`
    """

    library: Path
    python: str | None = None
    install: bool = False
    env: tuple[str, ...] = ()

    @property
    def interpreter(self) -> str:
        """Path of the workers' interpreter."""
        return self.python or sys.executable

    def environment(self, python: str, folder: Path, packages: str) -> messages.WorkerEnvironment:
        """Return the workers' environment: the daemon's variables, forwarded in the same way as a registrant's."""
        own = rules.forwarded_variables(os.environ, own_interpreter=python == sys.executable)
        variables = {**own, **rules.selected_variables(os.environ, self.env)}
        if packages:
            variables[_PACKAGES_VARIABLE] = packages
        stayed = rules.local_variables(os.environ, variables)
        return messages.WorkerEnvironment(python, [], str(folder), variables, stayed=stayed)


async def specification(
    model: FoundModel,
    form: table.Format,
    setup: WorkerSetup,
    config: Mapping[str, Any] | None = None,
) -> tuple[messages.ModelSpec, bytes]:
    """Build the registration of a repository model: return its specification and payload.

    Args:
        model: a model of a format that workers serve
        form: the model's format
        setup: library, interpreter and environment
        config: a configuration that overrides the one in the model's folder

    Raises:
        UnservableModel: its files or its configuration are invalid or incomplete.
    """
    if form is table.PYTHON:
        return await _of_python(model, setup, config)
    return await _of_file(model, form, setup)


async def _of_python(
    model: FoundModel, setup: WorkerSetup, config: Mapping[str, Any] | None
) -> tuple[messages.ModelSpec, bytes]:
    """Build the registration of a Triton Python model in a separate process, which may run the model's code."""
    request = {
        "task": "python",
        "folder": str(model.folder),
        "name": model.name,
        "config": None if config is None else dict(config),
        "python": setup.interpreter,
        "requirements": requirements_of(model) if setup.install else None,
        "install": setup.install,
        "env": rules.selected_variables(os.environ, setup.env),
    }
    answer = await inspect(model, request, setup.library, "reading its configuration")
    return msgspec.convert(answer["spec"], messages.ModelSpec), pack(Header((3, 9), True), b"")


async def _of_file(
    model: FoundModel, form: table.Format, setup: WorkerSetup
) -> tuple[messages.ModelSpec, bytes]:
    if model.config.get("sequence_batching", {}).get("state"):
        raise UnservableModel(
            f"model {model.name}: workers cannot keep its implicit state (sequence_batching.state): each request would "
            f"get the initial one. Use a tritonserver that has the {form.title} backend (the tritonserver setting)"
        )
    python, packages = await _interpreter_for(model, form, setup)
    files = files_of(model, form)
    config = dict(model.config)
    config["name"] = model.name
    instances, devices = instance_groups(config)
    try:
        autoscale = autoscale_in(config)
    except PyTritonValidationError as error:
        raise UnservableModel(f"model {model.name}: {error}") from error
    recipe = Recipe(
        model.name,
        form.title,
        form.loader,
        config,
        {version: str(path) for version, path in files.items()},
    )
    spec = messages.ModelSpec(
        name=model.name,
        version=max(files),
        config=complete.for_triton(config, sorted(files)),
        world=setup.environment(python, model.folder, packages),
        instances=max(1, autoscale.least) if autoscale else instances,
        devices=devices,
        autoscale=autoscale,
        factory=True,
        max_inflight_batches=complete.lanes_for(config),
        versions=sorted(files) if len(files) > 1 else [],
        # In the worker, which imports the framework anyway: a process that only inspects it would take just as long.
        completed_by_workers=not complete.is_complete(config),
    )
    return spec, recipe.payload()


async def _interpreter_for(
    model: FoundModel, form: table.Format, setup: WorkerSetup
) -> tuple[str, str]:
    """Return the interpreter with which to load a model's file, and a directory of additional packages ("" for none).

    If `install` is set, create an environment with the packages that the model needs.

    Raises:
        UnservableModel: a package is missing or cannot be installed.
    """
    if setup.python is None and not setup.install:
        # The daemon's interpreter has what a worker needs; a loader reports other missing packages.
        return setup.interpreter, ""
    request = {
        "task": "environment",
        "python": setup.interpreter,
        "modules": dict(form.packages),
        "requirements": requirements_of(model) if setup.install else None,
        "install": setup.install,
    }
    task = f"looking for {', '.join(form.packages.values())}"
    answer = await inspect(model, request, setup.library, task)
    if answer["lacking"]:
        text = table.missing(form, setup.interpreter, answer["lacking"])
        raise UnservableModel(f"model {model.name}: {text}")
    return answer["python"], answer["packages"]


async def inspect(
    model: FoundModel, request: Mapping[str, Any], library: Path, task: str
) -> dict[str, Any]:
    """Run the inspector in the model's folder with the daemon's variables, and return its answer.

    Args:
        model: the model
        request: input of the inspector
        library: the directory that contains this version of `pytriton`
        task: the inspector's task, which completes the error "model m: ..."

    Raises:
        UnservableModel: the inspector cannot be run, exceeds its time limit, or reports an error.
    """
    path = str(library_of(library, sys.executable))
    code = f"import sys; sys.path[0] = {path!r}; from {_INSPECTOR} import main; main()"
    try:
        process = await asyncio.create_subprocess_exec(
            *with_parent_death_signal([sys.executable, "-c", code]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=str(model.folder),
        )
    except OSError as error:
        raise UnservableModel(
            f"model {model.name}: {task} could not start: {error.strerror}"
        ) from error
    try:
        output, errors = await asyncio.wait_for(
            process.communicate(json.dumps(request).encode()), _INSPECTION_LIMIT_S
        )
    except BaseException as error:
        if process.returncode is None:
            process.kill()
            with contextlib.suppress(asyncio.TimeoutError):
                # its descendants may hold its pipes
                await asyncio.wait_for(process.wait(), _KILL_WAIT_S)
        if isinstance(error, asyncio.TimeoutError):
            raise UnservableModel(
                f"model {model.name}: {task} took longer than {_INSPECTION_LIMIT_S:g} s"
            ) from error
        raise
    complaint = errors.decode("utf-8", "replace").strip()
    try:
        answer: dict[str, Any] = json.loads(
            output.decode("utf-8", "replace").strip().splitlines()[-1]
        )
    except (IndexError, ValueError):
        raise UnservableModel(f"model {model.name}: {task} failed: {complaint[-2000:]}") from None
    if "error" in answer:
        _log.info("model rejected", model=model.name, output=complaint[-4000:])
        raise UnservableModel(f"model {model.name}: {answer['error']}")
    return answer


def requirements_of(model: FoundModel) -> list[str] | None:
    """Return the packages listed in the model's requirements.txt; None if there is no such file.

    Raises:
        UnservableModel: the file cannot be read.
    """
    file = model.folder / REQUIREMENTS
    try:
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    except (OSError, UnicodeDecodeError) as error:
        raise UnservableModel(f"model {model.name}: {file} cannot be read: {error}") from error
    bare = (line.partition(" #")[0].strip() for line in lines)
    return [line for line in bare if line and line[0] != "#"] or None


def instance_groups(config: Mapping[str, Any]) -> tuple[int, list[str | None]]:
    """Return the number of workers that `instance_group` requests, and the device of each worker.

    As in Triton, a group has `count` instances, or `count` for each GPU; the default is one instance. A device is a
    value of CUDA_VISIBLE_DEVICES: "" is the CPU, None leaves the choice to the worker.

    Raises:
        UnservableModel: a GPU does not exist, or there is none for KIND_GPU.
    """
    devices: list[str | None] = []
    for group in config.get("instance_group", ()):
        count = max(1, int(group.get("count", 1)))
        kind = group.get("kind", "KIND_AUTO")
        try:
            places: Sequence[str | None] = [""] if kind == "KIND_CPU" else _gpus(group, kind)
        except LookupError as error:
            raise UnservableModel(
                f"model {config.get('name', '')}: an instance_group of {kind} requests GPU {error.args[0]}. Fix its "
                "`gpus`, or use KIND_CPU or KIND_AUTO"
            ) from None
        devices.extend(place for place in places for _ in range(count))
    return max(1, len(devices)), devices


def _gpus(group: Mapping[str, Any], kind: str) -> Sequence[str | None]:
    """Return the GPUs of a group as values of CUDA_VISIBLE_DEVICES.

    Raises:
        LookupError: a GPU does not exist; the text names it and the available ones.
    """
    numbers = [int(number) for number in group.get("gpus", ())]
    there = gpus.visible()
    if not numbers:
        if kind != "KIND_GPU":
            return [None]
        if there:
            return there
        numbers = [0]
    return [there[number] if number < len(there) else _undetected(number) for number in numbers]


def _undetected(number: int) -> str:
    """Return the value for a GPU that was not detected. It may still exist, since some machines have no device files.

    Raises:
        LookupError: the GPU does not exist.
    """
    hidden = f"{number}: ${gpus.VARIABLE} hides it" if gpus.VARIABLE in os.environ else None
    missing = hidden or gpus.missing(str(number))
    if missing is not None:
        raise LookupError(missing)
    return str(number)
