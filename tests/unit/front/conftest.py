"""The front's pure libraries, compiled under sanitizers into one program that answers questions."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.front_driver import Driver

from pytriton.dispatcher.install.proxy_compiler import FLAGS, compiler

_HERE = Path(__file__).parent
FRONT = _HERE.parents[2] / "proxy_backend" / "front"
_SANITIZED = (
    "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
)  # fmt: skip


@pytest.fixture(scope="session")
def driver_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program."""
    command = compiler()
    assert command is not None, "these tests need a C compiler"
    target = tmp_path_factory.mktemp("front") / "driver"
    files = [
        *_HERE.glob("drive*.c"),
        *(file for room in ("base", "json", "http1") for file in (FRONT / room).glob("*.c")),
    ]
    flags = [flag for flag in FLAGS if flag not in ("-shared", "-fvisibility=hidden")]
    libraries = ("-lm", "-ldl", "-lpthread")
    subprocess.run(
        [command, *flags, *_SANITIZED, f"-I{FRONT}", "-o", target, *map(str, files), *libraries],
        check=True,
    )
    return target


@pytest.fixture(scope="module")
def driver(driver_program: Path) -> Iterator[Driver]:
    """The program, running."""
    driver = Driver(driver_program)
    yield driver
    driver.end()
