"""Run the tests, then rerun those that failed, each in its own process.

A virtual machine may stall for seconds. A test that also fails alone is a failure; one that passes then is reported as
unreliable. The rerun starts when nothing of the first run is left, and each test gets its own process. The exit code is
0 if all tests ran and none failed twice.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import pytest

_PR_SET_CHILD_SUBREAPER = 36
#: Names the file to which a run writes failed tests, one per line, and finally that all tests ran.
_ENV_FAILED = "PYTRITON_TESTS_FAILED"
_ALL_HAVE_RUN = "(all have run)"
#: More failures than this are not caused by a busy machine.
_MAX_RERUNS = 40
#: After this many failed twice, the others are not rerun.
_ENOUGH = 5
#: Leftover processes of a run are killed after this time.
_LEFT_S = 20.0


# ── in the process that hears of all tests ───────────────────────────────────────────────────────────


def pytest_configure(config: pytest.Config) -> None:
    """Start recording failures."""
    path = os.environ.pop(_ENV_FAILED, None)  # not for pytest runs that tests start
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Failed(Path(path)))


class _Failed:
    """Records each failed test immediately: the run may be killed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._over: set[str] = set()
        self._unread = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a test whose body, fixtures or process failed."""
        if report.failed:
            self._write(report.nodeid)
        if report.when not in ("setup", "call", "teardown"):  # the process died
            self._over.add(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Record that a test is over."""
        self._over.add(nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a file that cannot be imported, whose tests cannot run."""
        if report.failed:
            self._unread = True
            self._write(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Record whether any test was left out."""
        if len(self._over) == session.testscollected and not self._unread:
            self._write(_ALL_HAVE_RUN)

    def _write(self, line: str) -> None:
        with self._path.open("a") as file:
            file.write(f"{line}\n")


# ── the process that starts them ─────────────────────────────────────────────────────────────────────


def main(arguments: Sequence[str]) -> int:
    """Run pytest with arguments, and rerun what failed."""
    # Orphans of the tests become children of this process, and can be found.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.NamedTemporaryFile("r") as failed:
        code = _run(arguments, {**os.environ, _ENV_FAILED: failed.name})
        tests = list(dict.fromkeys(failed.read().splitlines()))
    if code == 0:
        return 0
    if code != pytest.ExitCode.TESTS_FAILED or _ALL_HAVE_RUN not in tests:
        tests = [one for one in tests if one != _ALL_HAVE_RUN]
        _say("not all tests have run; these failed, if any:", *tests)
        return code
    tests.remove(_ALL_HAVE_RUN)
    if len(tests) > _MAX_RERUNS:
        _say(f"{len(tests)} tests failed (above): too many to run them again")
        return code
    return _run_again(tests)


def _run_again(tests: Sequence[str]) -> int:
    _say(f"{len(tests)} failed (above); each runs again, alone, in a process of its own")
    once: list[str] = []
    twice: list[str] = []
    for number, test in enumerate(tests, 1):
        begun = time.monotonic()
        code = _run(["-n0", "-q", "--no-header", "-rN", test], os.environ)
        (twice if code else once).append(test)
        outcome = "FAILED AGAIN" if code else "passed now"
        _say(f"{number} of {len(tests)}: {test}: {outcome}, in {time.monotonic() - begun:.0f} s")
        if len(twice) == _ENOUGH:
            break
    untried = tests[len(once) + len(twice) :]
    if once:
        _say("UNRELIABLE: they failed among others and passed alone. Mend them:", *once)
    if twice:
        _say("FAILED twice:", *twice)
    if untried:
        _say(f"failed, and not run again after {_ENOUGH} that failed twice:", *untried)
    return 1 if twice else 0


def _run(arguments: Sequence[str], env: Mapping[str, str]) -> int:
    """Run pytest until nothing is left of it; return the exit code."""
    command = [sys.executable, "-m", "pytest", *arguments]
    pid = os.posix_spawn(sys.executable, command, env)
    with _forward_signals(pid):
        code = None
        while code is None:
            ended, status = os.wait()  # or an orphan
            if ended == pid:
                code = os.waitstatus_to_exitcode(status)
    _kill_leftovers()
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def _forward_signals(pid: int) -> Iterator[None]:
    """Forward signals to a process; a terminal sends Ctrl-C to both."""
    former = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda number, _: os.kill(pid, number)),
        signal.SIGINT: signal.signal(signal.SIGINT, lambda number, _: None),
    }
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _kill_leftovers() -> None:
    """Wait for processes that the tests left behind, and kill those that stay."""
    deadline = time.monotonic() + _LEFT_S
    while left := psutil.Process().children(recursive=True):
        if time.monotonic() > deadline:
            names = []
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    names.append(f"{process.pid} {' '.join(process.cmdline())}"[:200])
                    process.kill()
            _say("the tests have left these behind, which are ended now:", *names)
        psutil.wait_procs(left, timeout=1.0)


def _say(text: str, *lines: str) -> None:
    print("\n  ".join([f"[test] {text}", *lines]), flush=True)
