"""The command `register`: imports the target, registers it, and shows the progress."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

from pytriton._cli.errors import CliError, errors_of_clients
from pytriton._cli.output import say
from pytriton._protocol import messages
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.files.rundir import RuntimeDir

if TYPE_CHECKING:
    from pytriton.autoscale import Instances
    from pytriton.daemon import DaemonClient, Model


@dataclass(frozen=True)
class RegisterCommand:
    """The target to register (MODULE:ATTRIBUTE or a path), and keyword arguments for the method of `DaemonClient`."""

    target: str
    options: Mapping[str, Any]


def register_target(command: RegisterCommand, rundir: RuntimeDir) -> str:
    """Register a callable, and return a sentence about the model.

    Raises:
        CliError: the attribute does not exist or has no declaration, no daemon is running, or the registration failed. The
            text contains the remote traceback, if any.
    """
    if "python" in command.options:
        return _register_elsewhere(command, rundir)
    from pytriton._register.target import check_declared

    target = load_target(command.target)
    with errors_of_clients():
        check_declared(target, command.target)
    return _register(
        lambda client, progress: client.register(target, progress=progress, **command.options),
        rundir,
    )


def _register_elsewhere(command: RegisterCommand, rundir: RuntimeDir) -> str:
    """Register a callable in a process that runs the workers' interpreter: this one may lack the module's dependencies.

    Raises:
        CliError: see `register_target`.
    """
    from pytriton._register import environments, target
    from pytriton._register.environment import find_interpreter

    with errors_of_clients():
        python = find_interpreter(command.options["python"])
        packages = environments.worker_packages(python, lambda text: say(f"  {text}"))
        options = {name: value for name, value in command.options.items() if name != "python"}
        request = target.RegisterRequest(command.target, str(rundir.path), options)
        served = {}
        for served in target.register_elsewhere(python, packages, request):
            if "progress" in served:
                say(f"  {served['progress']}")
    return _is_ready(served["name"], served["url"], served["route"])


def load_target(text: str) -> Any:
    """Import the object that MODULE:ATTRIBUTE names; see `target.load_target`.

    Raises:
        CliError: the object does not exist, or the import failed
    """
    from pytriton._register import target

    with errors_of_clients():
        return target.load_target(text)


def is_file(target: str) -> bool:
    """Return True if a target names a model file or another tool's model, as opposed to MODULE:ATTRIBUTE."""
    from pytriton._register.python_models.model_files import is_model_file
    from pytriton.formats.table import tool_of

    return tool_of(target) is not None or (":" not in target and is_model_file(target))


def register_folder(command: RegisterCommand, rundir: RuntimeDir) -> str:
    """Register a Triton Python model, a repository of them, a file, or another tool's model; return a sentence about each.

    Raises:
        CliError: see `register_target`.
    """
    return _register(
        lambda client, progress: client.register_model(
            command.target, progress=progress, **command.options
        ),
        rundir,
    )


def wanted_instances(text: str) -> Instances:
    """Parse an instance count, such as "4", or a range, such as "1:8".

    Raises:
        CliError: the text is neither.
    """
    from pytriton.autoscale import instances_of_text
    from pytriton.exceptions import PyTritonValidationError

    try:
        return instances_of_text(text)
    except PyTritonValidationError as error:
        raise CliError(ExitCode.USAGE, str(error)) from None


def _register(
    act: Callable[[DaemonClient, Any], Union[Model, list[Model]]], rundir: RuntimeDir
) -> str:
    from pytriton.daemon import connect

    def report(progress: messages.Progress) -> None:
        say(f"  {progress.text}")

    with errors_of_clients(), connect(runtime_dir=rundir.path) as client:
        progress = None if sys.stderr.isatty() else report  # None: a progress bar
        served = act(client, progress)
        models = served if isinstance(served, list) else [served]
        return "\n".join(_is_ready(one.name, one.url, one.info().route) for one in models)


def _is_ready(name: str, url: str, route: str) -> str:
    from pytriton.foreground import served_url

    called_at = served_url(url, route)  # empty without HTTP
    return f"{name} is ready: {called_at}" if called_at else f"{name} is ready"
