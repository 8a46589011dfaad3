"""A worker process from its first message to its exit code; the test plays the dispatcher."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.fake_dispatcher import FakeDispatcher
from support.real_daemon import eventually

import pytriton
from pytriton._protocol import messages
from pytriton._protocol.exit_codes import WORKER_LOAD_FAILED
from pytriton._protocol.lanes.stats_page import WorkerStatsPage
from pytriton._protocol.payload import Header, pack
from pytriton.worker import boot, process
from pytriton.worker.process import EXIT_OK, explain_missing
from pytriton.worker.startup import NEEDED

pytestmark = pytest.mark.programs

LIBRARY = str(Path(pytriton.__file__).parents[1])


def run(dispatcher: FakeDispatcher, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a worker to its exit."""
    stats, descriptor = WorkerStatsPage.create()
    arguments = [
        LIBRARY, dispatcher.rundir.control_endpoint, "w7", str(os.getpid()), str(descriptor),
    ]  # fmt: skip
    try:
        return subprocess.run(
            [sys.executable, *options, boot.__file__, *arguments],
            pass_fds=[descriptor], capture_output=True, text=True, check=False, timeout=100,
        )  # fmt: skip
    finally:
        os.close(descriptor)
        stats.close()


def load(name: str = "m") -> messages.LoadModel:
    world = messages.WorkerEnvironment(sys.executable)
    return messages.LoadModel(messages.ModelSpec(name, 1, {}, world), 0, "/nonexistent/w.sock")


def test_an_unneeded_worker_exits_silently(dispatcher: FakeDispatcher) -> None:
    dispatcher.answers[messages.WorkerHello] = lambda _: [messages.Verdict("retry")]
    done = run(dispatcher)
    assert (done.returncode, done.stderr) == (EXIT_OK, "")
    (hello,) = dispatcher.heard
    assert isinstance(hello, messages.WorkerHello)
    assert hello.worker == "w7"


def test_a_load_failure_is_reported_with_its_traceback(dispatcher: FakeDispatcher) -> None:
    dispatcher.answers[messages.WorkerHello] = lambda _: [load()]  # and no callable with it
    done = run(dispatcher)
    assert done.returncode == WORKER_LOAD_FAILED
    eventually(lambda: len(dispatcher.heard) == 2, "its failure is reported")
    failed = dispatcher.heard[-1]
    assert isinstance(failed, messages.WorkerFailed)
    assert failed.worker == "w7"
    assert "process.py" in failed.traceback
    assert failed.text in done.stderr


#: Receives SIGTERM when the worker looks for `is_ready` again, which it does right after reporting that it is ready.
_STOPPED_AT_ONCE = """
import signal

class TritonPythonModel:
    looked = 0

    def __getattr__(self, name):
        if name == "is_ready":
            self.looked += 1
            if self.looked == 2:
                signal.raise_signal(signal.SIGTERM)
        raise AttributeError(name)

    def execute(self, requests):
        return []

    def finalize(self):
        print("finalized")
"""


def test_a_worker_that_is_stopped_as_soon_as_it_is_ready_cleans_up(
    dispatcher: FakeDispatcher, tmp_path: Path
) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").write_text(_STOPPED_AT_ONCE)
    model = messages.PythonModel(
        '{"name": "m"}', str(tmp_path), names=["m_0_0"], kinds=["CPU"], device_ids=["0"]
    )
    spec = messages.ModelSpec(
        "m", 1, {}, messages.WorkerEnvironment(sys.executable), python_model=model
    )
    loads = messages.LoadModel(spec, 0, str(dispatcher.rundir.path / "w7.sock"))
    dispatcher.sent_payloads = [pack(Header((3, 9), by_reference=True), b"")]
    dispatcher.answers[messages.WorkerHello] = lambda _: [loads]
    done = run(dispatcher)
    assert (done.returncode, done.stdout) == (EXIT_OK, "finalized\n"), done.stderr
    eventually(
        lambda: any(isinstance(one, messages.WorkerReady) for one in dispatcher.heard),
        "it was ready",
    )


