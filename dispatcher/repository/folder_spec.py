"""Builds the specification of a registration from a model's folder, for models that workers serve."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pytriton._host import gpus
from pytriton._protocol import env_variables as rules
from pytriton._protocol import messages
from pytriton._protocol.payload import Header, pack
from pytriton.autoscale import autoscale_in
from pytriton.dispatcher.repository.model_folders import FoundModel, UnservableModel, files_of
from pytriton.dispatcher.repository.model_programs import Program, ask
from pytriton.exceptions import PyTritonValidationError
from pytriton.formats import complete, table
from pytriton.formats.recipe import Recipe

#: Lists a model's required packages in its folder; used if the setting install_packages is on.
REQUIREMENTS = "requirements.txt"
#: Variable of the worker; see pytriton/_register/environments.py.
_PACKAGES_VARIABLE = "PYTRITON_WORKER_PACKAGES"
#: Time limit: importing a framework, loading a model or creating an environment may take long.
_LIMIT_S = 600.0


@dataclass(frozen=True)
class Workshop:
    """What is needed to build a registration: the workers' library, interpreter and environment.

    Args:
        library: the directory that contains this version of `pytriton`
        python: interpreter of the workers; None for the daemon's own
        install: whether to create an environment for packages that `python` lacks
        env: further variables for the workers, from the setting `model_env`
    """

    library: Path
    python: str | None = None
    install: bool = False
    env: tuple[str, ...] = ()

    @property
    def interpreter(self) -> str:
        """The interpreter of the workers."""
        return self.python or sys.executable

    def world(self, python: str, folder: Path, packages: str) -> messages.WorkerEnvironment:
        """Return the workers' environment. The daemon's variables are forwarded like a registrant's."""
        own = rules.forwarded_variables(os.environ, own_interpreter=python == sys.executable)
        variables = {**own, **rules.wanted(os.environ, self.env)}
        if packages:
            variables[_PACKAGES_VARIABLE] = packages
        stayed = rules.local_variables(os.environ, variables)
        return messages.WorkerEnvironment(python, [], str(folder), variables, stayed=stayed)


async def specification(
    model: FoundModel,
    form: table.Format,
    workshop: Workshop,
    config: Mapping[str, Any] | None = None,
) -> tuple[messages.ModelSpec, bytes]:
    """Return the specification of a registration for a model of a repository.

    Args:
        model: a model of a format that workers serve
        form: that format
        workshop: library, interpreter and environment
        config: a configuration that overrides the one in the model's folder

    Raises:
        UnservableModel: its files or its configuration are invalid or incomplete.
    """
    if form is table.PYTHON:
        return await _of_python(model, workshop, config)
    return await _of_file(model, form, workshop)


async def _of_python(
    model: FoundModel, workshop: Workshop, config: Mapping[str, Any] | None
) -> tuple[messages.ModelSpec, bytes]:
    """Return the specification of a Triton Python model, built in a separate process that may run its code."""
    question = {
        "task": "python",
        "folder": str(model.folder),
        "name": model.name,
        "config": None if config is None else dict(config),
        "python": workshop.interpreter,
        "requirements": requirements_of(model) if workshop.install else None,
        "install": workshop.install,
        "env": rules.wanted(os.environ, workshop.env),
    }
    answer = await _ask_workshop(model, question, workshop, "reading its configuration")
    return msgspec.convert(answer["spec"], messages.ModelSpec), pack(Header((3, 9), True), b"")


