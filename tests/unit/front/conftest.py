"""The front's pure libraries, compiled under sanitizers into one program that answers questions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.compiling import compile_program
from support.front.driver import Driver
from support.front.process import Built, build

from pytriton.dispatcher.install.proxy_compiler import FLAGS

_HERE = Path(__file__).parent
FRONT = _HERE.parents[2] / "proxy_backend" / "front"
_SANITIZED = (
    "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
)  # fmt: skip


#: What the driver needs of the front.
_SOURCES = (
    "base/*.c", "json/*.c", "http1/*.c", "http/infer_request.c", "http/tensor_data.c", "core/api.c", "net/limits.c",
)  # fmt: skip


def _compile(target: Path, sources: Sequence[Path] = (), flags: Sequence[str] = ()) -> Path:
    files = [*_HERE.glob("drive*.c"), *(file for part in _SOURCES for file in FRONT.glob(part))]
    own = [flag for flag in FLAGS if flag not in ("-shared", "-fvisibility=hidden")]
    own += [*_SANITIZED, f"-I{FRONT}", f"-I{_HERE}", *flags]
    return compile_program(target, own, [*sources, *files], ["-lm", "-ldl", "-lpthread"])


@pytest.fixture(scope="session")
def driver_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program."""
    return _compile(tmp_path_factory.mktemp("front") / "driver")


@pytest.fixture(scope="session")
def replay_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fuzzing target of inference requests, as a program that runs the files that it is given."""
    target = tmp_path_factory.mktemp("fuzz") / "run_infer"
    fuzz = _HERE.parents[1] / "fuzz_front" / "fuzz.c"
    return _compile(target, [fuzz], ["-DFUZZED", "-DREPLAY", "-DTARGET=run_infer"])


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The whole front, and a core that answers as models' names say."""
    return build(tmp_path_factory.mktemp("front_program"))


@pytest.fixture(scope="module")
def driver(driver_program: Path) -> Iterator[Driver]:
    """The program, running."""
    driver = Driver(driver_program)
    yield driver
    driver.end()
