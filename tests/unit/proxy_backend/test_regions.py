"""From an address to a file of shared memory: real files below /dev/shm, mapped as Triton does it."""

from __future__ import annotations

import ctypes
import mmap
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pytriton.proxy_backend.translate import Regions

PAGE = mmap.PAGESIZE


@pytest.fixture
def region() -> Iterator[Path]:
    """A file of three pages in which every 8 bytes say where they lie."""
    path = Path(f"/dev/shm/pytriton test {uuid.uuid4().hex}")
    path.write_bytes(numbered(3))
    yield path
    path.unlink(missing_ok=True)


def numbered(pages: int) -> bytes:
    return np.arange(pages * PAGE // 8).tobytes()


class Mapped:
    """Pages of a file, mapped for as long as this object lives."""

    def __init__(
        self, path: Path, pages: int, *, offset: int = 0, flags: int = mmap.MAP_SHARED
    ) -> None:
        fd = os.open(path, os.O_RDWR)
        try:
            self._mapping = mmap.mmap(fd, pages * PAGE, flags, offset=offset)
        finally:
            os.close(fd)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))


def assert_found(regions: Regions, address: int, nbytes: int, path: Path) -> None:
    """What lies in the file where it is said to lie is what lies at the address."""
    found = regions.find(address, nbytes)
    assert found is not None
    assert found.path == str(path)
    with open(found.path, "rb") as file:
        file.seek(address - found.start + found.offset)
        assert file.read(nbytes) == ctypes.string_at(address, nbytes)


def test_address_in_a_mapping(region: Path) -> None:
    mapped = Mapped(region, 3)
    regions = Regions()
    for offset, nbytes in [(0, 8), (0, 3 * PAGE), (PAGE + 16, 100), (3 * PAGE - 1, 1), (5, 0)]:
        assert_found(regions, mapped.address + offset, nbytes, region)


def test_mapping_that_begins_inside_of_the_file(region: Path) -> None:
    mapped = Mapped(region, 2, offset=PAGE)
    assert_found(Regions(), mapped.address + 24, 64, region)
    found = Regions().find(mapped.address, 1)
    assert found is not None
    assert found.offset == PAGE


def test_region_that_grew_is_found_at_its_old_and_new_address(region: Path) -> None:
    regions = Regions()
    old = Mapped(region, 3)
    assert_found(regions, old.address, 8, region)
    region.write_bytes(numbered(50))
    new = Mapped(region, 50)
    assert_found(regions, new.address + 40 * PAGE, 100, region)
    assert_found(regions, old.address + PAGE, 100, region)
    assert regions.paths() >= {str(region)}


def test_several_regions_are_distinguished(region: Path) -> None:
    other = region.with_name(region.name + "-2")
    other.write_bytes(numbered(1)[::-1])
    try:
        regions = Regions()
        first, second = Mapped(region, 3), Mapped(other, 1)
        for mapped, path in ((first, region), (second, other), (first, region)):
            assert_found(regions, mapped.address, 64, path)
        assert regions.paths() >= {str(region), str(other)}
    finally:
        other.unlink()


def test_memory_of_other_kinds_is_not_in_a_region(region: Path, tmp_path: Path) -> None:
    regions = Regions()
    heap = np.zeros(1000)
    assert regions.find(heap.ctypes.data, 8) is None
    assert regions.find(0, 1) is None
    file = tmp_path / "file"
    file.write_bytes(bytes(PAGE))
    elsewhere = Mapped(file, 1)
    assert regions.find(elsewhere.address, 8) is None
    private = Mapped(region, 1, flags=mmap.MAP_PRIVATE)
    assert regions.find(private.address, 8) is None  # written to, it is no longer the file's


def test_bytes_beyond_the_end_of_a_mapping(region: Path) -> None:
    mapped = Mapped(region, 3)
    regions = Regions()
    end = mapped.address + 3 * PAGE
    assert_found(regions, end - 4, 4, region)
    assert regions.find(end - 4, 1 << 40) is None
    assert regions.find(mapped.address, 1 << 40) is None


def test_deleted_file_is_ignored(region: Path) -> None:
    mapped = Mapped(region, 3)
    assert_found(Regions(), mapped.address, 8, region)
    assert str(region) in Regions().paths()
    region.unlink()
    assert Regions().find(mapped.address, 8) is None
    assert str(region) not in Regions().paths()
    region.write_bytes(numbered(3))  # another file of the same name is another file
    assert Regions().find(mapped.address, 8) is None
