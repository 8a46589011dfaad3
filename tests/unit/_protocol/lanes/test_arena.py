"""The arena: memory that grows while it is read, that nobody can shrink, and whose allocation may fail."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
from collections.abc import Iterator
from contextlib import closing, contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.models.descriptors import leaves_open

from pytriton._protocol import linux
from pytriton._protocol.lanes.arena import ALIGNMENT, Arena, ArenaError, MappedMemory

pytestmark = pytest.mark.usefixtures("no_collection")

SMALL = 100
LARGE = 300_000
#: linux/fcntl.h.
_ADD_SEALS, _SEAL_GROW, _SEAL_WRITE = 1033, 4, 8


@pytest.fixture
def arena() -> Iterator[Arena]:
    with closing(Arena("test")) as arena:
        yield arena


def put(arena: Arena, data: bytes) -> int:
    offset = arena.allocate(len(data))
    arena.writable()[offset : offset + len(data)] = data
    return offset


def memfd(size: int, *, sealed: bool) -> int:
    fd = linux.memfd_create("test")
    os.ftruncate(fd, size)
    if sealed:
        linux.seal_against_shrinking(fd)
    return fd


@contextmanager
def largest_file(nbytes: int) -> Iterator[None]:
    """Set the kernel's maximum file size (which includes memory files) for this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@given(st.lists(st.binary(max_size=300) | st.integers(0, LARGE).map(bytes), max_size=20))
@settings(max_examples=examples(50), deadline=None)
def test_the_other_end_reads_what_was_written(blocks: list[bytes]) -> None:
    with closing(Arena("test")) as arena:
        offsets = [put(arena, block) for block in blocks]
        arena.writable()  # an empty arena has no memory to map
        with closing(MappedMemory(arena.open_readonly(), writer_trusted=False)) as reader:
            memory = reader.covering(arena.size)
            for offset, block in zip(offsets, blocks):
                assert offset % ALIGNMENT == 0
                assert memory[offset : offset + len(block)] == block
    borders = sorted((offset, offset + len(b)) for offset, b in zip(offsets, blocks) if b)
    assert all(end <= start for (_, end), (start, _) in zip(borders, borders[1:]))


def test_growth_keeps_arrays_over_the_old_mapping_valid(arena: Arena) -> None:
    offset = arena.allocate(SMALL)
    early = np.ndarray(SMALL, np.uint8, arena.writable(), offset)
    early[:] = 7
    size = arena.size
    arena.allocate(LARGE)
    assert arena.size > size
    assert arena.writable()[offset : offset + SMALL] == b"\7" * SMALL
    early[0] = 8  # still the same memory, not a copy of it
    assert arena.writable()[offset] == 8


def test_sizes_above_64_mib_are_not_rounded_up_to_a_power_of_two(arena: Arena) -> None:
    arena.allocate((1 << 26) + 1)
    assert (1 << 26) < arena.size < (1 << 26) + (1 << 20)


def test_reset_reuses_the_same_memory(arena: Arena) -> None:
    first = arena.allocate(LARGE)
    size = arena.size
    arena.reset()
    assert arena.allocate(LARGE) == first
    assert arena.size == size


def test_empty_data_takes_no_space(arena: Arena) -> None:
    assert arena.allocate(0) == 0
    assert arena.size == 0


def test_the_reader_maps_again_after_growth(arena: Arena) -> None:
    offset = put(arena, b"early")
    with closing(MappedMemory(arena.open_readonly(), writer_trusted=False)) as reader:
        early = memoryview(reader.covering(offset + 5))[offset : offset + 5]
        late = put(arena, b"late" * LARGE)
        end = late + 4 * LARGE
        assert reader.covering(end)[late:end] == b"late" * LARGE
        assert bytes(early) == b"early"


