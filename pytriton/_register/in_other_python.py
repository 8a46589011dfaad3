"""Registers a callable from its workers' interpreter: the command line's own may lack what the module imports.

command line ── Request ──▶ process of that interpreter: import, pickle ──▶ daemon
             ◀── one JSON object per line: progress, then the result ──
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytriton._register import environments
from pytriton.autoscale import Autoscale
from pytriton.exceptions import DaemonNotRunningError, PyTritonBadParameterError, PyTritonError


@dataclass(frozen=True)
class RegisterRequest:
    """A registration to be made by another interpreter.

    Args:
        target: MODULE:ATTRIBUTE
        runtime_dir: the daemon's
        options: keyword arguments of `DaemonClient.register`
    """

    target: str
    runtime_dir: str
    options: Mapping[str, Any]


def run(python: str, packages: str | None, request: RegisterRequest) -> Iterator[dict[str, Any]]:
    """Yield `{"progress": text}` during the registration, and finally `{"name": …, "url": …}`.

    Args:
        python: an interpreter, Python 3.9 or newer
        packages: a folder with packages it lacks; see `environments.worker_packages`
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
        assert process.stdin is not None  # pipes, see above
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
    """Read the request, register, and report the outcome."""
    # Output of the module must not mix with the answers.
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
        emit(name=model.name, url=model.url)


def _register(request: Mapping[str, Any], report: Any) -> Any:
    from pytriton._register.target import check_declared, load_target
    from pytriton.daemon import connect

    options = {**request["options"], "python": sys.executable}
    instances = options.get("instances")
    if isinstance(instances, dict):
        options["instances"] = Autoscale(**instances)
    elif isinstance(instances, list):
        options["instances"] = tuple(instances)
    target = load_target(request["target"])
    check_declared(target, request["target"])
    with connect(runtime_dir=request["runtime_dir"]) as client:
        return client.register(target, progress=report, **options)
