"""Runs in the interpreter that a worker would have, and tells what it would import.

Usage: python import_probe.py, with JSON lines on standard input and output: first the search path to use
([]: the interpreter's own), answered by that in use; then names of modules, each answered by
[found, file]. Standard library only; any Python from 3.9 on.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import IO


def main() -> None:
    # What the modules print must not get between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    del sys.path[0]  # this file's own folder
    wanted = json.loads(sys.stdin.readline())
    if wanted:
        sys.path[:] = wanted
    _answer(answers, [path for path in sys.path if os.path.exists(path)])
    for line in sys.stdin:
        _answer(answers, _look_up(json.loads(line)))


def _look_up(name: str) -> list[object]:
    try:
        spec = importlib.util.find_spec(name)  # imports the packages that it is in
    except BaseException:
        # A package may do anything at all while it is imported, such as sys.exit().
        spec = None
    if spec is not None:
        return [True, spec.origin if spec.has_location else None]
    module = sys.modules.get(name)  # made by its package without a file, as six.moves is
    return [module is not None, getattr(module, "__file__", None)]


def _answer(answers: IO[str], value: object) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
