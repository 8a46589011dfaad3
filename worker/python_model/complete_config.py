"""Program that runs a model's `auto_complete_config` in the interpreter of its workers, and prints the result as JSON.

Usage: python complete_config.py PYTRITON_FOLDER. Standard input is one JSON object with the model's file, the search
path ([] for the interpreter's own) and the configuration. Standard output is one JSON object with the completed
configuration or the error; the model's own output goes to standard error. As in Triton's python backend, objects that
the model creates here are discarded.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import Any


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    question = json.loads(sys.stdin.readline())
    library = sys.argv[1]
    sys.argv[:] = [""]  # as in Triton's python backend
    try:
        answer = json.dumps({"config": _completed(library, question)})
    except BaseException as error:  # a model may raise SystemExit
        answer = json.dumps(_failure(library, error))
    answers.write(f"{answer}\n")
    answers.flush()


def _failure(library: str, error: BaseException) -> dict[str, Any]:
    if "pytriton" not in sys.modules:
        _become_importable(library)
    from pytriton.worker.fault_reports import client_text, traceback_of

    return {"error": client_text(error), "traceback": traceback_of(error)}


def _completed(library: str, question: dict[str, Any]) -> dict[str, Any]:
    del sys.path[0]  # this file's own folder
    if question["sys_path"]:
        sys.path[:] = question["sys_path"]
    packages = os.environ.get("PYTRITON_WORKER_PACKAGES")
    if packages:
        sys.path.append(packages)
    _become_importable(library)
    from pathlib import Path

    from pytriton._protocol import linux

    if "parent" in question:  # exit with the parent, which does not wait for us if it is cancelled
        linux.die_with_parent(question["parent"])
    from pytriton import pb_utils
    from pytriton.worker.python_model.loader import model_class

    pb_utils.install()
    folder, file = question["folder"], question["file"]
    model = model_class(Path(folder), file)
    if not hasattr(model, "auto_complete_config"):  # the file only mentions the name
        return dict(question["config"])
    completed = model.auto_complete_config(pb_utils.ModelConfig(question["config"]))
    if not isinstance(completed, pb_utils.ModelConfig):
        raise TypeError(
            f"auto_complete_config returned {type(completed).__name__}; it must return the configuration that was passed to it"
        )
    return completed.as_dict()


def _become_importable(library: str) -> None:
    """Make the daemon's pytriton importable without adding its parent folder to the search path."""
    found = importlib.util.spec_from_file_location(
        "pytriton",
        os.path.join(library, "__init__.py"),
        submodule_search_locations=[library],
    )
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules["pytriton"] = module
    found.loader.exec_module(module)


if __name__ == "__main__":
    main()
