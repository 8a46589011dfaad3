"""Prepares a model of a model repository for the daemon's workers. The daemon runs this program."""

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
    """Return the JSON to print."""
    tasks = {"python": _python_model, "environment": _environment}
    try:
        return tasks[question["task"]](question)
    except PyTritonError as error:
        return {"error": str(error)}


def _python_model(question: dict[str, Any]) -> dict[str, Any]:
    # Here: finding an environment takes half the time without these imports.
    import msgspec

    from pytriton._register.python_models import model_programs

    folder = Path(question["folder"])
    config: dict[str, Any] | None = question["config"]
    own_environment = model_programs.names_environment(config, folder)
    requirements = question["requirements"]
    if question["install"] and not own_environment and not requirements:
        requirements = environments.lacking(question["python"], ["numpy"]) or None
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
    lacking = environments.lacking(python, list(modules))
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
    """Read the input, print the answer, return the exit code."""
    # Output of programs started here must not be mistaken for the answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    answers.write(json.dumps(answer(json.load(sys.stdin))) + "\n")
    answers.flush()
    return 0
