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


#: What the driver needs of the front.
_SOURCES = (
    "base/*.c", "json/*.c", "http1/*.c", "http/infer_request.c", "http/tensor_data.c", "core/api.c", "net/limits.c",
)  # fmt: skip


def _compile(target: Path, *more: Path | str) -> Path:
    command = compiler()
    assert command is not None, "these tests need a C compiler"
    files = [*_HERE.glob("drive*.c"), *(file for part in _SOURCES for file in FRONT.glob(part))]
    flags = [flag for flag in FLAGS if flag not in ("-shared", "-fvisibility=hidden")]
    argv = [command, *flags, *_SANITIZED, f"-I{FRONT}", f"-I{_HERE}", "-o", target, *more, *files]
    subprocess.run([*map(str, argv), "-lm", "-ldl", "-lpthread"], check=True)
    return target


@pytest.fixture(scope="session")
def driver_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program."""
    return _compile(tmp_path_factory.mktemp("front") / "driver")


@pytest.fixture(scope="session")
def replay_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fuzzing target of inference requests, as a program that runs the files that it is given."""
    target = tmp_path_factory.mktemp("fuzz") / "run_infer"
    fuzz = _HERE.parents[1] / "fuzz_front" / "fuzz.c"
    return _compile(target, "-DFUZZED", "-DREPLAY", "-DTARGET=run_infer", fuzz)


@pytest.fixture(scope="module")
def driver(driver_program: Path) -> Iterator[Driver]:
    """The program, running."""
    driver = Driver(driver_program)
    yield driver
    driver.end()
