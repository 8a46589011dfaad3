"""The list of what workers share on a machine: one small file for each mapping, with the processes that hold it.

    <runtime directory>/shared/
      <digest>.json      what it is, how large, and its holders: process, when that started, its descriptor
      <digest>.lock      locked (flock) by whoever makes it, or becomes a holder; removed by who has it locked alone
      <digest>.<pid>     an entry that this process is writing

The memory itself has no name anywhere: it belongs to its holders' descriptors, so the kernel frees it when the last of
them has ended, however that was. A worker gets it by opening a holder's descriptor below /proc. What is listed here
and held by nobody is rubbish that anybody may remove.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

#: Bytes that stat(2) counts by.
_BLOCK = 512
#: Names the folder in a worker's environment.
ENV_SHARED_DIR = "PYTRITON_DAEMON_SHARED_DIR"
#: Begins the names that the kernel shows of the memory.
MEMFD_NAME = "pytriton-shared"


class Holder(msgspec.Struct, frozen=True, array_like=True):
    """A process that has the mapping; `started` in clock ticks since the machine's start, as a pid comes again."""

    pid: int
    started: int
    fd: int

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return started_at(self.pid) == self.started


class Entry(msgspec.Struct, frozen=True):
    """One mapping; `kind` is "memory", or "file" for one of a file, whose pages the kernel may drop and read again."""

    label: str
    kind: str
    size: int
    holders: list[Holder]

    def living(self) -> Entry:
        """Return it with those holders that live."""
        return msgspec.structs.replace(self, holders=[one for one in self.holders if one.lives])

    def measured(self, digest: str) -> Entry:
        """Return it with the size of its memory as the kernel tells it: what stands in an entry may be anything.

        The pages of a mapped file are nobody's memory: the kernel drops them when it needs them.
        """
        for one in self.holders:
            path = f"/proc/{one.pid}/fd/{one.fd}"
            with contextlib.suppress(OSError):
                if os.readlink(path).split(" ")[0] == f"/memfd:{MEMFD_NAME}-{digest}":
                    return msgspec.structs.replace(self, size=os.stat(path).st_blocks * _BLOCK)
        return msgspec.structs.replace(self, size=0)


def started_at(pid: int) -> int | None:
    """Return when a process started, in clock ticks since the machine did; None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


@contextlib.contextmanager
def locked(folder: Path, digest: str) -> Iterator[None]:
    """Be the only one who changes an entry, or makes what it is about; waits for others."""
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
        # A process that was forked meanwhile has the descriptor, too: closing it here would not end the lock.
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _lock(path: Path, how: int) -> int | None:
    """Return the descriptor of a lock file, locked; None if the file was removed meanwhile."""
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


def read(folder: Path, digest: str) -> Entry | None:
    """Return an entry with its living holders; None if there is none, or it cannot be read."""
    try:
        return msgspec.json.decode((folder / f"{digest}.json").read_bytes(), type=Entry).living()
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def write(folder: Path, digest: str, entry: Entry) -> None:
    """Put an entry in the place of the former one; the caller has it locked."""
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


def all_of(folder: Path) -> dict[str, Entry]:
    """Return what living processes hold, by digest, and remove the files of the others."""
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
            with contextlib.suppress(OSError):  # whoever else looks may have removed it
                (folder / name).unlink()
    for digest in digests:
        entry = read(folder, digest)
        if entry is not None and entry.holders:
            found[digest] = entry.measured(digest)
        else:
            _remove(folder, digest)
    return found


def size_of_all(folder: Path) -> int:
    """Return the bytes of all the memory that living processes hold."""
    return sum(entry.size for entry in all_of(folder).values())


def _remove(folder: Path, digest: str) -> None:
    """Remove the files of an entry that nobody holds, unless somebody is at it."""
    path = folder / f"{digest}.lock"
    # Where it is locked, somebody makes it anew.
    with contextlib.suppress(OSError), _locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB):
        entry = read(folder, digest)
        if entry is None or not entry.holders:
            (folder / f"{digest}.json").unlink(missing_ok=True)
            path.unlink()
