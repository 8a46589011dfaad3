"""An arena: shared memory that its owner writes and one other process maps read-only.

An arena is a memfd: it has no name, so nothing is left behind by a killed process and nobody else
can open it. Only the owner has a writable descriptor; what it hands over is a read-only one. It
grows, never shrinks (sealed), so that a reader cannot be made to fault. Memory is handed out in a
row and taken back all at once::

    ┌────────┬──────────────┬────┬───────────────────────────┐
    │ tensor │    tensor    │ …  │  free                     │   reset() moves `used` back to 0
    └────────┴──────────────┴────┴───────────────────────────┘
    0                            used                    size

What shall outlive a reset is left out when memory is handed out again.

An arena that one large batch has made large gives memory back when it has not been needed for a while: the pages
go (MADV_REMOVE), the size and all mappings stay, so the reader need not know.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Sequence

from pytriton._protocol import linux

#: Tensors start at multiples of this: a cache line, and what SIMD loads like best.
ALIGNMENT = 64
_SMALLEST = 1 << 16
#: What an arena keeps, whether it is needed or not; and seconds after which it gives back what is more.
KEPT = 64 << 20
KEPT_S = 10.0


#: Pieces that come to less than this together are not worth a look at the memory that is left.
WORTH_A_LOOK = 1 << 26


class ArenaError(Exception):
    """Shared memory cannot be had, or what a peer says about it is wrong."""


class NoMemoryLeft(ArenaError):
    """There is not so much memory left on this machine."""


def refuse_more_than_available(nbytes: int) -> None:
    """See that so much memory is left: where it ends, no allocation fails, but the kernel kills processes.

    Raises:
        NoMemoryLeft: it is not.
    """
    available = linux.available_memory()
    if nbytes > available:
        raise NoMemoryLeft(
            f"it takes {nbytes} bytes of memory, and only {available} are available on this machine"
        )


class Arena:
    """The writing end. Not for use by several threads at once."""

    def __init__(self, name: str) -> None:
        self._fd = linux.memfd_create(name)
        linux.seal_against_shrinking(self._fd)
        self._size = 0
        self._backed = 0  #: so much of it has pages
        self._used = 0
        self._needed_at = 0.0  #: when more than `KEPT` was handed out the last time
        #: Whether it holds more than `KEPT`.
        self.large = False
        #: Is told when `backed` has changed.
        self.on_change: Callable[[], None] | None = None
        self._kept: Sequence[tuple[int, int]] = ()
        self._map: mmap.mmap | None = None

    @property
    def size(self) -> int:
        """Bytes that the peer may see."""
        return self._size

    @property
    def backed(self) -> int:
        """Bytes that have pages."""
        return self._backed

    @property
    def used(self) -> int:
        """Bytes handed out, and what lies between them."""
        return self._used

    def reset(self, kept: Sequence[tuple[int, int]] = ()) -> None:
        """Take back all that was handed out, but for the pieces [start, end) in `kept`, which is in order.

        The reader must be done with the rest.
        """
        if self.large:
            self._note_need()
        self._used = 0
        self._kept = kept
        if self.large:
            self.give_back()

    def give_back(self, *, at_once: bool = False) -> None:
        """Give back what has not been needed for a while, or `at_once`, if all has been taken back."""
        start = max([KEPT, *[end for _, end in self._kept]])
        start = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        now = time.monotonic()
        idle = now - self._needed_at > KEPT_S
        if self._used or not (idle or at_once) or start >= self._backed or self._map is None:
            return
        try:
            self._map.madvise(mmap.MADV_REMOVE, start, self._backed - start)
        except OSError:  # the process has locked its memory: that holds for this, too
            self._needed_at = now
            return
        self._backed = start
        self.large = start > KEPT
        self._changed()

    def allocate(self, nbytes: int) -> int:
        """Return the offset of `nbytes` fresh bytes.

        Raises:
            ArenaError: the machine has not that much memory left.
        """
        start = self._next(nbytes)
        end = start + nbytes
        if end > self._backed:
            self._grow(end)
        self._used = end
        return start

    def fits(self, nbytes: int) -> bool:
        """Return whether `allocate` can do without more memory."""
        return self._next(nbytes) + nbytes <= self._backed

    def writable(self) -> mmap.mmap:
        """Return the mapping; it covers everything allocated so far."""
        if self._map is None:
            self._grow(_SMALLEST)
            assert self._map is not None
        return self._map

    def open_readonly(self) -> int:
        """Return a new read-only descriptor, to be passed to the reader and closed here.

        Raises:
            ArenaError: no descriptors are left.
        """
        try:
            return os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ArenaError(f"cannot pass shared memory on: {error}") from error

    def close(self) -> None:
        """Give the memory back; views that are still held stay valid until they go."""
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
        if size - self._backed > available:  # the kernel would not refuse: it would kill somebody
            raise ArenaError(
                f"cannot get {size} bytes of shared memory: {self._backed} are held and only {available} "
                "more are available on this machine"
            )
        try:
            # Reserves the pages: without it, a full machine shows as SIGBUS in the middle of a
            # copy.
            os.posix_fallocate(self._fd, self._backed, size - self._backed)
            if size > self._size or self._map is None:
                self._map = mmap.mmap(self._fd, size)
                self._size = size
        except (OSError, ValueError, OverflowError) as error:
            raise ArenaError(f"cannot get {size} bytes of shared memory: {error}") from error
        self._backed = size
        self.large = size > KEPT
        self._needed_at = time.monotonic()
        self._changed()

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()

    def _note_need(self) -> None:
        if self._used > KEPT:
            self._needed_at = time.monotonic()


class MappedMemory:
    """The reading end of an arena, or of any file of shared memory, mapped read-only.

    Takes over `fd`. `writer_trusted=False` insists on a seal against shrinking.
    """

    def __init__(self, fd: int, *, writer_trusted: bool) -> None:
        self._fd = fd
        self._map: mmap.mmap | None = None
        self._size = 0  #: what is mapped
        if not writer_trusted and not linux.is_sealed_against_shrinking(fd):
            os.close(fd)
            raise ArenaError("the peer passed memory that it could shrink under us")

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
        """Unmap as soon as the last view is gone."""
        self._map = None
        os.close(self._fd)

    def _map_again(self, end: int) -> None:
        size = os.fstat(self._fd).st_size
        if end > size or size == 0:
            raise ArenaError(f"the peer points at byte {end} of a memory of {size} bytes")
        try:
            self._map = mmap.mmap(self._fd, size, access=mmap.ACCESS_READ)
        except (OSError, ValueError, OverflowError) as error:
            raise ArenaError(f"cannot map the peer's memory of {size} bytes: {error}") from error
        self._size = size
