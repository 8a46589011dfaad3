"""Print the costliest test files (`--times=30`) by CPU time of their process and its children."""

from __future__ import annotations

import os
import resource
from collections.abc import Generator
from time import monotonic  # a test may have replaced that of the module
from typing import Any

import pytest

#: Seconds: wall-clock time, CPU time of the test process, and CPU time of its ended descendants.
_Times = tuple[float, float, float]
_READING = "(reading the tests)"
#: The tear-down after a process's last test: only then are the daemons of the pool waited for, with all their CPU time.
_ENDING = "(ending shared daemons)"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--times", type=int, metavar="N", help="show the N dearest files of tests")


def pytest_configure(config: pytest.Config) -> None:
    """Start counting."""
    if config.getoption("--times"):
        config.pluginmanager.register(_Counter(config.getoption("--times")))


class _Counter:
    """Adds up the time of each file's tests; the first test includes shared set-up."""

    def __init__(self, shown: int) -> None:
        self._shown = shown
        self._spent: dict[str, _Times] = {}
        self._read_by = 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        before = _now()
        try:
            return (yield)
        finally:
            self._add(item.nodeid.partition("::")[0], before)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, Any, Any]:
        before = _now()
        try:
            return (yield)
        finally:
            if nextitem is None:
                clock, own, below = _since(before)
                self._sum(_ENDING, (clock, own, below))
                self._sum(item.nodeid.partition("::")[0], (-clock, -own, -below))

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, Any, Any]:
        before = _now()
        try:
            return (yield)
        finally:
            self._add(_READING, before)
            self._read_by = os.getpid()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add what a process of pytest-xdist counted."""
        for path, times in getattr(node, "workeroutput", {}).get("times", {}).items():
            self._sum(path, times)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Send the counts to the parent process, if there is one."""
        config = session.config
        if hasattr(config, "workeroutput") and hasattr(config, "workerinput"):
            if self._read_by != os.getpid() and config.workerinput["workerid"] != "gw0":
                del self._spent[_READING]  # one of the forks reports it
            config.workeroutput["times"] = self._spent

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table."""
        dearest = sorted(self._spent.items(), key=lambda one: -sum(one[1][1:]))
        total = [sum(column) for column in zip(*self._spent.values())]
        terminalreporter.section(f"the dearest of {len(dearest)} files, in seconds")
        terminalreporter.line("  CPU  of it children  clock  file")
        for path, (clock, own, below) in [("(all)", total), *dearest[: self._shown]]:
            terminalreporter.line(f"{own + below:5.1f}  {below:14.1f}  {clock:5.1f}  {path}")

    def _add(self, path: str, before: _Times) -> None:
        self._sum(path, _since(before))

    def _sum(self, path: str, times: _Times) -> None:
        clock, own, below = self._spent.get(path, (0.0, 0.0, 0.0))
        self._spent[path] = (clock + times[0], own + times[1], below + times[2])


def _now() -> _Times:
    mine, below = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return monotonic(), mine.ru_utime + mine.ru_stime, below.ru_utime + below.ru_stime


def _since(before: _Times) -> _Times:
    clock, own, below = _now()
    return clock - before[0], own - before[1], below - before[2]