def test_the_reader_cannot_write(arena: Arena) -> None:
    put(arena, b"data")
    with closing(MappedMemory(arena.open_readonly(), writer_trusted=False)) as reader:
        memory = reader.covering(4)
        with pytest.raises(TypeError):
            memory[0] = 1
        array = np.ndarray(4, np.uint8, memory)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_the_readers_descriptor_is_read_only(arena: Arena) -> None:
    put(arena, b"data")
    fd = arena.open_readonly()
    try:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.pwrite(fd, b"x", 0)
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)


def test_the_kernel_refuses_to_shrink_an_arena(arena: Arena) -> None:
    put(arena, b"data")
    readonly = arena.open_readonly()
    writable = os.open(f"/proc/self/fd/{readonly}", os.O_RDWR)
    try:
        with pytest.raises(OSError, match="not permitted") as refused:
            os.ftruncate(writable, 0)
        assert refused.value.errno == errno.EPERM
        os.ftruncate(writable, arena.size + 1)  # growing is allowed
    finally:
        os.close(writable)
        os.close(readonly)


def test_unsealed_memory_of_an_untrusted_peer_is_refused_and_closed() -> None:
    with leaves_open():
        with pytest.raises(ArenaError, match="shrink"):
            MappedMemory(memfd(4096, sealed=False), writer_trusted=False)
        with pytest.raises(ArenaError, match="shrink"):
            MappedMemory(os.open("/dev/zero", os.O_RDONLY), writer_trusted=False)


def test_trusted_memory_needs_no_seal() -> None:
    with closing(MappedMemory(memfd(4096, sealed=False), writer_trusted=True)) as reader:
        assert reader.covering(4096)[:] == bytes(4096)


@pytest.mark.parametrize(("size", "end"), [(4096, 4097), (0, 0), (0, 1), (4096, 1 << 80)])
def test_a_position_outside_of_the_memory_is_an_error(size: int, end: int) -> None:
    memory = MappedMemory(memfd(size, sealed=True), writer_trusted=False)
    with closing(memory), pytest.raises(ArenaError, match=rf"byte {end} of .* {size} bytes"):
        memory.covering(end)


def test_unmappable_untrusted_memory_is_an_error() -> None:
    with leaves_open():
        writable = memfd(4096, sealed=True)
        unreadable = os.open(f"/proc/self/fd/{writable}", os.O_WRONLY)
        os.close(writable)
        for fd in (unreadable, memfd(1 << 62, sealed=True)):
            memory = MappedMemory(fd, writer_trusted=False)
            with closing(memory), pytest.raises(ArenaError):
                memory.covering(100)


def test_more_memory_than_the_machine_has_is_refused_before_allocation(arena: Arena) -> None:
    kept = put(arena, b"kept")
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # If the arena tried, the kernel would start killing processes: the limit prevents that.
    for nbytes in (2 * machine, 1 << 50, 1 << 63, 1 << 80):
        with largest_file(1 << 28), pytest.raises(ArenaError, match="available"):
            arena.allocate(nbytes)
    assert arena.writable()[kept : kept + 4] == b"kept"
    late = put(arena, bytes(LARGE) + b"late")
    assert arena.writable()[late + LARGE : late + LARGE + 4] == b"late"


def test_a_failed_allocation_leaves_the_arena_usable(arena: Arena) -> None:
    kept = put(arena, b"kept")
    with largest_file(1 << 20), pytest.raises(ArenaError, match=r"cannot allocate .* bytes"):
        arena.allocate(1 << 24)
    late = put(arena, bytes(LARGE) + b"late")
    assert arena.writable()[kept : kept + 4] == b"kept"
    assert arena.writable()[late + LARGE : late + LARGE + 4] == b"late"


def test_a_closed_arena_leaves_nothing() -> None:
    with leaves_open():
        arena = Arena("test")
        put(arena, bytes(LARGE))
        with closing(MappedMemory(arena.open_readonly(), writer_trusted=False)) as reader:
            view = memoryview(reader.covering(LARGE))
            arena.close()
            assert view[0] == 0  # views stay valid until they are freed
            del view


