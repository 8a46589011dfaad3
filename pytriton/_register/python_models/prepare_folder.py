"""Program that prepares a model of a repository for workers. The daemon runs it once per model."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytriton._register import environments
from pytriton.exceptions import PyTritonError

if TYPE_CHECKING:
    from pytriton._protocol import messages


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Carry out a task for the daemon, and return the result as a JSON object.

    Args:
        question: the arguments of the task, and in `task` its name: "python" prepares the registration of a Python
            model, "environment" finds or creates the interpreter for workers of another model
    """
    tasks = {"python": _python_model, "environment": _environment}
    try:
        return tasks[question["task"]](question)
    except PyTritonError as error:
        return {"error": str(error)}


def _python_model(question: dict[str, Any]) -> dict[str, Any]:
    # Imported here: without them, the task "environment" takes half the time.
    import msgspec

    from pytriton._register.python_models import model_programs

    folder = Path(question["folder"])
    config: dict[str, Any] | None = question["config"]
    own_environment = model_programs.names_environment(config, folder)
    requirements = question["requirements"]
    if question["install"] and not own_environment and not requirements:
        requirements = environments.missing_modules(question["python"], ["numpy"]) or None
    message, _ = model_programs.prepare_model(
        folder,
        question["name"],
        config,
        None,
        {
            "requirements": requirements,
            "python": None if own_environment else question["python"],
            "cwd": folder,
            "env": question["env"],
        },
        _report,
    )
    return {"spec": msgspec.to_builtins(message.spec)}


def _environment(question: dict[str, Any]) -> dict[str, Any]:
    python, modules = question["python"], question["modules"]
    requirements = question["requirements"] or []
    lacking = environments.missing_modules(python, list(modules))
    if question["install"] and (requirements or lacking):
        python = environments.with_requirements([*modules.values(), *requirements], python, _say)
    elif lacking:
        return {"lacking": lacking}
    packages = environments.worker_packages(python, _say)
    return {"lacking": [], "python": python, "packages": packages or ""}


def _report(progress: messages.Progress) -> None:
    _say(progress.text)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main() -> int:
    """Read a question from standard input, print the answer, and return the exit code."""
    # Standard output is for the answer only: redirect what started programs print to standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    answers.write(json.dumps(answer(json.load(sys.stdin))) + "\n")
    answers.flush()
    return 0