def test_an_incomplete_environment_is_reported_with_the_fix(
    dispatcher: FakeDispatcher,
) -> None:
    done = run(dispatcher, "-S")  # without site-packages
    assert done.returncode == 1
    needed = " ".join(NEEDED)
    assert f"Install into that environment: {sys.executable} -m pip install {needed}" in done.stderr
    assert dispatcher.heard == []


# ── Freed memory is kept for the next batch: counted in page faults ──

BATCHES = 50
#: Pages of one array of 602 KB, of which a batch frees several.
PAGES = 147
_PROGRAM = f"""
import resource
import numpy as np
from pytriton.worker.process import keep_freed_memory

def batch():
    x = source.copy()
    y = x * 2
    z = y + 1
    w = z.astype(np.float64)

def faults():
    for _ in range(20):
        batch()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range({BATCHES}):
        batch()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

source = np.ones(150_528, np.float32)
print(faults(), keep_freed_memory(), faults())
"""

MIB = 1 << 20


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other C libraries have heaps of their own"
)
def test_batches_reuse_their_memory() -> None:
    clean = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=clean, stdout=subprocess.PIPE, text=True, check=True
    )
    before, is_kept, after = done.stdout.split()
    assert int(before) > PAGES * BATCHES  # what it is good for
    assert is_kept == "True"
    assert int(after) < PAGES


class Library:
    """A C library that records calls, and accepts or refuses them."""

    def __init__(self, *does: int) -> None:
        self.reported: list[tuple[int, int]] = []
        self._does = list(does)

    def mallopt(self, which: int, size: int) -> int:
        self.reported.append((which, size))
        return self._does.pop(0)


@pytest.mark.parametrize(
    ("does", "is_kept", "reported"),
    [
        ([1, 1], True, [(-3, 32 * MIB), (-1, 64 * MIB)]),
        ([1, 0], False, [(-3, 32 * MIB), (-1, 64 * MIB)]),
        ([0], False, [(-3, 32 * MIB)]),  # with only the other option, all arrays are mapped again
        (None, False, []),  # musl
    ],
)
def test_a_c_library_that_refuses_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
    does: list[int] | None,
    is_kept: bool,
    reported: list[tuple[int, int]],
) -> None:
    library: Any = SimpleNamespace(reported=[]) if does is None else Library(*does)
    for name in list(os.environ):
        if "MALLOC" in name or "TUNABLES" in name:
            monkeypatch.delenv(name)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    assert process.keep_freed_memory() is is_kept
    assert library.reported == reported


@pytest.mark.parametrize(
    ("name", "value", "is_asked"),
    [
        ("MALLOC_TOP_PAD_", "1", False),
        ("MALLOC_MMAP_THRESHOLD_", "131072", False),
        ("MALLOC_TRIM_THRESHOLD_", "131072", False),
        ("MALLOC_TRIM_THRESHOLD_", "", True),  # glibc ignores it, too
        ("MALLOC_ARENA_MAX", "2", True),
        ("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX2:glibc.malloc.top_pad=1", False),
        ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=131072", False),
        ("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX2", True),
    ],
)
def test_only_options_about_freed_memory_count(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, is_asked: bool
) -> None:
    library = Library(1, 1)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    monkeypatch.setenv(name, value)
    assert process.keep_freed_memory() is is_asked
    assert bool(library.reported) is is_asked


# ── What is said of a variable that stayed where the model was registered ──


@pytest.fixture
def environment() -> Iterator[None]:
    before = os.environ.__class__
    yield
    os.environ.__class__ = before


@pytest.mark.usefixtures("environment")
def test_the_error_explains_a_missing_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    explain_missing(["STAYED_KEY"])
    with pytest.raises(KeyError) as caught:
        os.environ["STAYED_KEY"]
    assert "was not forwarded" in str(caught.value)
    assert "register(..., env=['STAYED_KEY'])" in str(caught.value)
    assert caught.value.args[0] == "STAYED_KEY"
    with pytest.raises(KeyError) as other:
        os.environ["NEVER_THERE"]
    assert str(other.value) == "'NEVER_THERE'"
    monkeypatch.setenv("STAYED_KEY", "x")
    assert os.environ["STAYED_KEY"] == "x"
    assert os.environ.get("NEVER_THERE") is None
