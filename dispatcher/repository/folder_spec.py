"""The specification of a registration that workers serve, made of a model's folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pytriton._protocol import env_variables as rules
from pytriton._protocol import messages
from pytriton._protocol.payload import Header, pack
from pytriton._register import gpus
from pytriton.autoscale import autoscale_in
from pytriton.dispatcher.repository.model_folders import FoundModel, UnservableModel, files_of
from pytriton.dispatcher.repository.model_programs import Program, ask
from pytriton.exceptions import PyTritonValidationError
from pytriton.formats import complete, table
from pytriton.formats.recipe import Recipe

#: In a model's folder: the packages that it needs; heeded when the setting install_packages is on.
REQUIREMENTS = "requirements.txt"
#: Of the worker's: see pytriton/_register/environments.py.
_PACKAGES_VARIABLE = "PYTRITON_WORKER_PACKAGES"
#: A framework may take long to import, a model to load, an environment to be made.
_LIMIT_S = 600.0


@dataclass(frozen=True)
class Workshop:
    """The means to make a registration: the workers' library, interpreter and environment.

    Args:
        library: the folder that holds this version of `pytriton`
        python: interpreter of the workers; None is the daemon's own
        install: whether an environment is made for what a model needs and `python` lacks
        env: variables that the workers get besides, as the setting `model_env` has them
    """

    library: Path
    python: str | None = None
    install: bool = False
    env: tuple[str, ...] = ()

    @property
    def interpreter(self) -> str:
        """The interpreter of the workers."""
        return self.python or sys.executable

    def world(self, python: str, folder: Path, packages: str) -> messages.World:
        """Return what surrounds the workers of a model: the daemon's variables go with it as a registrant's do."""
        own = rules.travelling(os.environ, own_interpreter=python == sys.executable)
        variables = {**own, **rules.wanted(os.environ, self.env)}
        if packages:
            variables[_PACKAGES_VARIABLE] = packages
        stayed = rules.staying(os.environ, variables)
        return messages.World(python, [], str(folder), variables, stayed=stayed)


async def specification(
    model: FoundModel,
    form: table.Format,
    workshop: Workshop,
    config: Mapping[str, Any] | None = None,
) -> tuple[messages.ModelSpec, bytes]:
    """Return what a worker needs to serve a model of a repository.

    Args:
        model: of a format that workers serve
        form: that format
        workshop: what it is made with
        config: the configuration that is used instead of the one in the model's folder

    Raises:
        UnservableModel: its files or its configuration are wrong, or incomplete.
    """
    if form is table.PYTHON:
        return await _of_python(model, workshop, config)
    return await _of_file(model, form, workshop)


async def _of_python(
    model: FoundModel, workshop: Workshop, config: Mapping[str, Any] | None
) -> tuple[messages.ModelSpec, bytes]:
    """Return a Triton Python model's specification, made in a process that may run its code."""
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
        lanes=complete.lanes_for(config),
        versions=sorted(files) if len(files) > 1 else [],
        # In the worker, which imports the framework anyway: a process that only looks would take as long again.
        completed_by_workers=not complete.is_complete(config),
    )
    return spec, recipe.payload()


@dataclass(frozen=True)
class _Place:
    """The place where a model's file is loaded: an interpreter, and a folder of added packages."""

    python: str
    packages: str = ""


async def _place(model: FoundModel, form: table.Format, workshop: Workshop) -> _Place:
    """Return the workers' interpreter, or where that may be made, an environment of it with what the model needs.

    Raises:
        UnservableModel: a package is missing, or cannot be installed.
    """
    if workshop.python is None and not workshop.install:
        return _Place(
            workshop.interpreter
        )  # that has what a worker needs; a loader tells what else is missing
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
    # Its variables are those that the workers get.
    program = Program(
        "pytriton._register.python_models.prepare_folder", task, _LIMIT_S, hide_gpus=False
    )
    return await ask(
        program,
        question,
        model=model.name,
        folder=model.folder,
        python=sys.executable,
        library=workshop.library,
    )


def requirements_of(model: FoundModel) -> list[str] | None:
    """Return the packages that requirements.txt in a model's folder lists; None without that file.

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
    """Return the number of workers that `instance_group` asks for, and the device of each.

    As in Triton, a group has `count` instances, or that many for each of its GPUs; without groups there is one.
    A device is a value of CUDA_VISIBLE_DEVICES: "" is the CPU, None leaves it to the worker.

    Raises:
        UnservableModel: a GPU is not there, or there is none for KIND_GPU.
    """
    devices: list[str | None] = []
    for group in config.get("instance_group", ()):
        count = max(1, int(group.get("count", 1)))
        kind = group.get("kind", "KIND_AUTO")
        try:
            places: Sequence[str | None] = [""] if kind == "KIND_CPU" else _gpus(group, kind)
        except LookupError as error:
            raise UnservableModel(
                f"model {config.get('name', '')}: an instance_group of {kind} asks for GPU {error.args[0]}. Mend its "
                "`gpus`, or write KIND_CPU or KIND_AUTO"
            ) from None
        devices.extend(place for place in places for _ in range(count))
    return max(1, len(devices)), devices


def _gpus(group: Mapping[str, Any], kind: str) -> Sequence[str | None]:
    """Return the GPUs of a group, each as its worker's variable names it.

    Raises:
        LookupError: one is not there; says which, and what is.
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
    """Return the name of a GPU that is not among those seen: not every machine shows its own in files.

    Raises:
        LookupError: it is not there.
    """
    hidden = f"{number}: ${gpus.VARIABLE} hides it" if gpus.VARIABLE in os.environ else None
    missing = hidden or gpus.missing(str(number))
    if missing is not None:
        raise LookupError(missing)
    return str(number)
