"""Arenas: shared memory that its owner writes and one other process maps read-only.

An arena is a memfd: it has no name, so a killed process leaves nothing behind and no other process
can open it. Only the owner has a writable descriptor; it hands over a read-only one. The arena
grows and never shrinks (it is sealed), so a reader can never fault. Allocations are consecutive
and are all freed at once::

    ┌────────┬──────────────┬────┬───────────────────────────┐
    │ tensor │    tensor    │ …  │  free                     │   reset() moves `used` back to 0
    └────────┴──────────────┴────┴───────────────────────────┘
    0                            used                    size

`reset` can keep regions; they are skipped when memory is allocated again.

An arena that grew for a large batch frees the additional pages (MADV_REMOVE) after ten seconds without such
a batch. Its size and all mappings stay the same, so the reader is unaffected.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Sequence

from pytriton._protocol import linux

#: Alignment of tensors: a cache line, which also suits SIMD loads.
ALIGNMENT = 64
_SMALLEST = 1 << 16
#: Bytes an arena always keeps, and seconds after which it releases the rest if unused.
KEPT = 64 << 20
KEPT_S = 10.0


#: Allocations that total less than this do not check the available memory.
MIN_SWEEP_BYTES = 1 << 26


class ArenaError(Exception):
    """Shared memory cannot be allocated, or the peer's reference to it is invalid."""


class NoMemoryLeft(ArenaError):
    """The machine has too little available memory."""


def refuse_more_than_available(nbytes: int) -> None:
    """Raise unless `nbytes` are available; overcommit would trigger the OOM killer instead of failing.

    Raises:
        NoMemoryLeft: too little memory is available.
    """
    available = linux.available_memory()
    if nbytes > available:
        raise NoMemoryLeft(
            f"{nbytes} bytes of memory are needed, but only {available} are available on this machine"
        )


