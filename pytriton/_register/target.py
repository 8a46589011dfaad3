"""Registers a declared callable by its name, MODULE:ATTRIBUTE, for the command line.

The interpreter of the command line may lack packages that the module imports. Then the workers' interpreter registers the
callable::

    command line ── RegisterRequest ──▶ process of that interpreter: import, pickle ──▶ daemon
                 ◀── one JSON object per line: progress, then the result ──
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pytriton._register import environments
from pytriton.autoscale import Autoscale
from pytriton.declaration import declaration_of
from pytriton.exceptions import DaemonNotRunningError, PyTritonBadParameterError, PyTritonError
from pytriton.typed.signature import is_typed

if TYPE_CHECKING:
    from pytriton._protocol import messages


def load_target(text: str) -> Any:
    """Import MODULE and return its ATTRIBUTE, which may contain dots.

    Raises:
        PyTritonBadParameterError: the text is malformed, MODULE or ATTRIBUTE does not exist, or the import failed; the
            error then includes the traceback
    """
    module_name, colon, attribute = text.partition(":")
    if not colon or not module_name or not attribute:
        own_name = text.partition(":")[0].rpartition("/")[2].removesuffix(".py")
        raise PyTritonBadParameterError(
            f"{text!r} is not of the form MODULE:ATTRIBUTE: pass the name of a callable in a module, such as "
            f"{own_name or 'mymodule'}:classify"
        )
    module = load_module(module_name)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            what = f"the module {module.__name__!r}" if found is module else repr(found)
            known = ", ".join(candidates(module)) if found is module else ""
            hint = f". It can serve: {known}" if known else ""
            raise PyTritonBadParameterError(f"{what} has no attribute {part!r} (of {text}){hint}")
        found = getattr(found, part)
    return found


def load_only_target(text: str) -> Any:
    """Import MODULE, and return the only callable that it defines and that can be served.

    Raises:
        PyTritonBadParameterError: as `load_target`, or the module defines none or several
    """
    module = load_module(text)
    names = candidates(module)
    if len(names) == 1:
        return getattr(module, names[0])
    if names:
        raise PyTritonBadParameterError(
            f"{text} defines {', '.join(names)}: name the one to serve, such as {text}:{names[0]}"
        )
    raise PyTritonBadParameterError(
        f"{text} defines no function whose parameters are all annotated, and none with @pytriton.declare"
    )


def candidates(module: ModuleType) -> list[str]:
    """Return the public names that a module gives to its own typed functions and declared callables."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and callable(value)
        and getattr(value, "__module__", None) == module.__name__
        and (declaration_of(value) is not None or (_is_function(value) and is_typed(value)))
    ]


def _is_function(value: Any) -> bool:
    """Return whether a callable is a function or a class whose objects are callable. Classes of values are neither."""
    return "__call__" in vars(value) if isinstance(value, type) else True


def load_module(name: str) -> ModuleType:
    """Import a module by name (from the working directory or the search path) or from its file.

    Raises:
        PyTritonBadParameterError: it does not exist, or the import failed; the text includes the traceback
    """
    folder, path = os.getcwd(), ""
    if "/" in name or name.endswith(".py"):
        path = os.path.abspath(name)
        if not os.path.isfile(path):
            raise PyTritonBadParameterError(f"the file {path} does not exist")
        folder, name = _module_of(path)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.argv[:] = [name]  # hide our arguments from the module and its workers
    module = _import(name)
    found = getattr(module, "__file__", None) or ""
    if path and os.path.realpath(found) != os.path.realpath(path):
        raise PyTritonBadParameterError(
            f"{path} cannot be imported, because the module name {name!r} is taken by {found or 'a built-in module'}: rename the file"
        )
    return module


def _module_of(path: str) -> tuple[str, str]:
    """Return the folder to import a file from, and the module's name, which includes its packages."""
    folder, file = os.path.split(path)
    names = [file.removesuffix(".py")]
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, package = os.path.split(folder)
        names.insert(0, package)
    return folder, ".".join(names)


