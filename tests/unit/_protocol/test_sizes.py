"""Numbers of bytes as people write them."""

from __future__ import annotations

import pytest

from pytriton._protocol.sizes import parse_size


@pytest.mark.parametrize(
    ("raw", "count"),
    [
        (0, 0), (4096, 4096), ("4096", 4096), ("7b", 7), ("1k", 1000), ("1kB", 1000), ("1KiB", 1024),
        ("64MiB", 64 << 20), ("1.5GB", 1_500_000_000), (" 2 ti ", 2 << 40), ("0.5KiB", 512),
    ],
)  # fmt: skip
def test_a_size(raw: object, count: int) -> None:
    assert parse_size(raw) == count


@pytest.mark.parametrize("raw", [True, -1, "-1", "", "MiB", "1 PiB", "1e3", 1.5e30, None, "1,5GB"])
def test_no_size(raw: object) -> None:
    with pytest.raises(ValueError, match=r"^$"):
        parse_size(raw)
