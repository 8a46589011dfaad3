"""Mappings shared by several processes: found by digest, created once under a lock, held until this process exits."""

from __future__ import annotations

import mmap
import os
import stat
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Union

from pytriton._protocol import linux
from pytriton._protocol.files import shared_entries
from pytriton._protocol.files.shared_entries import ENV_SHARED_DIR, Holder, SharedEntry
from pytriton._protocol.files.shared_entries import MEMFD_NAME as _NAME

#: Bytes written at once.
_CHUNK = 16 << 20

Buffer = Union[bytes, memoryview]


class Segment:
    """One mapping of this process: sealed memory, or a file.

    Attributes:
        fd: other processes open it below /proc as long as this process lives
        size: size of the mapping
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.size = os.fstat(fd).st_size
        self._read_only: mmap.mmap | None = None
        self._private: mmap.mmap | None = None

    def read_only(self) -> mmap.mmap:
        """Return the bytes, read-only."""
        if self._read_only is None:
            self._read_only = mmap.mmap(self.fd, self.size, mmap.MAP_SHARED, mmap.PROT_READ)
        return self._read_only

    def private(self) -> mmap.mmap:
        """Return the bytes, copy-on-write: pages that this process writes become private."""
        if self._private is None:
            access = mmap.PROT_READ | mmap.PROT_WRITE
            self._private = mmap.mmap(self.fd, self.size, mmap.MAP_PRIVATE, access)
        return self._private


#: This process's segments, by digest. Never removed, since their arrays may be referenced anywhere.
_segments: dict[str, Segment] = {}
_alone = threading.RLock()


def memory(digest: str, label: str, make: Callable[[], Iterable[Buffer]]) -> Segment:
    """Return sealed memory; the pieces returned by `make` are written to it once on this machine.

    Raises:
        MemoryError: not enough memory.
        OSError: it cannot be shared.
        Exception: raised by `make`; the next process to request it tries again.
    """
    return _segment(digest, label, "memory", lambda: _made(digest, make))


def file(digest: str, path: Path) -> Segment:
    """Return the mapping of a file; all processes share its pages.

    Raises:
        OSError: the file cannot be opened.
    """
    return _segment(digest, str(path), "file", lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC))


def _segment(digest: str, label: str, kind: str, make: Callable[[], int]) -> Segment:
    with _alone:
        segment = _segments.get(digest)
        if segment is None:
            folder = _folder()
            with shared_entries.locked(folder, digest):
                entry = shared_entries.read(folder, digest)
                holders = entry.holders if entry is not None else []
                others = holders if kind == "memory" else []
                opened = (_opened(one, digest) for one in others)
                fd = next((one for one in opened if one is not None), None)
                segment = Segment(make() if fd is None else fd)
                try:
                    started = shared_entries.started_at(os.getpid())
                    assert started is not None  # it runs
                    own = Holder(os.getpid(), started, segment.fd)
                    entry = SharedEntry(label, kind, segment.size, [*holders, own])
                    shared_entries.write(folder, digest, entry)
                except (
                    BaseException
                ):  # otherwise it would occupy memory, and no process could find it
                    os.close(segment.fd)
                    raise
            _segments[digest] = segment
        return segment


def _opened(holder: Holder, digest: str) -> int | None:
    """Return a descriptor of another process's memory if it is the expected one, and sealed."""
    try:
        fd = os.open(f"/proc/{holder.pid}/fd/{holder.fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # the process has exited, or belongs to another user
        return None
    is_it = f"{_NAME}-{digest} " in os.readlink(f"/proc/self/fd/{fd}") + " "
    if is_it and linux.is_sealed_for_good(fd):
        return fd
    os.close(fd)
    return None


def _made(digest: str, make: Callable[[], Iterable[Buffer]]) -> int:
    pieces = list(make())
    size = sum(len(memoryview(piece).cast("B")) for piece in pieces)
    available = linux.available_memory()
    if size > available:
        raise MemoryError(
            f"pytriton.shared: {size:,} bytes are to be shared, and {available:,} bytes of memory are left"
        )
    fd = linux.memfd_create(f"{_NAME}-{digest}")
    try:
        for piece in pieces:
            _write(fd, memoryview(piece).cast("B"))
        linux.seal_for_good(fd)
        # Read-only from now on, also for processes that open it below /proc.
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(fd)


def _write(fd: int, piece: memoryview) -> None:
    for begin in range(0, len(piece), _CHUNK):
        chunk = piece[begin : begin + _CHUNK]
        while chunk:
            chunk = chunk[os.write(fd, chunk) :]


def _folder() -> Path:
    """Return the folder with the shared entries: the daemon's for workers, a per-user one for other processes."""
    given = os.environ.get(ENV_SHARED_DIR)
    folder = Path(given or os.path.join(tempfile.gettempdir(), f"{_NAME}-{os.geteuid()}"))
    folder.mkdir(mode=0o700, exist_ok=True)
    seen = os.lstat(folder)
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.geteuid() or seen.st_mode & 0o077:
        raise PermissionError(
            f"pytriton.shared: {folder} has to be a folder that belongs to user {os.geteuid()} and is for that user "
            f"alone (0700); remove it, or set {ENV_SHARED_DIR}"
        )
    return folder
