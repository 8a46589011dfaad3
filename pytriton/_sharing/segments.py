"""Mappings that several processes have: found by their digest, made once under a lock, held until this process ends."""

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
from pytriton._protocol.files.shared_entries import ENV_SHARED_DIR, Entry, Holder
from pytriton._protocol.files.shared_entries import MEMFD_NAME as _NAME

#: What is written at once.
_CHUNK = 16 << 20

Buffer = Union[bytes, memoryview]


class Segment:
    """One mapping of this process: sealed memory, or a file.

    Attributes:
        fd: others open it below /proc as long as this process lives
        size: of the mapping
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.size = os.fstat(fd).st_size
        self._read_only: mmap.mmap | None = None
        self._private: mmap.mmap | None = None

    def read_only(self) -> mmap.mmap:
        """Return the bytes, which nobody can write."""
        if self._read_only is None:
            self._read_only = mmap.mmap(self.fd, self.size, mmap.MAP_SHARED, mmap.PROT_READ)
        return self._read_only

    def private(self) -> mmap.mmap:
        """Return the bytes; a page that this process writes becomes its own, and is shared no more."""
        if self._private is None:
            access = mmap.PROT_READ | mmap.PROT_WRITE
            self._private = mmap.mmap(self.fd, self.size, mmap.MAP_PRIVATE, access)
        return self._private


#: Those of this process, by digest; they stay, for arrays of theirs may be anywhere.
_segments: dict[str, Segment] = {}
_alone = threading.RLock()


def memory(digest: str, label: str, make: Callable[[], Iterable[Buffer]]) -> Segment:
    """Return sealed memory; what `make` returns is written to it once on this machine, one piece after the other.

    Raises:
        MemoryError: there is not enough.
        OSError: it cannot be shared.
        Exception: what `make` raised; the next one to ask tries again.
    """
    return _segment(digest, label, "memory", lambda: _made(digest, make))


def file(digest: str, path: Path) -> Segment:
    """Return the mapping of a file; its pages are in memory once, whoever maps it.

    Raises:
        OSError: it cannot be opened.
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
                    entry = Entry(label, kind, segment.size, [*holders, own])
                    shared_entries.write(folder, digest, entry)
                except BaseException:  # nobody would ever find it, and it takes memory
                    os.close(segment.fd)
                    raise
            _segments[digest] = segment
        return segment


def _opened(holder: Holder, digest: str) -> int | None:
    """Return a descriptor of what another process holds, if it is that memory, and nobody can change it any more."""
    try:
        fd = os.open(f"/proc/{holder.pid}/fd/{holder.fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # it has ended, or is somebody else's
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
        # Read only from now on, also for whoever opens it below /proc.
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(fd)


def _write(fd: int, piece: memoryview) -> None:
    for begin in range(0, len(piece), _CHUNK):
        chunk = piece[begin : begin + _CHUNK]
        while chunk:
            chunk = chunk[os.write(fd, chunk) :]


def _folder() -> Path:
    """Return where entries are: with the daemon of a worker; of other processes, with the user."""
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
