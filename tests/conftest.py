"""Fixtures shared by all tests: a tritonserver in the cache, and running daemons."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support import plain_tracebacks, variables  # noqa: F401 (before those that import structlog)
from support.daemon_pool import DaemonPool
from support.examples import examples
from support.real_daemon import RunningDaemon

from pytriton._host.settings.declarations import ENV_OWNER

pytest_plugins = [
    "support.suite.worker_recovery",
    "support.suite.other_core",
    "support.suite.preload",
    "support.suite.pytest_speedups",
    "support.suite.cpu_times",
    "support.suite.rerun",
]

# The tests are nine thousand objects that stay: the collector would look at them again and again while they are read.
gc.disable()

#: How long an example takes, or its data to be made up, says nothing: two cores are shared by several tests.
settings.register_profile(
    "no deadline",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=examples(100),
    print_blob=True,  # a failure by a random example ends with the line that repeats it
)
settings.load_profile("no deadline")


# `python -m pytest` has the checkout on sys.path, and so would workers: with a callable of a test's module they would
# import that module, pytest and all else that it needs. Without, it travels by value, as that of a user's script.
sys.path[:] = [path for path in sys.path if Path(path).resolve() != Path(__file__).parents[1]]

# A shell that starts the tests in the background has them ignore SIGINT, and `perf record` has them block SIGWINCH. What
# they start would do so, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
signal.pthread_sigmask(signal.SIG_SETMASK, [])


def pytest_collection_finish() -> None:
    """From now on there is rubbish, and resources that tests have forgotten to close are to be found."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Daemons that tests start end with this process, however it ends; those of scripts and shells, too."""
    os.environ[ENV_OWNER] = str(os.getpid())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first: at the end, when few files are left, no process works alone for a minute."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path not in slow, "integration" not in item.path.parts))


#: pytest tells its children in this variable which test runs, and whether it is its setup.
_WHICH = "PYTEST_CURRENT_TEST"
_NONE = "a test"


def _name_no_test() -> None:
    """Have all tests the same variables.

    Workers have those of their registrant, and a daemon has one fork server for all workers with the same variables:
    with pytest's own, each test that registers a model has another one started, which imports numpy and all else anew.
    """
    if os.environ.get(_WHICH, _NONE) != _NONE:  # pytest itself removes it in the end
        os.environ[_WHICH] = _NONE


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup() -> None:
    """Before a fixture registers models."""
    _name_no_test()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call() -> None:
    """Before a test does."""
    _name_no_test()


@pytest.fixture
def usual_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test starts has the threads that numpy has where nobody sets anything: one for each core."""
    for name in variables.THREADS:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def daemon_pool() -> Iterator[DaemonPool]:
    """Daemons that this process keeps, and lends to those who leave nothing behind."""
    with contextlib.closing(DaemonPool()) as kept:
        yield kept


@pytest.fixture(scope="module")
def daemon(daemon_pool: DaemonPool) -> Iterator[RunningDaemon]:
    """A real daemon with a real tritonserver, shared by the tests of one module, and lent to other modules after it.

    Its events, its figures and the numbers of its workers have not begun with this module. Its proxy is the one that
    it would find by itself: said, so that those who ask for that one share it.
    """
    with daemon_pool.lend(proxy="native") as running:
        yield running


@pytest.fixture
def fresh_daemon() -> Iterator[RunningDaemon]:
    """A real daemon for one test."""
    with RunningDaemon.start() as running:
        yield running