def check_declared(target: Any, text: str) -> None:
    """Check that a short-lived command can register a callable.

    Raises:
        PyTritonBadParameterError: it is not callable, has no declaration, or is declared with isolation="thread"
    """
    declaration = declaration_of(target)
    if declaration is None and not callable(target):
        raise PyTritonBadParameterError(f"{text} is {target!r:.100}, which cannot be called.")
    if declaration is None and not is_typed(target):
        raise PyTritonBadParameterError(
            f"{text} does not declare its inputs and outputs. Annotate all its parameters to serve JSON; or decorate it with "
            "@pytriton.declare(inputs=[...], outputs=[...]) to serve tensors, or register it from Python with "
            "pytriton.connect().register(...)."
        )
    if declaration is not None and declaration.options.get("isolation") == "thread":
        raise PyTritonBadParameterError(
            f"{text} is declared with isolation='thread', to run in the process that registers it, but "
            "this command exits after registering it. Register it from a program that keeps running: "
            "pytriton.connect().register(...)."
        )


def _import(module_name: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(f"{missing}."):
            raise PyTritonBadParameterError(
                f"module {missing!r} not found in {os.getcwd()} or on the search path of "
                f"{sys.executable}"
            ) from None
        raise _import_failed(module_name, error) from None
    except (Exception, SystemExit) as error:
        raise _import_failed(module_name, error) from None


def _import_failed(module_name: str, error: BaseException) -> PyTritonBadParameterError:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(
        ("importlib", __name__)
    ):
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace)
    return PyTritonBadParameterError(
        f"importing {module_name} failed: {type(error).__name__}: {error}\n{''.join(lines).rstrip()}"
    )


# ── in another interpreter ──────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class RegisterRequest:
    """A registration that another interpreter carries out.

    Args:
        target: MODULE:ATTRIBUTE, or another tool's model, see `pytriton.formats.table.TOOLS`
        runtime_dir: runtime directory of the daemon
        options: keyword arguments of `DaemonClient.register`
    """

    target: str
    runtime_dir: str
    options: Mapping[str, Any]


def register_elsewhere(
    python: str, packages: str | None, request: RegisterRequest
) -> Iterator[dict[str, Any]]:
    """Register a callable in a process that runs another interpreter.

    Yields `{"progress": text}` during the registration, and finally `{"name": …, "url": …, "route": …}`.

    Args:
        python: path of the interpreter, Python 3.9 or newer
        packages: a folder with packages that it lacks; see `environments.worker_packages`
        request: the registration

    Raises:
        DaemonNotRunningError: no daemon is running
        PyTritonBadParameterError: the callable does not exist, or an argument is invalid
        PyTritonError: the registration failed
    """
    code = f"from {__name__} import main; main()"
    with subprocess.Popen(
        [python, "-c", environments.code_with_our_library(code, packages)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environments.plain_environment(),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin as stdin:
            stdin.write(
                json.dumps(dataclasses.asdict(request), default=dataclasses.asdict).encode()
            )
        for line in process.stdout:
            answer: dict[str, Any] = json.loads(line)
            if "error" in answer:
                raise _ERRORS[answer["kind"]](answer["error"])
            yield answer
    if process.returncode != 0:
        raise PyTritonError(
            f"{python} exited with status {process.returncode} before {request.target} was registered."
        )


_ERRORS: dict[str, type[PyTritonError]] = {
    one.__name__: one for one in (DaemonNotRunningError, PyTritonBadParameterError, PyTritonError)
}


def main() -> None:
    """Read a request from standard input, register the callable, and write progress and result to standard output."""
    # Standard output is for answers only: redirect what the module prints to standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def emit(**answer: Any) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    request = json.load(sys.stdin)
    try:
        info = _register(request, lambda progress: emit(progress=progress.text))
    except PyTritonError as error:
        kind = next(name for name, one in _ERRORS.items() if isinstance(error, one))
        emit(error=str(error), kind=kind)
    else:
        emit(name=info.name, url=info.url, route=info.route)


def _register(request: Mapping[str, Any], report: Any) -> messages.ModelInfo:
    from pytriton.daemon import connect

    options = {**restored(request["options"]), "python": sys.executable}
    target = load_target(request["target"])
    check_declared(target, request["target"])
    with connect(runtime_dir=request["runtime_dir"]) as client:
        return client.register(target, progress=report, **options).info()


def restored(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments of `register` that were sent as JSON or msgpack."""
    instances = options.get("instances")
    if isinstance(instances, dict):
        return {**options, "instances": Autoscale(**instances)}
    if isinstance(instances, list):
        return {**options, "instances": tuple(instances)}
    return dict(options)
