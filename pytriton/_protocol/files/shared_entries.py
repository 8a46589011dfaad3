"""Registry of the memory that workers share: for each mapping, a small file lists the processes that hold it.

    <runtime directory>/shared/
      <digest>.json      label, kind, size, and the holders: pid, start time, descriptor
      <digest>.lock      locked (flock) while the mapping is created or gains a holder; removed under an exclusive lock
      <digest>.<pid>     temporary file of the process that is writing the entry

The memory itself has no name: it belongs to its holders' descriptors, so the kernel frees it when the last holder
exits, for whatever reason. A worker maps it by opening a holder's descriptor in /proc. Entries without a running
holder are stale, and any process may remove them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from pytriton._protocol import linux

#: The block size that stat(2) counts in.
_BLOCK = 512
#: The environment variable that passes the folder to a worker.
ENV_SHARED_DIR = "PYTRITON_DAEMON_SHARED_DIR"
#: Prefix of the memory's name as the kernel shows it.
MEMFD_NAME = "pytriton-shared"


class Holder(msgspec.Struct, frozen=True, array_like=True):
    """A process that holds the mapping. `started` is its start time in clock ticks since boot, to detect a reused
    pid.
    """

    pid: int
    started: int
    fd: int

    @property
    def is_running(self) -> bool:
        """Return True if the process is still running."""
        return started_at(self.pid) == self.started


class SharedEntry(msgspec.Struct, frozen=True):
    """One mapping. `kind` is "memory", or "file" for a mapped file, whose pages the kernel can drop and read again."""

    label: str
    kind: str
    size: int
    holders: list[Holder]

    def without_exited(self) -> SharedEntry:
        """Return the entry without holders that have exited."""
        return msgspec.structs.replace(
            self, holders=[one for one in self.holders if one.is_running]
        )

    def with_measured_size(self, digest: str) -> SharedEntry:
        """Return the entry with the size that the kernel reports: the size in the file cannot be trusted.

        Pages of a mapped file do not count: the kernel drops them when it needs memory.
        """
        for one in self.holders:
            path = f"/proc/{one.pid}/fd/{one.fd}"
            with contextlib.suppress(OSError):
                if os.readlink(path).split(" ")[0] == f"/memfd:{MEMFD_NAME}-{digest}":
                    return msgspec.structs.replace(self, size=os.stat(path).st_blocks * _BLOCK)
        return msgspec.structs.replace(self, size=0)


def started_at(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot; None if it does not exist."""
    try:
        fields = linux.stat_fields(f"/proc/{pid}/stat")
    except OSError:
        return None
    return None if fields[3] in (b"Z", b"X") else int(fields[22])


@contextlib.contextmanager
def locked(folder: Path, digest: str) -> Iterator[None]:
    """Lock an entry during the block, so that no other process changes it or creates its mapping. Wait for the lock."""
    with _locked(folder / f"{digest}.lock", fcntl.LOCK_EX):
        yield


@contextlib.contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    fd: int | None = None
    while fd is None:
        fd = _lock(path, how)
    try:
        yield
    finally:
        # A process forked in the meantime has the descriptor, too: closing it here would not release the lock.
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _lock(path: Path, how: int) -> int | None:
    """Lock a lock file and return its descriptor; None if the file was removed in the meantime."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, fd)
        fcntl.flock(fd, how)
        try:
            is_there = os.path.samestat(os.fstat(fd), os.stat(path))
        except FileNotFoundError:
            is_there = False
        if is_there:
            stack.pop_all()
            return fd
    return None


def read(folder: Path, digest: str) -> SharedEntry | None:
    """Return an entry with its running holders; None if it does not exist or cannot be read."""
    try:
        return msgspec.json.decode(
            (folder / f"{digest}.json").read_bytes(), type=SharedEntry
        ).without_exited()
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def write(folder: Path, digest: str, entry: SharedEntry) -> None:
    """Write an entry atomically. The caller must hold its lock."""
    path = folder / f"{digest}.json"
    beside = path.with_suffix(f".{os.getpid()}")
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(entry))
        beside.rename(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def all_of(folder: Path) -> dict[str, SharedEntry]:
    """Return the entries of all mappings that running processes hold, keyed by digest. Remove stale files."""
    found = {}
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return {}
    digests = {}
    for name in names:
        digest, _, suffix = name.partition(".")
        if suffix in ("json", "lock"):
            digests[digest] = True
        elif suffix.isdecimal() and started_at(int(suffix)) is None:
            with contextlib.suppress(OSError):  # another process may have removed it
                (folder / name).unlink()
    for digest in digests:
        entry = read(folder, digest)
        if entry is not None and entry.holders:
            found[digest] = entry.with_measured_size(digest)
        else:
            _remove(folder, digest)
    return found


def size_of_all(folder: Path) -> int:
    """Return the total size of the shared memory that running processes hold, in bytes."""
    return sum(entry.size for entry in all_of(folder).values())


def _remove(folder: Path, digest: str) -> None:
    """Remove the files of an entry without holders, unless it is locked."""
    path = folder / f"{digest}.lock"
    # If it is locked, another process is creating it again.
    with contextlib.suppress(OSError), _locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB):
        entry = read(folder, digest)
        if entry is None or not entry.holders:
            (folder / f"{digest}.json").unlink(missing_ok=True)
            path.unlink()
