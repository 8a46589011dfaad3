"""Runs a model's `auto_complete_config` in its workers' interpreter, in a short-lived process."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from pytriton._protocol import messages
from pytriton.exceptions import PyTritonValidationError

_LIBRARY = Path(__file__).parents[2]  # the package pytriton
#: Number of trailing characters of output to show if the process exited without an answer.
_MAX_SHOWN = 4000


def ask_model(
    question: Mapping[str, Any], world: messages.WorkerEnvironment, name: str, limit_s: float | None
) -> dict[str, Any]:
    """Return the configuration as the model completes it.

    Args:
        question: the input of worker/python_model/complete_config.py
        world: the workers' environment
        name: the model's name
        limit_s: time limit in seconds; None: unlimited

    Raises:
        PyTritonValidationError: it fails, or exceeds the limit.
    """
    program = str(_LIBRARY / "worker" / "python_model" / "complete_config.py")
    # Files, not pipes: a process started by the model may keep these open indefinitely.
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as printed:
        answer: Any
        try:
            done = subprocess.run(
                [world.python, program, str(_LIBRARY)],
                input=json.dumps({**question, "parent": os.getpid()}).encode() + b"\n",
                cwd=world.cwd,
                # Keep another Python's bytecode out of this environment.
                env={**world.env, "PYTHONDONTWRITEBYTECODE": "1"},
                stdout=said,
                stderr=printed,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            answer = {
                "error": f"it has not returned for {limit_s:g} s (load_timeout_s)",
                "traceback": _text(printed)[-_MAX_SHOWN:],
            }
        else:
            answer = _answer(_text(said), done.returncode, _text(printed))
    if "error" in answer:
        raise PyTritonValidationError(
            f"auto_complete_config of model {name!r} failed: {answer['error']}\n{answer['traceback'].rstrip()}"
        )
    config: dict[str, Any] = answer["config"]
    return config


def _answer(said: str, code: int, printed: str) -> Any:
    try:
        return json.loads(said)
    except ValueError:
        return {
            "error": f"its process exited with status {code}",
            "traceback": printed[-_MAX_SHOWN:],
        }


def _text(file: IO[bytes]) -> str:
    """Return the content of a file; a model may print anything, including text in another encoding."""
    file.seek(0)
    return file.read().decode("utf-8", "backslashreplace")
