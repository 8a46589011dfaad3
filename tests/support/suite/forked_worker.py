"""The side of pytest-xdist in a process that runs tests: a fork of the reader (preload.py says for what)."""

from __future__ import annotations

import importlib
import marshal
from typing import Any

import pytest
from xdist.remote import WorkerInteractor


class Interactor(WorkerInteractor):
    """Tells how tests end, and takes what to run next.

    pytest-xdist sends six messages for each test, which take the distributing process three milliseconds. Here there
    is one for a test that passes, when it is over: a list of what pytest-xdist sends. What fails is told at once. It is
    packed by `marshal`: execnet has a quarter of a millisecond of work with it, in Python.
    """

    def __init__(self, config: pytest.Config, channel: Any) -> None:
        super().__init__(config, channel)
        options = config.option
        self._held: list[tuple[str, dict[str, Any]]] = []
        self._reports_begins = options.verbose > 0
        #: What passes is looked at when all durations or outputs are shown.
        self._reports_all = bool(options.durations is not None or options.xmlpath) or not {
            *"pPA"
        }.isdisjoint(options.reportchars)
        #: True when something of this test has not passed.
        self._is_reported = False

    def pytest_internalerror(self, excrepr: object) -> None:
        """Tell of a fault of pytest's or a plugin's; the original one expects to be a program of its own."""
        self.sendevent("internal_error", formatted_error=str(excrepr))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Tell of a part of a test; what comes before and after one that passes is of no use."""
        if report.when == "setup":
            self._is_reported = self._reports_all
        self._is_reported |= not report.passed
        if self._is_reported or report.when == "call":
            super().pytest_runtest_logreport(report)

    def sendevent(self, name: str, **kwargs: Any) -> None:
        """Send what is told, or hold it until the test is over."""
        if name == "logstart" and not self._reports_begins:
            return  # nobody shows it
        passed = name == "testreport" and kwargs["data"]["outcome"] == "passed"
        self._held.append((name, kwargs))
        if not passed and name != "logfinish":
            reported, self._held = self._held, []
            self.channel.send(marshal.dumps(reported))


if __name__ == "__channelexec__":  # this source is what pytest-xdist has its processes run
    importlib.import_module("support.suite.preload_server").run(channel)  # type: ignore[name-defined] # noqa: F821
