"""The compiled proxy with a minimal tritonserver (fake_tritonserver/), under sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.compile_cache import compile_program
from support.frontend.c_programs import common_sources, include_flags, sanitized_flags

from pytriton._host.install.compiled_proxy import source_root

#: The proxy's own names are not to meet those of the fake tritonserver.
_PROXY = [*sanitized_flags(), "-fvisibility=hidden"]
#: Milliseconds between looks at answers that are not taken.
_LOOK = "-DWATCHDOG_INTERVAL_MS=1500"
#: Milliseconds until the descriptor that was announced is missed.
_ANNOUNCED = "-DDESCRIPTOR_TIMEOUT_MS=2000"
#: What an arena keeps, and the milliseconds after which it gives back what is more: small, for small batches.
_KEPT = ("-DRETAINED_BYTES=(1<<17)", "-DRETAIN_MS=4000")
_LIBRARIES = ("-shared", "-Wl,-z,nodelete", "-lm", "-ldl", "-Wl,-z,lazy")
#: What the fake tritonserver does not have of Triton's API, the batches of these tests do not need.
_LINK = ("-rdynamic", "-Wl,--allow-shlib-undefined", "-Wl,-z,lazy")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark all tests here: they run programs that have to be compiled first."""
    item.add_marker("programs")
    # Compiling with sanitizers has been seen to take 75 s on a core that others use, too; then come many runs.
    item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def ask_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that sends the dispatcher one control request, with sanitizers."""
    return _built("control_request", ["control/*.c", "wire/*.c", "base/*.c"], tmp_path_factory)


@pytest.fixture(scope="session")
def codec_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that decodes and encodes messages, with sanitizers."""
    return _built("codec", ["wire/*.c", "base/*.c"], tmp_path_factory)


@pytest.fixture(scope="session")
def spin_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that waits actively for messages, with sanitizers."""
    return _built("spin", ["lane/spin.c"], tmp_path_factory)


@pytest.fixture(scope="session")
def flow_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that acts as both sides of a stream's flow control, with sanitizers."""
    return _built("flow", ["calls/flow.c"], tmp_path_factory)


@pytest.fixture(scope="session")
def slots_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that manages memory for outputs of calls, with sanitizers."""
    parts = ["lane/slots.c", "lane/call_connection.c", "lane/memory.c", "wire/*.c"]
    return _built("slots", [*parts, "base/*.c"], tmp_path_factory, "-DRETAIN_MS=4000")


def _built(
    name: str, parts: list[str], tmp_path_factory: pytest.TempPathFactory, *flags: str
) -> Path:
    """Build a program of these tests with some files of the proxy, given as patterns."""
    folder, target = source_root() / "backend", tmp_path_factory.mktemp(name) / name
    files = [
        Path(__file__).with_name(f"{name}.c"),
        *[file for part in parts for file in folder.glob(part)],
        *common_sources(),
    ]
    return compile_program(
        target, [*_PROXY, *flags, *include_flags("backend")], files, ["-lpthread"]
    )


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake tritonserver with the proxy in it, with sanitizers."""
    folder, build = source_root() / "backend", tmp_path_factory.mktemp("native")
    library, target = build / "libproxy.so", build / "fake_tritonserver"
    include = include_flags("backend")
    mains = sorted(Path(__file__).with_name("fake_tritonserver").glob("*.c"))
    flags = [*_PROXY, _LOOK, _ANNOUNCED, *_KEPT, *include]
    compile_program(library, flags, [*sorted(folder.rglob("*.c")), *common_sources()], _LIBRARIES)
    return compile_program(target, [*sanitized_flags(), *include], mains, [library, *_LINK])
