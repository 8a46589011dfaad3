"""Which `pytriton` workers import: the daemon's own, whatever their environment has installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from pytriton.ipc.rundir import RuntimeDir


def lay_out_library(rundir: RuntimeDir) -> Path:
    """Make the folder that workers put first on sys.path: it holds `pytriton` and nothing else."""
    library = rundir.path / "lib"
    library.mkdir(mode=0o700, exist_ok=True)
    link = library / "pytriton"
    link.unlink(missing_ok=True)
    spec = importlib.util.find_spec("pytriton")
    assert spec is not None  # this module is part of it
    assert spec.submodule_search_locations
    link.symlink_to(Path(next(iter(spec.submodule_search_locations))).absolute())
    return library
