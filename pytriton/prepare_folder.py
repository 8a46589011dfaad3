"""Prepares a model of a model repository for the daemon's workers: a program that the daemon runs.

Standard input: a JSON object with `task` and what that takes. Standard output, its last line: a JSON object with
the answer, or with `error`, a sentence. What takes long is told on standard error. The tasks:

`python`: a Triton Python model. `folder`, `name`, `config` (null: the folder's), `python` of its workers,
`requirements` (null: none). Answer: `spec`, a `messages.ModelSpec`.

`environment`: `python`, `modules` (import name -> pip's name) and `requirements` (null: none). Answer: `python`, an
interpreter that has all of these: the given one, or that of an environment made of it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from pytriton import environments, python_models
from pytriton.exceptions import PyTritonError
from pytriton.ipc import messages


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Return what is printed."""
    tasks = {"python": _python_model, "environment": _environment}
    try:
        return tasks[question["task"]](question)
    except PyTritonError as error:
        return {"error": str(error)}


def _python_model(question: dict[str, Any]) -> dict[str, Any]:
    folder = Path(question["folder"])
    config: dict[str, Any] | None = question["config"]
    own_environment = python_models.names_environment(config, folder)
    message, _ = python_models.prepare_model(
        folder,
        question["name"],
        config,
        question["requirements"],
        {"python": None if own_environment else question["python"], "cwd": folder},
        _report,
    )
    return {"spec": msgspec.to_builtins(message.spec)}


def _environment(question: dict[str, Any]) -> dict[str, Any]:
    python, modules = question["python"], question["modules"]
    requirements = question["requirements"] or []
    if requirements or environments.lacking(python, list(modules)):
        wanted = [*modules.values(), *requirements]
        python = environments.with_requirements(wanted, python, _say)
    return {"python": python}


def _report(progress: messages.Progress) -> None:
    _say(progress.text)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main() -> int:
    """Read, answer, return the exit code."""
    # What a program that is started here prints must not be taken for the answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    answers.write(json.dumps(answer(json.load(sys.stdin))) + "\n")
    answers.flush()
    return 0
