"""Handles one user's private files, in folders where other users may have created files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def open_private(path: str, flags: int) -> int:
    """Open a file without following links; create it with mode 0600. Used as the `opener` of `open`.

    Raises:
        OSError: the file cannot be opened; ELOOP if it is a link, which might point anywhere.
    """
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with its content. Does nothing if the path does not exist.

    Raises:
        OSError: the path cannot be removed.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def files_of_others(folder: Path, *, passing_over: frozenset[str] = frozenset()) -> list[Path]:
    """Return files and folders below a folder that belong to other users, at most one per folder.

    Args:
        folder: the folder to search; links in it are not followed
        passing_over: names in the folder itself that are skipped
    """
    found = []
    for place, folders, files in os.walk(folder):
        if Path(place) == folder:
            folders[:] = [name for name in folders if name not in passing_over]
            files = [name for name in files if name not in passing_over]
        for name in [*folders, *files]:
            entry = Path(place, name)
            if os.path.lexists(entry) and os.lstat(entry).st_uid != os.geteuid():
                found.append(entry)
                break
    return found
