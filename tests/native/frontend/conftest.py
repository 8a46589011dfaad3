"""The frontend's pure libraries, compiled with sanitizers into one program that answers questions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.frontend.c_programs import ADDRESSES, THREADS, built_of
from support.frontend.calls import Run, program
from support.frontend.driver import Driver
from support.frontend.echo import EchoServer, Start
from support.frontend.echo import build as build_echo
from support.frontend.process import Built, build

_HERE = Path(__file__).parent
FRONT = _HERE.parents[2] / "proxy_backend" / "frontend"

#: What the driver needs of the frontend.
_SOURCES = (
    "memory/*.c", "base/*.c", "json/*.c", "http1/*.c", "http/infer_request.c", "http/route_table.c", "http/tensor_data.c",
    "core/api.c", "net/limits.c",
)  # fmt: skip


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark all tests here: they run programs that have to be compiled first."""
    item.add_marker("programs")


def _compile(target: Path, sources: Sequence[Path] = (), flags: Sequence[str] = ()) -> Path:
    files = [*_HERE.glob("drive*.c"), *(file for part in _SOURCES for file in FRONT.glob(part))]
    return built_of([*sources, *files], target, *flags)


@pytest.fixture(scope="session")
def driver_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled program."""
    return _compile(tmp_path_factory.mktemp("frontend") / "driver")


@pytest.fixture(scope="session")
def replay_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fuzz target of inference requests, as a program that replays files."""
    target = tmp_path_factory.mktemp("fuzz") / "run_infer"
    fuzz = _HERE.parents[1] / "fuzz" / "frontend" / "fuzz.c"
    return _compile(target, [fuzz], ["-DFUZZED", "-DREPLAY", "-DTARGET=run_infer"])


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The whole frontend, and a core that behaves as its models' names say."""
    return build(tmp_path_factory.mktemp("frontend"))


@pytest.fixture(scope="module")
def driver(driver_program: Path) -> Iterator[Driver]:
    """The running program."""
    driver = Driver(driver_program)
    yield driver
    driver.end()


@pytest.fixture(scope="session")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A program that makes the calls described by its arguments."""
    return program("calls", tmp_path_factory.mktemp("calls"), ADDRESSES)


@pytest.fixture(scope="session", params=[ADDRESSES, THREADS], ids=["address", "thread"])
def echo_program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The echo server."""
    return build_echo(tmp_path_factory.mktemp("frontend") / "net_echo", request.param)


@pytest.fixture
def start(echo_program: Path) -> Iterator[Start]:
    """Return a function that starts servers; those that a test has not ended are killed."""
    with ExitStack() as stack:

        def make(*arguments: str, **options: object) -> EchoServer:
            server = EchoServer(echo_program, *arguments, **options)  # type: ignore[arg-type]
            stack.callback(server.kill)
            return server

        yield make
