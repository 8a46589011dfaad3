"""The registration message of a model file: ONNX, PyTorch, scikit-learn, XGBoost, LightGBM or TensorFlow.

The workers' interpreter, which has the framework, reads names and types of the tensors from the file, if it contains
them. Workers load the file from its original path, as they do for models of a repository.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pytriton._control.connection import Report, step_reporter
from pytriton._protocol import messages
from pytriton._register import environments
from pytriton._register.environment import capture_environment, find_interpreter, own_interpreter
from pytriton._register.python_models.model_programs import ConfigSource, configuration_of
from pytriton.autoscale import autoscale_in, autoscale_of
from pytriton.declaration import validate_model_name
from pytriton.exceptions import PyTritonBadParameterError, PyTritonValidationError
from pytriton.formats import complete, table
from pytriton.formats.recipe import Recipe
from pytriton.run_options import (
    RegisterModelOptions,
    RegisterOptions,
    check_names,
    count_instances,
    default_lanes,
    device_list,
    merge_options,
    names_of,
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
        model_name: None: the name in the configuration, or that of the file
        config: a config.pbtxt, which is completed; None: everything is read from the file
        version: None: 1
        given: values of `RegisterModelOptions`; None selects an option's default
        report: called with the progress of slow steps

    Raises:
        TypeError: an option does not exist
        PyTritonBadParameterError: the file does not exist, or the interpreter lacks the framework
        PyTritonValidationError: the file cannot be loaded, or does not match the configuration
    """
    check_names("register_model", given, names_of(RegisterModelOptions))
    options = merge_options(None, given)
    path = Path(target).expanduser().absolute()
    form = _format_of(path)
    assert form is not None  # see is_model_file
    if not path.exists():
        raise PyTritonBadParameterError(f"The file {path} does not exist.")
    said = configuration_of(config)
    name = model_name or str(said.get("name", "")) or re.sub(r"[^\w.-]", "_", path.stem)
    validate_model_name(name)
    say = step_reporter(report)
    world = _worker_environment(options, form, say)
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


def _worker_environment(
    options: RegisterOptions, form: table.Format, say: Callable[[str], None]
) -> messages.WorkerEnvironment:
    """Return the workers' environment, whose interpreter has the format's framework.

    Raises:
        PyTritonBadParameterError: the interpreter lacks the framework; the text contains the command that installs it
    """
    python = options["python"]
    if options["requirements"] is not None:
        base = own_interpreter() if python is None else find_interpreter(python)
        python = environments.with_requirements(options["requirements"], base, say)
    world = capture_environment(python, options["env"], options["cwd"], options["sys_path"])
    missing = environments.missing_modules(world.python, list(form.packages))
    if missing:
        packages = " ".join(form.packages[module] for module in missing)
        raise PyTritonBadParameterError(
            f"{form.title} models need {packages}, which {world.python} lacks: {world.python} -m pip install "
            f"{packages}. Or choose an interpreter that has them (python=, --python), or have an environment created "
            f"(requirements={packages.split()!r}, --requirement {packages.split()[0]})."
        )
    return world if python is None else environments.provide_worker_packages(world, say)


def _completed(
    form: table.Format,
    path: Path,
    config: Mapping[str, Any],
    world: messages.WorkerEnvironment,
    limit_s: float | None,
) -> dict[str, Any]:
    """Run `formats/probe.py` in the workers' environment; return the configuration that it has completed from the file.

    Raises:
        PyTritonValidationError: the file cannot be loaded, takes too long to load, or does not match the configuration
    """
    question = {
        "title": form.title,
        "loader": form.loader,
        "path": str(path),
        "config": dict(config),
    }
    code = environments.code_with_our_library(
        f"from {_PROBE} import main; main()", world.env.get(environments.PACKAGES_VARIABLE)
    )
    try:
        done = subprocess.run(
            [world.python, "-c", code],
            input=json.dumps(question).encode(),
            cwd=world.cwd,
            env={**world.env, "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PyTritonValidationError(
            f"{path} was not loaded within {limit_s:g} s (load_timeout_s)."
        ) from None
    try:
        answer = json.loads(done.stdout.decode("utf-8", "replace").strip().splitlines()[-1])
    except (IndexError, ValueError):
        said = done.stderr.decode("utf-8", "replace").strip()[-2000:]
        raise PyTritonValidationError(
            f"{path} cannot be loaded; the process that tried exited with status {done.returncode}: {said}"
        ) from None
    if "error" in answer:
        raise PyTritonValidationError(str(answer["error"]))
    return dict(answer["config"])
