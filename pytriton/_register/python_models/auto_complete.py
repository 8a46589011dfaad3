"""Has a model's `auto_complete_config` run in its workers' interpreter, in a process that ends then."""

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
#: Of what a process has printed that ended without an answer, its last characters.
_TOLD = 4000


def ask_model(
    question: Mapping[str, Any], world: messages.World, name: str, limit_s: float | None
) -> dict[str, Any]:
    """Return the configuration as the model completes it.

    Args:
        question: what worker/python_model/complete_config.py reads
        world: of the workers
        name: the model's
        limit_s: seconds that it may take; None: any number

    Raises:
        PyTritonValidationError: it fails, or takes longer.
    """
    program = str(_LIBRARY / "worker" / "python_model" / "complete_config.py")
    # Files, not pipes: a process that the model starts may hold these open for as long as it lives.
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as printed:
        answer: Any
        try:
            done = subprocess.run(
                [world.python, program, str(_LIBRARY)],
                input=json.dumps({**question, "parent": os.getpid()}).encode() + b"\n",
                cwd=world.cwd,
                # Another Python's bytecode of ours does not belong into this environment.
                env={**world.env, "PYTHONDONTWRITEBYTECODE": "1"},
                stdout=said,
                stderr=printed,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            answer = {
                "error": f"it has not returned for {limit_s:g} s (load_timeout_s)",
                "traceback": _text(printed)[-_TOLD:],
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
        return {"error": f"its process ended with {code}", "traceback": printed[-_TOLD:]}


def _text(file: IO[bytes]) -> str:
    """Return what was written to a file; a model may print anything, text of another encoding among it."""
    file.seek(0)
    return file.read().decode("utf-8", "backslashreplace")
