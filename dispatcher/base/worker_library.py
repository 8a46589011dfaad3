"""The `pytriton` that workers import: the daemon's own, whatever their environment holds."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from pytriton.ipc.files.private_files import remove
from pytriton.ipc.files.rundir import RuntimeDir


def lay_out_library(rundir: RuntimeDir) -> Path:
    """Make the folder that workers put first on sys.path: it holds `pytriton` and nothing else.

    It is made anew: a `numpy.py` that somebody put there would be imported by every worker.
    """
    remove(rundir.library)
    rundir.library.mkdir(mode=0o700)
    spec = importlib.util.find_spec("pytriton")
    assert spec is not None  # this module is part of it
    assert spec.submodule_search_locations
    ours = Path(next(iter(spec.submodule_search_locations))).absolute()
    (rundir.library / "pytriton").symlink_to(ours)
    return rundir.library
