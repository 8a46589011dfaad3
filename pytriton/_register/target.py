"""Registration of a declared callable by its name, MODULE:ATTRIBUTE, for the command line.

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
import site
import subprocess
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytriton
from pytriton._register import environments
from pytriton._register.tool_models import path_of
from pytriton.autoscale import Autoscale
from pytriton.declaration import declaration_of
from pytriton.exceptions import DaemonNotRunningError, PyTritonBadParameterError, PyTritonError
from pytriton.formats.table import tool_of
from pytriton.typed.signature import is_typed


def load_target(text: str) -> Any:
    """Import MODULE and return its ATTRIBUTE, which may contain dots.

    Raises:
        PyTritonBadParameterError: the text is malformed, MODULE or ATTRIBUTE does not exist, or the import failed; the
            error then includes the traceback
    """
    module_name, colon, attribute = text.partition(":")
    if not colon or not module_name or not attribute:
        module = text.partition(":")[0].rpartition("/")[2].removesuffix(".py")
        raise PyTritonBadParameterError(
            f"{text!r} is not of the form MODULE:ATTRIBUTE: pass the name of a callable in a module, such as "
            f"{module or 'mymodule'}:classify"
        )
    folder = os.getcwd()
    if "/" in module_name or module_name.endswith(".py"):
        path = os.path.abspath(module_name)
        if not os.path.isfile(path):
            raise PyTritonBadParameterError(f"the file {path} does not exist")
        folder, module_name = os.path.dirname(path), os.path.basename(path).removesuffix(".py")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.argv[:] = [module_name]  # hide our arguments from the module and its workers
    found = _import(module_name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            what = (
                f"the module {module_name!r}" if found is sys.modules[module_name] else repr(found)
            )
            raise PyTritonBadParameterError(f"{what} has no attribute {part!r} (of {text})")
        found = getattr(found, part)
    return found


def check_declared(target: Any, text: str) -> None:
    """Check that a short-lived command can register a callable.

    Raises:
        PyTritonBadParameterError: the callable has no declaration, or is declared with isolation="thread"
    """
    declaration = declaration_of(target)
    if declaration is None and not is_typed(target):
        raise PyTritonBadParameterError(
            f"{text} does not say what it takes and returns. Annotate all its parameters to serve JSON; or decorate it with "
            "@pytriton.declare(inputs=[...], outputs=[...]) to serve tensors, or register it from Python with "
            "pytriton.connect().register(...)."
        )
    if declaration is not None and declaration.options.get("isolation") == "thread":
        raise PyTritonBadParameterError(
            f"{text} is declared with isolation='thread', to run in the process that registers it, but "
            "this command exits after registering it. Register it from a program that keeps running: "
            "pytriton.connect().register(...)."
        )


def _import(module_name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(f"{missing}."):
            raise PyTritonBadParameterError(
                f"module {missing!r} not found in {os.getcwd()} or on the search path of "
                f"{sys.executable}"
            ) from None
        raise _import_failed(module_name) from None
    except Exception:
        raise _import_failed(module_name) from None


def _import_failed(module_name: str) -> PyTritonBadParameterError:
    error = sys.exc_info()[1]
    text = f"importing {module_name} failed: {type(error).__name__}: {error}\n{traceback.format_exc().rstrip()}"
    return PyTritonBadParameterError(text)


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
    """Register a callable in a process of another interpreter.

    Yields `{"progress": text}` during the registration, and finally `{"name": …, "url": …}`.

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
        model = _register(request, lambda progress: emit(progress=progress.text))
    except PyTritonError as error:
        kind = next(name for name, one in _ERRORS.items() if isinstance(error, one))
        emit(error=str(error), kind=kind)
    else:
        info = model.info()
        server = info.url.partition("/v2/")[0]
        emit(
            name=info.name,
            url=info.url,
            route_url=f"{server}{info.route}" if info.route else "",
            docs_url=f"{server}/docs",
            files=_project_files(request["target"]),
        )


def _project_files(target: str) -> list[str]:
    """Return the files of the imported modules that are not installed packages, or the file of another tool's model."""
    tool = tool_of(target)
    if tool is not None:
        return [os.path.abspath(path_of(tool[1]))]
    installed = {
        *sysconfig.get_paths().values(),
        *site.getsitepackages(),
        sys.prefix,
        sys.base_prefix,
    }
    files = [getattr(module, "__file__", None) for module in [*sys.modules.values()]]
    return [
        one
        for one in files
        if one and not one.startswith((*installed, os.path.dirname(pytriton.__file__)))
    ]


def _register(request: Mapping[str, Any], report: Any) -> Any:
    from pytriton.daemon import connect

    options = request["options"]
    instances = options.get("instances")
    if isinstance(instances, dict):
        options["instances"] = Autoscale(**instances)
    elif isinstance(instances, list):
        options["instances"] = tuple(instances)
    with connect(runtime_dir=request["runtime_dir"]) as client:
        if tool_of(request["target"]) is not None:
            return client.register_model(request["target"], progress=report, **options)
        target = load_target(request["target"])
        check_declared(target, request["target"])
        return client.register(target, progress=report, **{**options, "python": sys.executable})
