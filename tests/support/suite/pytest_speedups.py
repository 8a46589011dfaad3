"""Do pytest's own work around each of thousands of tests only once, or only where it is needed.

- Log records are captured only for tests that use `caplog`. Other tests' records go to stderr, which is captured.
- The conftest.py files that apply to a test are looked up once for each test file.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import lru_cache
from typing import Any

import pytest

#: Options and settings that show all logs.
_ALL_LOGS = ("log_level", "log_cli_level", "log_file", "log_file_level", "log_cli")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start skipping work; no conftest.py is added from here on."""
    hooks_at = lru_cache(maxsize=None)(session.gethookproxy)
    session.gethookproxy = hooks_at  # type: ignore[method-assign,assignment]
    plugins = session.config.pluginmanager
    logs = plugins.get_plugin("logging-plugin")
    if logs is not None and not any(_wish(session.config, name) for name in _ALL_LOGS):
        plugins.unregister(logs)
        plugins.register(_CaptureLogsOnDemand(logs))


def _wish(config: pytest.Config, name: str) -> object:
    return config.getoption(name, None) or config.getini(name)


class _CaptureLogsOnDemand:
    """Runs pytest's log capture only for tests that use `caplog`."""

    def __init__(self, plugin: Any) -> None:
        self._plugin = plugin

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        if _asks(item):
            return (yield from self._plugin.pytest_runtest_setup(item))
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        if _asks(item):
            return (yield from self._plugin.pytest_runtest_call(item))
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        if _asks(item):
            return (yield from self._plugin.pytest_runtest_teardown(item))
        return (yield)

    def pytest_unconfigure(self) -> None:
        self._plugin.pytest_unconfigure()


def _asks(item: pytest.Item) -> bool:
    return "caplog" in getattr(item, "fixturenames", ())
