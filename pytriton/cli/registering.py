"""`pytriton-daemon register MODULE:ATTRIBUTE`, or `--model-dir FOLDER`: import it, hand it over, show progress."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

from pytriton.cli.errors import CliError, errors_of_clients, say
from pytriton.ipc import messages
from pytriton.ipc.exit_codes import ExitCode
from pytriton.ipc.files.rundir import RuntimeDir

if TYPE_CHECKING:
    from pytriton.autoscale import Instances
    from pytriton.daemon import DaemonClient, Model


@dataclass(frozen=True)
class Wish:
    """A command's wish: MODULE:ATTRIBUTE or a folder, and keyword arguments of `DaemonClient`'s method."""

    target: str
    options: Mapping[str, Any]


def register_target(wish: Wish, rundir: RuntimeDir) -> str:
    """Register it and return a sentence about the model that serves now.

    Raises:
        CliError: there is no such attribute, it carries no declaration, no daemon runs, or the
            registration failed; with the traceback from where it failed.
    """
    from pytriton.declaration import declaration_of

    target = load_target(wish.target)
    declaration = declaration_of(target)
    if declaration is None:
        raise CliError(
            ExitCode.USAGE,
            f"{wish.target} carries no declaration of its inputs and outputs. Decorate it with "
            "@pytriton.declare(inputs=[...], outputs=[...]), or register it from Python with "
            "pytriton.connect().register(...).",
        )
    if declaration.options.get("isolation") == "thread":
        raise CliError(
            ExitCode.USAGE,
            f"{wish.target} is declared with isolation='thread', to run in the process that registers it, and "
            "this one ends at once. Register it from a program that stays: pytriton.connect().register(...).",
        )
    return _register(
        lambda client, progress: client.register(target, progress=progress, **wish.options), rundir
    )


def register_folder(wish: Wish, rundir: RuntimeDir) -> str:
    """Register a Triton Python model, or all of a repository; return a sentence about each that serves now.

    Raises:
        CliError: as `register_target`.
    """
    return _register(
        lambda client, progress: client.register_model(
            wish.target, progress=progress, **wish.options
        ),
        rundir,
    )


def wanted_instances(text: str) -> Instances:
    """Return what a word says about the number of instances: "4", or "1:8".

    Raises:
        CliError: it says nothing of that kind.
    """
    from pytriton.autoscale import instances_of_text
    from pytriton.exceptions import PyTritonValidationError

    try:
        return instances_of_text(text)
    except PyTritonValidationError as error:
        raise CliError(ExitCode.USAGE, str(error)) from None


def load_target(text: str) -> Any:
    """Import MODULE and return its ATTRIBUTE (which may have dots).

    Raises:
        CliError: the text is malformed, or there is no such thing, or importing it failed, which
            is shown with its traceback.
    """
    module_name, colon, attribute = text.partition(":")
    if not colon or not module_name or not attribute:
        module = text.partition(":")[0].rpartition("/")[2].removesuffix(".py")
        raise CliError(
            ExitCode.USAGE,
            f"{text!r} is not MODULE:ATTRIBUTE: say which callable of the module is meant, such as "
            f"{module or 'mymodule'}:classify",
        )
    if "/" in module_name or module_name.endswith(".py"):
        folder, _, file = module_name.rpartition("/")
        where = f"in the folder {folder}, " if folder else ""
        raise CliError(
            ExitCode.USAGE,
            f"{module_name!r} is a file, and MODULE is the name of a module: {where}"
            f"say {file.removesuffix('.py')}:{attribute}",
        )
    cwd = os.getcwd()
    if cwd not in sys.path:
        sys.path.insert(0, cwd)
    sys.argv[:] = [module_name]  # what it and its workers see are no arguments of ours
    found = _import(module_name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise CliError(ExitCode.USAGE, f"{found!r} has no attribute {part!r} (of {text})")
        found = getattr(found, part)
    return found


def _import(module_name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(f"{missing}."):
            raise CliError(
                ExitCode.USAGE,
                f"there is no module {missing!r}; it is looked for in {os.getcwd()} and where "
                f"{sys.executable} looks",
            ) from None
        raise _import_failed(module_name) from None
    except Exception:
        raise _import_failed(module_name) from None


def _import_failed(module_name: str) -> CliError:
    import traceback

    text = f"importing {module_name} failed:\n{traceback.format_exc().rstrip()}"
    return CliError(ExitCode.USAGE, text)


def _register(
    act: Callable[[DaemonClient, Any], Union[Model, list[Model]]], rundir: RuntimeDir
) -> str:
    from pytriton.daemon import connect

    def tell(progress: messages.Progress) -> None:
        say(f"  {progress.text}")

    with errors_of_clients(), connect(runtime_dir=rundir.path) as client:
        progress = None if sys.stderr.isatty() else tell  # None: a bar
        served = act(client, progress)
        models = served if isinstance(served, list) else [served]
        return "\n".join(f"{model.name} is ready: {model.url}" for model in models)
