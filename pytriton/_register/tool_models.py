"""The message that registers another tool's model, such as `mlflow:PATH`. See `pytriton.formats.table.TOOLS`.

The workers' interpreter, which has the tool, describes the model's requests and responses. Workers load the model from
its original location.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from pytriton._control.connection import Report, step_reporter
from pytriton._protocol import messages
from pytriton._register import environments
from pytriton._register.environment import select_interpreter, worker_environment
from pytriton._register.python_models.model_files import check_packages
from pytriton.autoscale import autoscale_of
from pytriton.declaration import validate_model_name
from pytriton.exceptions import PyTritonBadParameterError, PyTritonValidationError
from pytriton.formats import table
from pytriton.formats.recipe import ToolRecipe
from pytriton.run_options import (
    RegisterModelOptions,
    RegisterOptions,
    check_names,
    count_instances,
    default_concurrency,
    default_lanes,
    device_list,
    merge_options,
    names_of,
    spec_fields,
)

_DESCRIBER = "pytriton.formats.tools"
#: The part of a location that is a path: before `:` for an attribute of a file, after `=` for a task.
_PATH = re.compile(r"(?:[\w-]+=)?(?P<path>.+?)(?::\w+)?")


def prepare_tool(
    target: str,
    model_name: str | None,
    config: object,
    version: int | None,
    given: Mapping[str, Any],
    report: Report | None,
) -> tuple[messages.Register, list[bytes]]:
    """Make the workers' interpreter describe the model; return the message and its payload.

    Args:
        target: such as `mlflow:PATH`; a path on the daemon's machine
        model_name: None: the model's own
        config: None: there is no config.pbtxt
        version: None or 1
        given: `RegisterModelOptions`; None is the default
        report: called with the progress of slow steps

    Raises:
        TypeError: unknown option
        PyTritonBadParameterError: the model does not exist, or the interpreter lacks the tool
        PyTritonValidationError: the model cannot be opened
    """
    found = table.tool_of(target)
    assert found is not None  # see DaemonClient.register_model
    tool, location = found
    check_names("register_model", given, names_of(RegisterModelOptions))
    options = merge_options(None, given)
    if config is not None or version not in (None, 1):
        raise PyTritonValidationError(
            f"{target}: config= and version= apply only to Triton's own models; omit them for {tool.title} models."
        )
    if model_name is not None:
        validate_model_name(model_name)
    location = _absolute(tool, location)
    say = step_reporter(report)
    requirements = options["requirements"]
    if options["python"] is None and requirements is None and tool.scheme == "torchserve":
        requirements = _requirements_in(location)
    python = select_interpreter(options["python"], requirements, say)
    world = worker_environment(python, options, say=say)
    check_packages(world.python, tool)
    say(f"inspecting {target}")
    recipe = ToolRecipe(tool.loader, location)
    about = _description(recipe, model_name, options, world)
    validate_model_name(about["name"])
    fields = spec_fields(options)
    devices = device_list(options["devices"])
    asked = options["instances"]
    fields.update(
        name=about["name"],
        version=1,
        config=about["config"],
        world=world,
        instances=count_instances(asked, devices, None),
        devices=devices,
        autoscale=autoscale_of(asked) if asked is not None else None,
        factory=True,
        max_inflight_batches=options["max_inflight_batches"] or default_lanes(about["config"]),
        max_concurrency=default_concurrency(about["config"], options["max_inflight_batches"]),
        web=msgspec.convert(about["web"], messages.WebRoute),
    )
    message = messages.Register(
        messages.ModelSpec(**fields), bool(options["replace"]), bool(options["ephemeral"])
    )
    return message, [recipe.payload()]


def path_of(location: str) -> str:
    """Return the path in a location such as `task=folder` or `app.py:Api`."""
    match = _PATH.fullmatch(location)
    return match["path"] if match else location


def _absolute(tool: table.Tool, location: str) -> str:
    """Return a location with an absolute path, because workers run in other folders.

    Raises:
        PyTritonBadParameterError: there is no such file or folder
    """
    if tool.scheme == "hf" and "=" not in location:
        raise PyTritonBadParameterError(
            f"{tool.scheme}:{location}: write {tool.form}, such as hf:text-classification=./model"
        )
    if re.match(r"[a-z0-9+]+:/", location):  # a URI, for the tool
        return location
    path = path_of(location)
    absolute = Path(path).expanduser().absolute()
    if not absolute.exists():
        raise PyTritonBadParameterError(f"{tool.scheme}:{location}: there is no {absolute}.")
    return location.replace(path, str(absolute), 1)


def _requirements_in(archive: str) -> list[str] | None:
    """Return the packages that a model archive lists; None if it lists none.

    Raises:
        PyTritonBadParameterError: it is not an archive
    """
    if os.path.isdir(archive):
        return None
    try:
        with zipfile.ZipFile(archive) as packed:
            model = json.loads(packed.read("MAR-INF/MANIFEST.json"))["model"]
            name = model.get("requirementsFile")
            text = packed.read(name).decode() if name else ""
    except (OSError, KeyError, ValueError, AttributeError, zipfile.BadZipFile) as error:
        raise PyTritonBadParameterError(f"{archive} is not a model archive: {error}") from error
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines())
    wanted = [line for line in lines if line]
    # Its configuration is read in that environment, too.
    return [*wanted, "pyyaml"] if wanted and model.get("configFile") else wanted or None


def _description(
    recipe: ToolRecipe,
    model_name: str | None,
    options: RegisterOptions,
    world: messages.WorkerEnvironment,
) -> dict[str, Any]:
    """Make the workers' interpreter describe a model, and return the description.

    Raises:
        PyTritonValidationError: it cannot be opened, or takes too long
    """
    question = {
        "loader": recipe.loader,
        "location": recipe.location,
        "name": model_name,
        "route": options["route"],
    }
    return environments.ask_interpreter(
        world, _DESCRIBER, question, recipe.location, options["load_timeout_s"]
    )
