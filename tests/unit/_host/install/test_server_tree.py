"""The Python version that a stub of the python backend is built for."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytriton._host.install.server_tree import _stub_version


@pytest.mark.parametrize(
    ("content", "version"),
    [
        (b"\0libpython3-0a1b2c3d.13.so.1.0\0", (3, 13)),
        (b"\0libpython3.9.so.1.0\0libpython3.so\0libpython3", (3, 9)),
        (b"libpython2.7.so.1.0", None),
        (b"", None),
    ],
)
def test_the_python_of_a_stub_is_that_of_its_libraries(
    tmp_path: Path, content: bytes, version: tuple[int, int] | None
) -> None:
    stub = tmp_path / "stub"
    stub.write_bytes(content)
    assert _stub_version(stub) == version
