"""Program that reports which modules an interpreter would import. Run by the interpreter of a future worker.

It reads one JSON value per line from standard input, and writes one answer per line to standard output. The first value
is the module search path to use ([]: the interpreter's own); the answer lists its existing entries. Each further value is
the name of a module; the answer is [found, file]. Standard library only; Python 3.9 or newer.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import IO


def main() -> None:
    # Standard output is for answers only: redirect what imported packages print to standard error.
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
        spec = importlib.util.find_spec(name)  # imports the parent packages
    except BaseException:
        # A package may do anything during import, such as sys.exit().
        spec = None
    if spec is not None:
        return [True, spec.origin if spec.has_location else None]
    module = sys.modules.get(name)  # created by its package without a file, such as six.moves
    return [module is not None, getattr(module, "__file__", None)]


def _answer(answers: IO[str], value: object) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
