"""Files that tests make once and keep for later runs: `$XDG_CACHE_HOME/pytriton-daemon-tests`; they may be removed."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

#: What was used by no run for so long goes.
_KEPT_S = 30 * 24 * 3600.0


def cache_folder(name: str = ".") -> Path:
    """Return a folder of the user's."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = cache / "pytriton-daemon-tests" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def remove_unused(folder: Path) -> None:
    """Remove files whose times say that they were not used for a month."""
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process does the same
            if time.time() - path.stat().st_mtime > _KEPT_S:
                path.unlink()
