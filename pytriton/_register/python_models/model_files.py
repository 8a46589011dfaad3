"""The registration message of a model file: ONNX, PyTorch, scikit-learn, XGBoost, LightGBM or TensorFlow.

The workers' interpreter, which has the framework, reads names and types of the tensors from the file, if it contains
them. Workers load the file from its original path, as they do for models of a repository.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytriton._control.connection import Report, step_reporter
from pytriton._protocol import messages
from pytriton._register import environments
from pytriton._register.environment import select_interpreter, worker_environment
from pytriton._register.python_models.model_programs import ConfigSource, configuration_of
from pytriton.autoscale import autoscale_in, autoscale_of
from pytriton.declaration import validate_model_name
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.formats import complete, table
from pytriton.formats.recipe import Recipe
from pytriton.run_options import (
    RegisterModelOptions,
    check_names,
    count_instances,
    default_lanes,
    device_list,
    merge_options,
    names_of,
    refuse_route,
    spec_fields,
)

_PROBE = "pytriton.formats.probe"


def is_model_file(target: object) -> bool:
    """Return True if `target` is a path whose suffix belongs to a supported format, whether it exists or not."""
    return isinstance(target, (str, os.PathLike)) and _format_of(Path(target)) is not None


def prepare_file(
    target: str | os.PathLike[str],
    model_name: str | None,
    config: ConfigSource,
    version: int | None,
    given: Mapping[str, Any],
    report: Report | None,
) -> tuple[messages.Register, list[bytes]]:
    """Complete a file's configuration from the file itself; return the message and its payload.

    Args:
        target: the file, on the daemon's machine
        model_name: name of the model; default: the one in the configuration, or that of the file
        config: a config.pbtxt to complete; default: an empty one
        version: version of the model; default: 1
        given: values of `RegisterModelOptions`; None selects an option's default
        report: called with the progress of slow steps

    Raises:
        TypeError: an option does not exist
        PyTritonBadParameterError: the file does not exist, or the interpreter lacks the framework
        PyTritonValidationError: the file cannot be loaded, or does not match the configuration
    """
    check_names("register_model", given, names_of(RegisterModelOptions))
    options = merge_options(None, given)
    refuse_route(options)
    path = Path(target).expanduser().absolute()
    form = _format_of(path)
    assert form is not None  # see is_model_file
    if not path.exists():
        raise PyTritonBadParameterError(f"The file {path} does not exist.")
    said = configuration_of(config)
    name = model_name or str(said.get("name", "")) or re.sub(r"[^\w.-]", "_", path.stem)
    validate_model_name(name)
    say = step_reporter(report)
    python = select_interpreter(options["python"], options["requirements"], say)
    world = worker_environment(python, options, say=say)
    check_packages(world.python, form)
    say(f"inspecting {path.name}")
    document = {**_completed(form, path, said, world, options["load_timeout_s"]), "name": name}
    number = 1 if version is None else version
    recipe = Recipe(name, form.title, form.loader, document, {number: str(path)})
    fields = spec_fields(options)
    devices = device_list(options["devices"])
    asked = options["instances"]
    autoscale = autoscale_of(asked) if asked is not None else autoscale_in(document)
    fields.update(
        name=name,
        version=number,
        config=complete.for_triton(document, [number]),
        world=world,
        instances=max(1, autoscale.least) if autoscale else count_instances(asked, devices, None),
        devices=devices,
        autoscale=autoscale,
        factory=True,
        max_inflight_batches=options["max_inflight_batches"] or default_lanes(document),
    )
    message = messages.Register(
        messages.ModelSpec(**fields), bool(options["replace"]), bool(options["ephemeral"])
    )
    return message, [recipe.payload()]


def _format_of(path: Path) -> table.Format | None:
    endings = {Path(name).suffix: form for form in table.FORMATS for name in form.files}
    return endings.get(path.suffix)


def check_packages(python: str, form: table.Format | table.Tool) -> None:
    """Check that an interpreter has the packages that a format, or another tool, requires.

    Raises:
        PyTritonBadParameterError: it lacks some; the text contains the command that installs them
    """
    missing = environments.missing_modules(python, list(form.packages))
    if missing:
        packages = " ".join(form.packages[module] for module in missing)
        raise PyTritonBadParameterError(
            f"{form.title} models need {packages}, which {python} lacks: {python} -m pip install "
            f"{packages}. Or choose an interpreter that has them (python=, --python), or have an environment created "
            f"(requirements={packages.split()!r}, --requirement {packages.split()[0]})."
        )


def _completed(
    form: table.Format,
    path: Path,
    config: Mapping[str, Any],
    world: messages.WorkerEnvironment,
    limit_s: float | None,
) -> dict[str, Any]:
    """Run `formats/probe.py` in the workers' environment; return the configuration, completed from the file.

    Raises:
        PyTritonValidationError: the file cannot be loaded, takes too long to load, or does not match the configuration
    """
    question = {
        "title": form.title,
        "loader": form.loader,
        "path": str(path),
        "config": dict(config),
    }
    answer = environments.ask_interpreter(world, _PROBE, question, str(path), limit_s)
    return dict(answer["config"])