@given(
    st.lists(st.tuples(st.integers(1, 40_000), st.booleans()), min_size=1, max_size=12),
    st.lists(st.integers(0, 40_000), max_size=12),
)
@settings(max_examples=examples(50), deadline=None)
def test_memory_kept_across_a_reset_is_not_reused(
    first: list[tuple[int, bool]], then: list[int]
) -> None:
    with closing(Arena("test")) as arena:
        places = [(arena.allocate(nbytes), nbytes, keep) for nbytes, keep in first]
        taken = [(start, start + nbytes) for start, nbytes, keep in places if keep]
        arena.reset(list(taken))
        for nbytes in then:
            size, fitted = arena.size, arena.fits(nbytes)
            start = arena.allocate(nbytes)
            assert start % ALIGNMENT == 0
            assert fitted == (arena.size == size)
            assert all(start + nbytes <= low or high <= start for low, high in taken)
            taken.append((start, start + nbytes))
        arena.reset()
        assert arena.allocate(1) == 0


def test_without_free_descriptors_it_cannot_be_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    def spent(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with closing(Arena("test")) as arena, monkeypatch.context() as patched:
        patched.setattr(os, "open", spent)
        with pytest.raises(
            ArenaError, match=r"cannot open shared memory for the peer: .*Too many open files"
        ):
            arena.open_readonly()


def pages(arena: Arena) -> int:
    """Return how many bytes of an arena have pages."""
    fd = arena.open_readonly()
    try:
        return os.fstat(fd).st_blocks * 512
    finally:
        os.close(fd)


def test_unused_memory_is_released_after_a_delay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reader's mapping stays valid, and sees new data written there."""
    monkeypatch.setattr("pytriton._protocol.lanes.arena.KEPT", 1 << 16)
    with closing(Arena("test")) as arena:
        arena.allocate(LARGE)
        held = pages(arena)
        with closing(MappedMemory(arena.open_readonly(), writer_trusted=False)) as reader:
            memory = reader.covering(LARGE)
            arena.reset()
            assert arena.large
            assert pages(arena) == held  # it may be needed again
            monkeypatch.setattr("pytriton._protocol.lanes.arena.KEPT_S", 0.0)
            arena.allocate(SMALL)
            arena.give_back()
            assert pages(arena) == held  # the reader may still use it
            arena.reset()
            assert pages(arena) == 1 << 16
            assert not arena.large
            offset = put(arena, b"x" * LARGE)
            assert memory[offset : offset + LARGE] == b"x" * LARGE
            assert reader.covering(LARGE) is memory
            assert pages(arena) == held


def test_memory_kept_across_a_reset_is_not_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytriton._protocol.lanes.arena.KEPT", 1 << 16)
    monkeypatch.setattr("pytriton._protocol.lanes.arena.KEPT_S", 0.0)
    with closing(Arena("test")) as arena:
        arena.allocate(1 << 17)
        offset = put(arena, b"x" * SMALL)
        arena.allocate(LARGE)
        arena.reset([(offset, offset + SMALL)])
        assert arena.large
        assert arena.writable()[offset : offset + SMALL] == b"x" * SMALL
        assert pages(arena) < LARGE
        arena.reset()
        assert pages(arena) == 1 << 16


@pytest.mark.parametrize("seal", [_SEAL_GROW, _SEAL_WRITE])
def test_a_reader_cannot_seal_the_owners_memory(arena: Arena, seal: int) -> None:
    """Its descriptor is read-only, but it can open another one through /proc."""
    put(arena, b"data")
    with (
        os.fdopen(arena.open_readonly(), "rb") as reader,
        open(f"/proc/self/fd/{reader.fileno()}", "r+b", buffering=0) as writable,
        pytest.raises(PermissionError),
    ):
        fcntl.fcntl(writable, _ADD_SEALS, seal)
    put(arena, b"late" * LARGE)
