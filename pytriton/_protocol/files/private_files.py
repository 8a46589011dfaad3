"""Files of one user alone, in folders where somebody else may have been before."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def open_private(path: str, flags: int) -> int:
    """Open a file that is made 0600 and is no link: the `opener` of `open`.

    Raises:
        OSError: it cannot be opened; ELOOP when a link stands in its place, which might lead anywhere.
    """
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with all that is in it; nothing happens when none is there.

    Raises:
        OSError: it cannot be removed.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def strangers(folder: Path, *, passing_over: frozenset[str] = frozenset()) -> list[Path]:
    """Return what belongs to another user in a folder and below, at most one for each of its folders.

    Args:
        folder: links in it are not followed
        passing_over: names directly in the folder that are not looked at
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
