"""Helper programs that inspect a model's files, so that the daemon loads neither frameworks nor user code."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from pytriton.dispatcher.repository.model_folders import UnservableModel
from pytriton.dispatcher.runtime.child import bound_to_us
from pytriton.dispatcher.runtime.worker_library import library_of

_log = structlog.get_logger(__name__)

#: How long to wait for a killed process.
_END_S = 5.0


@dataclass(frozen=True)
class Program:
    """A module with a function `main` that reads a JSON object from stdin and prints one on its last line of output.

    Args:
        module: one of our modules
        task: its task, to complete "model m: …"
        limit_s: time limit, in seconds
        hide_gpus: hide the GPUs, which inspecting a file does not need
    """

    module: str
    task: str
    limit_s: float
    hide_gpus: bool = True


async def ask(
    program: Program,
    question: Mapping[str, Any],
    *,
    model: str,
    folder: Path,
    python: str,
    library: Path,
    packages: str = "",
) -> dict[str, Any]:
    """Run a program in the model's folder; return its answer.

    Args:
        program: the program
        question: its input
        model: name of the model
        folder: folder of the model
        python: the interpreter to use
        library: the directory that contains this version of `pytriton`
        packages: directory with packages that the interpreter lacks

    Raises:
        UnservableModel: it cannot be run, exceeds its time limit, or reports an error.
    """
    more = [packages] if packages else []
    ours = str(library_of(library, python))
    paths = f"sys.path[0] = {ours!r}; sys.path += {more!r}"
    code = f"import sys; {paths}; from {program.module} import main; main()"
    if shutil.which(python) is None:
        raise UnservableModel(
            f"model {model}: the interpreter {python} (setting model_python) cannot be run: there is no such program"
        )
    try:
        process = await asyncio.create_subprocess_exec(
            *bound_to_us([python, "-c", code]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=str(folder),
            env={**os.environ, **({"CUDA_VISIBLE_DEVICES": ""} if program.hide_gpus else {})},
        )
    except OSError as error:
        raise UnservableModel(
            f"model {model}: {program.task} could not start: {error.strerror}"
        ) from error
    try:
        said, complaint = await asyncio.wait_for(
            process.communicate(json.dumps(question).encode()), program.limit_s
        )
    except BaseException as error:
        if process.returncode is None:
            process.kill()
            with contextlib.suppress(asyncio.TimeoutError):
                # its descendants may hold its pipes
                await asyncio.wait_for(process.wait(), _END_S)
        if isinstance(error, asyncio.TimeoutError):
            raise UnservableModel(
                f"model {model}: {program.task} took longer than {program.limit_s:g} s"
            ) from error
        raise
    return _answer(program, model, said.decode("utf-8", "replace"), complaint)


def _answer(program: Program, model: str, said: str, complaint: bytes) -> dict[str, Any]:
    lines = said.strip().splitlines()
    words = complaint.decode("utf-8", "replace").strip()
    try:
        answer: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        raise UnservableModel(f"model {model}: {program.task} failed: {words[-2000:]}") from None
    if "error" in answer:
        _log.info("a model was refused", model=model, output=words[-4000:])
        raise UnservableModel(f"model {model}: {answer['error']}")
    return answer
