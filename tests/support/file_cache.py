"""Files that tests create once and keep for later runs in `$XDG_CACHE_HOME/pytriton-daemon-tests`; they may be deleted."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

#: Files that no run used for this long are removed.
_KEPT_S = 30 * 24 * 3600.0


def cache_folder(name: str = ".") -> Path:
    """Return a folder in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = cache / "pytriton-daemon-tests" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def remove_unused(folder: Path) -> None:
    """Remove files that were not used for a month, by their times."""
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process does the same
            if time.time() - path.stat().st_mtime > _KEPT_S:
                path.unlink()
