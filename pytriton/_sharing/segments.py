"""Memory and files mapped by several processes. A segment is created once, found by its digest, and mapped until exit."""

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

#: Maximum number of bytes per write.
_CHUNK = 16 << 20

Buffer = Union[bytes, memoryview]


class Segment:
    """Sealed memory, or a file, mapped into this process.

    Attributes:
        fd: its descriptor; as long as this process lives, others can open it below /proc
        size: size in bytes
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.size = os.fstat(fd).st_size
        self._read_only: mmap.mmap | None = None
        self._private: mmap.mmap | None = None

    def read_only(self) -> mmap.mmap:
        """Return a read-only mapping."""
        if self._read_only is None:
            self._read_only = mmap.mmap(self.fd, self.size, mmap.MAP_SHARED, mmap.PROT_READ)
        return self._read_only

    def private(self) -> mmap.mmap:
        """Return a copy-on-write mapping: pages that this process writes become private to it."""
        if self._private is None:
            access = mmap.PROT_READ | mmap.PROT_WRITE
            self._private = mmap.mmap(self.fd, self.size, mmap.MAP_PRIVATE, access)
        return self._private


#: The segments mapped by this process, by digest. They are never unmapped, since any object may refer to their arrays.
_segments: dict[str, Segment] = {}
_segments_lock = threading.RLock()


def memory(digest: str, label: str, make: Callable[[], Iterable[Buffer]]) -> Segment:
    """Return a segment of sealed memory; only the first process on this machine creates it.

    Args:
        digest: identifies the content
        label: name for people
        make: called in the first process; returns the pieces to write to the memory

    Raises:
        MemoryError: not enough memory is available
        OSError: the memory cannot be shared
        Exception: an exception of `make`; the next process that requests the segment calls it again
    """
    return _segment(digest, label, "memory", lambda: _create_memory(digest, make))


def file(digest: str, path: Path) -> Segment:
    """Return a segment that maps a file, whose pages all processes share.

    Raises:
        OSError: the file cannot be opened
    """
    return _segment(digest, str(path), "file", lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC))


def _segment(digest: str, label: str, kind: str, make: Callable[[], int]) -> Segment:
    with _segments_lock:
        segment = _segments.get(digest)
        if segment is None:
            folder = _folder()
            with shared_entries.locked(folder, digest):
                entry = shared_entries.read(folder, digest)
                holders = entry.holders if entry is not None else []
                others = holders if kind == "memory" else []
                opened = (_open_memory(one, digest) for one in others)
                fd = next((one for one in opened if one is not None), None)
                segment = Segment(make() if fd is None else fd)
                try:
                    started = shared_entries.started_at(os.getpid())
                    assert started is not None  # this process is running
                    own = Holder(os.getpid(), started, segment.fd)
                    entry = SharedEntry(label, kind, segment.size, [*holders, own])
                    shared_entries.write(folder, digest, entry)
                except BaseException:
                    os.close(segment.fd)  # without an entry, no other process could find the memory
                    raise
            _segments[digest] = segment
        return segment


def _open_memory(holder: Holder, digest: str) -> int | None:
    """Open the memory that another process holds; return None unless it is sealed and has the expected digest."""
    try:
        fd = os.open(f"/proc/{holder.pid}/fd/{holder.fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # the process has exited, or belongs to another user
        return None
    is_it = f"{_NAME}-{digest} " in os.readlink(f"/proc/self/fd/{fd}") + " "
    if is_it and linux.is_sealed_for_good(fd):
        return fd
    os.close(fd)
    return None


def _create_memory(digest: str, make: Callable[[], Iterable[Buffer]]) -> int:
    pieces = list(make())
    size = sum(len(memoryview(piece).cast("B")) for piece in pieces)
    available = linux.available_memory()
    if size > available:
        raise MemoryError(
            f"pytriton.shared: the value has {size:,} bytes, but only {available:,} bytes of memory are available"
        )
    fd = linux.memfd_create(f"{_NAME}-{digest}")
    try:
        for piece in pieces:
            _write(fd, memoryview(piece).cast("B"))
        linux.seal_for_good(fd)
        # Reopened read-only, so that processes that open it below /proc cannot write to it either.
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(fd)


def _write(fd: int, piece: memoryview) -> None:
    for begin in range(0, len(piece), _CHUNK):
        chunk = piece[begin : begin + _CHUNK]
        while chunk:
            chunk = chunk[os.write(fd, chunk) :]


def _folder() -> Path:
    """Return the folder of the entries that describe segments: in a worker the daemon's folder, else the user's."""
    given = os.environ.get(ENV_SHARED_DIR)
    folder = Path(given or os.path.join(tempfile.gettempdir(), f"{_NAME}-{os.geteuid()}"))
    folder.mkdir(mode=0o700, exist_ok=True)
    seen = os.lstat(folder)
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.geteuid() or seen.st_mode & 0o077:
        raise PermissionError(
            f"pytriton.shared: {folder} must be a folder that belongs to user {os.geteuid()} and that no other user can "
            f"access (mode 0700). Remove it, or set {ENV_SHARED_DIR} to another folder."
        )
    return folder
