"""Let a run survive tests that hang for good or kill their process.

pytest-timeout ends a test that waits in Python. For a test that hangs in C, or in a fixture's tear-down, the whole
process must be killed (`_Watchdog`). pytest-xdist then starts another process (`_Files`).
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import time
from collections.abc import Generator, Sequence
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

#: Extra time for fixtures after a test's timeout.
_MORE_S = 60.0
#: Tests that start within this time share a watching thread.
_TOGETHER_S = 1.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the setting."""
    parser.addini(
        "ends_after", f"seconds beyond its timeout that a test may take (default: {_MORE_S:.0f})"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Start watching."""
    config.pluginmanager.register(_Watchdog(config))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Files | None:
    """Distribute files to processes with our own scheduler."""
    return _Files(config, log) if config.getvalue("dist") == "loadfile" else None


class _Watchdog:
    """Kills the process, and shows its threads' stacks, when a test with its fixtures takes too long.

    A thread watches: one for each test with its own timeout, and one for all others that start within a second, because a
    thread for each of eight thousand tests that take a millisecond would be expensive.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._usual_s = float(config.getini("timeout") or 0)
        self._more_s = float(config.getini("ends_after") or _MORE_S)
        with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            self._output = os.dup(2)
        #: Tests that start before this time are already watched (monotonic).
        self._watched_until = -math.inf

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, Any, Any]:
        mark = item.get_closest_marker("timeout")
        if mark:
            self._watch(float(mark.args[0]))
        elif self._usual_s and time.monotonic() > self._watched_until:
            self._watch(self._usual_s + _TOGETHER_S)
            self._watched_until = time.monotonic() + _TOGETHER_S
        try:
            return (yield)
        finally:
            if mark or nextitem is None:
                self._stop_watching()

    def pytest_enter_pdb(self) -> None:
        """Stop the clock during a debugging session."""
        self._stop_watching()

    def pytest_unconfigure(self) -> None:
        os.close(self._output)

    def _watch(self, limit_s: float) -> None:
        self._stop_watching()
        if limit_s:
            faulthandler.dump_traceback_later(limit_s + self._more_s, exit=True, file=self._output)

    def _stop_watching(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        self._watched_until = -math.inf


class _Files(LoadFileScheduling):
    """pytest-xdist's scheduler by file, except for the tests of a process that died.

    pytest-xdist's scheduler reruns the test that killed a process, which would kill one process after another. It assigns
    finished files again, for which no process ever reports. And the whole run ends when it assigns tests to a process that
    is still collecting, or has just died.
    """

    def remove_node(self, node: WorkerController) -> str | None:
        """Return the test that killed a process, and redistribute its other tests."""
        left: dict[str, dict[str, bool]] = self.assigned_work.pop(node)
        undone = [
            (file, test) for file, tests in left.items() for test, done in tests.items() if not done
        ]
        if not undone:
            return None
        (file, died_of), *_ = undone
        left[file][died_of] = True
        for name, tests in left.items():
            if not all(tests.values()):
                self.workqueue[name] = tests
                self.workqueue.move_to_end(name, last=False)
        for other in self.assigned_work:
            self._reschedule(other)
        return died_of

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        """Record the tests that a process collected; a replacement process may collect later."""
        super().add_node_collection(node, collection)
        if node not in self.registered_collections:
            lacking = {*(self.collection or ())} - {*collection}
            if lacking:
                raise RuntimeError(
                    f"{node.gateway.id} has read other tests than those before it: it lacks {sorted(lacking)[:5]}. "
                    "A test's name must not depend on the time, nor on what other tests do"
                )
        self.registered_collections[node] = _Numbered(collection)

    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0
    ) -> None:
        """Record a finished test, and forget a finished file so that it is not scanned after each test."""
        super().mark_test_complete(node, item_index, duration)
        file = self._split_scope(self.registered_collections[node][item_index])
        if all(self.assigned_work[node][file].values()):
            del self.assigned_work[node][file]

    def _reschedule(self, node: WorkerController) -> None:
        if node in self.registered_collections:
            super()._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        # It may have died, which will be reported soon; then its tests are redistributed.
        with contextlib.suppress(OSError):
            super()._assign_work_unit(node)


class _Numbered(list[str]):
    """The collected tests of a process, with fast lookup of each test's number."""

    def __init__(self, tests: Sequence[str]) -> None:
        super().__init__(tests)
        self._numbers = {test: number for number, test in enumerate(tests)}

    def index(self, test: str, *_: Any) -> int:
        """Return a test's number."""
        return self._numbers[test]