class Arena:
    """The writing end of an arena. Not thread-safe.

    Args:
        name: name of the memory, shown in /proc/PID/maps
        on_change: called when `backed` has changed
    """

    def __init__(self, name: str, on_change: Callable[[], None] | None = None) -> None:
        self._on_change = on_change
        self._fd = linux.memfd_create(name)
        linux.seal_against_shrinking(self._fd)
        self._size = 0
        self._backed = 0  #: bytes with allocated memory pages
        self._used = 0
        self._needed_at = 0.0  #: when more than `KEPT` bytes were last allocated
        #: Whether `backed` is more than `KEPT`.
        self.large = False
        self._kept: Sequence[tuple[int, int]] = ()
        self._map: mmap.mmap | None = None

    @property
    def size(self) -> int:
        """Size in bytes of the memory visible to the peer."""
        return self._size

    @property
    def backed(self) -> int:
        """Number of bytes for which memory pages are allocated."""
        return self._backed

    @property
    def used(self) -> int:
        """Number of bytes allocated, including padding."""
        return self._used

    def reset(self, kept: Sequence[tuple[int, int]] = ()) -> None:
        """Free all allocations except the sorted regions [start, end) in `kept`.

        The reader must have finished with the freed regions.
        """
        if self.large:
            self._note_need()
        self._used = 0
        self._kept = kept
        if self.large:
            self.give_back()

    def give_back(self, *, at_once: bool = False) -> None:
        """Free the pages beyond `KEPT` if they have been unused for `KEPT_S`, or immediately with `at_once`. Do
        nothing while allocations exist.
        """
        start = max([KEPT, *[end for _, end in self._kept]])
        start = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        now = time.monotonic()
        idle = now - self._needed_at > KEPT_S
        if self._used or not (idle or at_once) or start >= self._backed or self._map is None:
            return
        try:
            self._map.madvise(mmap.MADV_REMOVE, start, self._backed - start)
        except OSError:  # the process has locked its memory, including this
            self._needed_at = now
            return
        self._backed = start
        self.large = start > KEPT
        self._changed()

    def allocate(self, nbytes: int) -> int:
        """Allocate `nbytes` bytes and return their offset.

        Raises:
            ArenaError: the machine does not have enough memory available.
        """
        start = self._next(nbytes)
        end = start + nbytes
        if end > self._backed:
            self._grow(end)
        self._used = end
        return start

    def fits(self, nbytes: int) -> bool:
        """Return True if `nbytes` bytes can be allocated without growing the arena."""
        return self._next(nbytes) + nbytes <= self._backed

    def writable(self) -> mmap.mmap:
        """Return the mapping, which covers everything allocated so far."""
        if self._map is None:
            self._grow(_SMALLEST)
            assert self._map is not None
        return self._map

    def open_readonly(self) -> int:
        """Return a new read-only descriptor, which the caller passes to the reader and then closes.

        Raises:
            ArenaError: this process has no free descriptors.
        """
        try:
            return os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ArenaError(f"cannot open shared memory for the peer: {error}") from error

    def close(self) -> None:
        """Release the memory. Existing views stay valid until they are deleted."""
        self._map = None
        os.close(self._fd)

    def _next(self, nbytes: int) -> int:
        start = -(-self._used // ALIGNMENT) * ALIGNMENT
        for kept_start, kept_end in self._kept:
            if start < kept_end and kept_start < start + nbytes:
                start = -(-kept_end // ALIGNMENT) * ALIGNMENT
        return start

    def _grow(self, needed: int) -> None:
        size = max(_SMALLEST, 1 << (needed - 1).bit_length()) if needed < 1 << 26 else needed
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        available = linux.available_memory()
        if size - self._backed > available:  # the kernel would not fail: it would kill a process
            raise ArenaError(
                f"cannot allocate {size} bytes of shared memory: {self._backed} are allocated and only {available} "
                "more are available on this machine"
            )
        try:
            # Reserves the pages: otherwise a full machine would cause SIGBUS in the middle of a copy.
            os.posix_fallocate(self._fd, self._backed, size - self._backed)
            if size > self._size or self._map is None:
                self._map = mmap.mmap(self._fd, size)
                self._size = size
        except (OSError, ValueError, OverflowError) as error:
            raise ArenaError(f"cannot allocate {size} bytes of shared memory: {error}") from error
        self._backed = size
        self.large = size > KEPT
        self._needed_at = time.monotonic()
        self._changed()

    def _changed(self) -> None:
        if self._on_change is not None:
            self._on_change()

    def _note_need(self) -> None:
        if self._used > KEPT:
            self._needed_at = time.monotonic()


class MappedMemory:
    """The reading end of an arena, or of any shared memory file, mapped read-only.

    Takes ownership of `fd`. With `writer_trusted=False`, the memory must be sealed against shrinking.
    """

    def __init__(self, fd: int, *, writer_trusted: bool) -> None:
        self._fd = fd
        self._map: mmap.mmap | None = None
        self._size = 0  #: size of the mapping
        if not writer_trusted and not linux.is_sealed_against_shrinking(fd):
            os.close(fd)
            raise ArenaError("the peer passed memory that is not sealed against shrinking")

    def covering(self, end: int) -> mmap.mmap:
        """Return a mapping that covers the bytes [0, end).

        Raises:
            ArenaError: the memory is smaller than `end`, or cannot be mapped.
        """
        if end > self._size or self._map is None:
            self._map_again(end)
            assert self._map is not None
        return self._map

    def close(self) -> None:
        """Release the memory. It stays mapped until its last view is deleted."""
        self._map = None
        os.close(self._fd)

    def _map_again(self, end: int) -> None:
        size = os.fstat(self._fd).st_size
        if end > size or size == 0:
            raise ArenaError(f"the peer refers to byte {end} of a memory segment of {size} bytes")
        try:
            self._map = mmap.mmap(self._fd, size, access=mmap.ACCESS_READ)
        except (OSError, ValueError, OverflowError) as error:
            raise ArenaError(f"cannot map the peer's memory of {size} bytes: {error}") from error
        self._size = size
