"""Lists the entries of the cache directory with their size and use, and removes unused entries.

An entry is in use if a process of this user runs from it, or if a persisted registration names it. The modification time
of an entry is the time of its last use: code that finds an entry updates it (`publish`, `environments.py`).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import filelock

#: Directory in the cache -> its content.
KINDS = {
    "server": "tritonserver",
    "native-frontend": "compiled frontend",
    "native-proxy": "compiled proxy",
    "proxy-env": "environment of the Python proxy",
    "environments": "environments of workers",
    "archives": "unpacked model archives",
}
#: The file written last into an environment of workers (`pytriton._register.environments`).
_COMPLETE = ".complete"
_DAY_S = 86_400.0

State = Literal["running", "registered", "unused", "incomplete", "being made"]


@dataclass(frozen=True)
class CacheEntry:
    """One entry of the cache.

    Attributes:
        kind: its parent directory, one of `KINDS`
        size: bytes on disk
        used_at: seconds since the epoch
        state: "running": a process runs from it; "registered": a persisted registration names it; "being made": a process
            is creating it; "incomplete": a failed or interrupted attempt left it; else "unused"
    """

    kind: str
    path: Path
    size: int
    used_at: float
    state: State


def entries_of(cache: Path, registrations: Iterable[Path]) -> list[CacheEntry]:
    """Return the entries of a cache, in the order of `KINDS`.

    Args:
        cache: the cache directory
        registrations: files in which daemons persist registrations
    """
    paths = [path for kind in KINDS for path in _paths(cache / kind)]
    running = _named_by_processes(paths)
    registered = _named_in_files(paths, registrations)
    found = []
    for path in paths:
        state: State = "unused"
        if path in running:
            state = "running"
        elif not _is_whole(path):
            state = "being made" if _is_locked(path) else "incomplete"
        elif path in registered:
            state = "registered"
        found.append(CacheEntry(path.parent.name, path, _size(path), _used_at(path), state))
    return found


def prune(entries: Iterable[CacheEntry], unused_days: float) -> Iterator[CacheEntry]:
    """Remove incomplete entries, and those not used in the last `unused_days`; yield each removed entry.

    Raises:
        OSError: an entry cannot be removed.
    """
    before = time.time() - unused_days * _DAY_S
    for entry in entries:
        is_stale = entry.state == "unused" and entry.used_at <= before
        if (is_stale or entry.state == "incomplete") and _remove(entry):
            yield entry


def _paths(folder: Path) -> list[Path]:
    """Return the entries of one kind, including incomplete ones, whose names start with a dot."""
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    except FileNotFoundError:
        return []


def _is_whole(path: Path) -> bool:
    if path.name.startswith("."):
        return False
    return path.parent.name != "environments" or (path / _COMPLETE).exists()


def _lock_of(path: Path) -> Path:
    if path.parent.name == "environments":
        return path.with_name(f"{path.name}.lock")
    return path.with_name(f".{path.name.lstrip('.').partition('.tmp-')[0]}.lock")


def _is_locked(path: Path) -> bool:
    lock = filelock.FileLock(_lock_of(path))
    try:
        with lock.acquire(timeout=0):
            return False
    except filelock.Timeout:
        return True


def _remove(entry: CacheEntry) -> bool:
    """Remove an entry; return False if another process has used or locked it in the meantime."""
    lock = filelock.FileLock(_lock_of(entry.path))
    try:
        with lock.acquire(timeout=0):
            if not entry.path.exists() or _used_at(entry.path) > entry.used_at:
                return False
            gone = entry.path.with_name(f".{entry.path.name.lstrip('.')}.tmp-removed")
            if gone.exists():
                shutil.rmtree(gone)
            entry.path.rename(gone)  # a partly removed entry must not count as complete
            shutil.rmtree(gone)
            return True
    except filelock.Timeout:
        return False


def _used_at(path: Path) -> float:
    return path.stat().st_mtime


def _size(folder: Path) -> int:
    """Return the disk usage of a directory in bytes. A file with several hard links counts once."""
    seen: dict[tuple[int, int], int] = {}
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # being created, or removed
                found = os.lstat(os.path.join(place, name))
                seen[found.st_dev, found.st_ino] = found.st_blocks * 512
    return sum(seen.values())


def _named_by_processes(paths: Iterable[Path]) -> set[Path]:
    """Return the paths that a process of this user has in its command, environment or memory maps."""
    words = {os.fsencode(path): path for path in paths}
    found: set[Path] = set()
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        with contextlib.suppress(OSError):  # it has exited, or belongs to another user
            if process.stat().st_uid != os.geteuid() or process.name == str(os.getpid()):
                continue
            for file in ("cmdline", "environ", "maps"):
                text = (process / file).read_bytes()
                found.update(path for word, path in words.items() if word in text)
    return found


def _named_in_files(paths: Iterable[Path], files: Iterable[Path]) -> set[Path]:
    words = {os.fsencode(path): path for path in paths}
    found: set[Path] = set()
    for file in files:
        with contextlib.suppress(FileNotFoundError), open(file, "rb") as opened:
            if os.fstat(opened.fileno()).st_size:
                with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as text:
                    found.update(path for word, path in words.items() if text.find(word) >= 0)
    return found