async def _of_file(
    model: FoundModel, form: table.Format, workshop: Workshop
) -> tuple[messages.ModelSpec, bytes]:
    if model.config.get("sequence_batching", {}).get("state"):
        raise UnservableModel(
            f"model {model.name}: workers cannot keep its implicit state (sequence_batching.state): each request would "
            f"get the initial one. A tritonserver with the backend for {form.title} does it (setting tritonserver)"
        )
    place = await _place(model, form, workshop)
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
        world=workshop.world(place.python, model.folder, place.packages),
        instances=max(1, autoscale.least) if autoscale else instances,
        devices=devices,
        autoscale=autoscale,
        factory=True,
        max_inflight_batches=complete.lanes_for(config),
        versions=sorted(files) if len(files) > 1 else [],
        # In the worker, which imports the framework anyway: a process that only looks would take as long again.
        completed_by_workers=not complete.is_complete(config),
    )
    return spec, recipe.payload()


@dataclass(frozen=True)
class _Place:
    """Where a model's file is loaded: an interpreter, and a directory of added packages."""

    python: str
    packages: str = ""


async def _place(model: FoundModel, form: table.Format, workshop: Workshop) -> _Place:
    """Return the workers' interpreter, or if permitted, an environment of it with the packages that the model needs.

    Raises:
        UnservableModel: a package is missing or cannot be installed.
    """
    if workshop.python is None and not workshop.install:
        return _Place(
            workshop.interpreter
        )  # that has what a worker needs; a loader reports other missing packages
    question = {
        "task": "environment",
        "python": workshop.interpreter,
        "modules": dict(form.packages),
        "requirements": requirements_of(model) if workshop.install else None,
        "install": workshop.install,
    }
    task = f"looking for {', '.join(form.packages.values())}"
    answer = await _ask_workshop(model, question, workshop, task)
    if answer["lacking"]:
        text = table.missing(form, workshop.interpreter, answer["lacking"])
        raise UnservableModel(f"model {model.name}: {text}")
    return _Place(answer["python"], answer["packages"])


async def _ask_workshop(
    model: FoundModel, question: Mapping[str, Any], workshop: Workshop, task: str
) -> dict[str, Any]:
    # It runs with the variables of the workers.
    program = Program("pytriton._register.python_models.model_dir", task, _LIMIT_S, hide_gpus=False)
    return await ask(
        program,
        question,
        model=model.name,
        folder=model.folder,
        python=sys.executable,
        library=workshop.library,
    )


def requirements_of(model: FoundModel) -> list[str] | None:
    """Return the packages listed in the model's requirements.txt; None if there is no such file.

    Raises:
        UnservableModel: it cannot be read.
    """
    file = model.folder / REQUIREMENTS
    try:
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    except (OSError, UnicodeDecodeError) as error:
        raise UnservableModel(f"model {model.name}: {file} cannot be read: {error}") from error
    bare = (line.partition(" #")[0].strip() for line in lines)
    return [line for line in bare if line and line[0] != "#"] or None


def instance_groups(config: Mapping[str, Any]) -> tuple[int, list[str | None]]:
    """Return the number of workers that `instance_group` requests, and the device of each.

    As in Triton, a group has `count` instances, or that many per GPU; the default is one instance. A device is a value
    of CUDA_VISIBLE_DEVICES: "" is the CPU, None leaves it to the worker.

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
                f"model {config.get('name', '')}: an instance_group of {kind} asks for GPU {error.args[0]}. Fix its "
                "`gpus`, or use KIND_CPU or KIND_AUTO"
            ) from None
        devices.extend(place for place in places for _ in range(count))
    return max(1, len(devices)), devices


def _gpus(group: Mapping[str, Any], kind: str) -> Sequence[str | None]:
    """Return the GPUs of a group as values for the worker's variable.

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
    return [there[number] if number < len(there) else _uncounted(number) for number in numbers]


def _uncounted(number: int) -> str:
    """Return the name of a GPU that was not detected, since not every machine lists its GPUs in files.

    Raises:
        LookupError: it does not exist.
    """
    hidden = f"{number}: ${gpus.VARIABLE} hides it" if gpus.VARIABLE in os.environ else None
    missing = hidden or gpus.missing(str(number))
    if missing is not None:
        raise LookupError(missing)
    return str(number)
