"""The pytest-xdist side of a process that runs tests: a fork of the reader (see preload.py)."""

from __future__ import annotations

import importlib
import marshal
from typing import Any

import pytest
from xdist.remote import WorkerInteractor


class Interactor(WorkerInteractor):
    """Reports results, and receives the next tests to run.

    pytest-xdist sends six messages for each test, which cost the controller three milliseconds. For a passing test, this
    sends one message at its end: the list of what pytest-xdist would send. Failures are reported immediately. `marshal`
    packs the message, because execnet's pure Python serialization takes a quarter of a millisecond.
    """

    def __init__(self, config: pytest.Config, channel: Any) -> None:
        super().__init__(config, channel)
        options = config.option
        self._held: list[tuple[str, dict[str, Any]]] = []
        self._reports_begins = options.verbose > 0
        #: Passing phases matter if all durations or outputs are shown.
        self._reports_all = bool(options.durations is not None or options.xmlpath) or not {
            *"pPA"
        }.isdisjoint(options.reportchars)
        #: Whether a phase of this test has not passed.
        self._is_reported = False

    def pytest_internalerror(self, excrepr: object) -> None:
        """Report an internal error of pytest or a plugin; the original hook expects a program of its own."""
        self.sendevent("internal_error", formatted_error=str(excrepr))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Report a phase of a test; the set-up and tear-down of a passing test are skipped."""
        if report.when == "setup":
            self._is_reported = self._reports_all
        self._is_reported |= not report.passed
        if self._is_reported or report.when == "call":
            super().pytest_runtest_logreport(report)

    def sendevent(self, name: str, **kwargs: Any) -> None:
        """Send an event, or hold it until the test is over."""
        if name == "logstart" and not self._reports_begins:
            return  # it is not shown
        passed = name == "testreport" and kwargs["data"]["outcome"] == "passed"
        self._held.append((name, kwargs))
        if not passed and name != "logfinish":
            reported, self._held = self._held, []
            self.channel.send(marshal.dumps(reported))


if __name__ == "__channelexec__":  # pytest-xdist runs this source in its processes
    importlib.import_module("support.suite.preload_server").run(channel)  # type: ignore[name-defined] # noqa: F821
