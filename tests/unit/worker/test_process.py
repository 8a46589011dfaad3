"""A worker process from its first word to its exit code; the dispatcher is the test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.fake_dispatcher import FakeDispatcher

import pytriton
from pytriton._protocol import messages
from pytriton._protocol.lanes.stats_page import WorkerStatsPage
from pytriton.worker import boot
from pytriton.worker.process import EXIT_LOAD_FAILED, EXIT_OK
from pytriton.worker.startup import NEEDED

pytestmark = pytest.mark.programs

LIBRARY = str(Path(pytriton.__file__).parents[1])


@pytest.fixture
def dispatcher() -> Iterator[FakeDispatcher]:
    made = FakeDispatcher()
    yield made
    made.close()


def run(dispatcher: FakeDispatcher, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a worker to its end."""
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


def test_a_worker_that_is_not_needed_any_more_just_ends(dispatcher: FakeDispatcher) -> None:
    dispatcher.answers[messages.WorkerHello] = lambda _: [messages.Verdict("retry")]
    done = run(dispatcher)
    assert (done.returncode, done.stderr) == (EXIT_OK, "")
    (hello,) = dispatcher.heard
    assert isinstance(hello, messages.WorkerHello)
    assert hello.worker == "w7"


def test_a_load_failure_is_reported_with_its_traceback(dispatcher: FakeDispatcher) -> None:
    dispatcher.answers[messages.WorkerHello] = lambda _: [load()]  # and no callable with it
    done = run(dispatcher)
    assert done.returncode == EXIT_LOAD_FAILED
    failed = dispatcher.heard[-1]
    assert isinstance(failed, messages.WorkerFailed)
    assert failed.worker == "w7"
    assert "process.py" in failed.traceback
    assert failed.text in done.stderr


def test_an_incomplete_environment_is_reported_with_the_fix(
    dispatcher: FakeDispatcher,
) -> None:
    done = run(dispatcher, "-S")  # without site-packages
    assert done.returncode == 1
    needed = " ".join(NEEDED)
    assert f"Install into that environment: {sys.executable} -m pip install {needed}" in done.stderr
    assert dispatcher.heard == []
