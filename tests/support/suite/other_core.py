"""Run the suite against another version of Triton's core.

$PYTRITON_DAEMON_TRITONSERVER names a tritonserver, or a folder with its lib/. Tests that hold only for the pinned
version are then expected to fail (`-rxX` lists them, and those that pass nevertheless). Tests that compare with NVIDIA's
executable, or need Triton's python backend, are skipped if the folder has none. Any other failing test shows a
difference that nobody has decided on: fix it, or add it here with a reason.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pytriton._host.install.server_runtime import NEEDS_PYTHON_BACKEND, SERVER_VARIABLE
from pytriton._host.install.server_tree import ServerTree, read_tree
from pytriton._host.install.wheel import PINNED


class Expected(NamedTuple):
    """Tests that hold only for the pinned core, or that need some part of a tritonserver, with the reason."""

    tests: str  #: a pattern of node ids
    why: str


_COMPARED = "NVIDIA's frontend answers otherwise in later versions, and it is compared with"
#: Of cores from 25.12 on, as far as is known (docs/concepts/architecture.md, "What we saw").
DIFFERENCES = (
    Expected("tests/integration/frontend/test_http_parity.py::*", _COMPARED),
    Expected("tests/integration/frontend/test_grpc_parity.py::*", _COMPARED),
    Expected("tests/integration/frontend/test_http_parity_generated.py::*", _COMPARED),
    Expected("tests/integration/frontend/test_tracing.py::*", _COMPARED),
    Expected(
        "tests/integration/python_models/test_model_config.py::test_a_sequence_id_too_large_for_its_control_input*",
        "the core refuses correlation ids of another type than the control's input itself, in other words",
    ),
    Expected(
        "tests/integration/daemon/test_service.py::test_a_reload_applies_live_settings_and_names_the_others*",
        "the variable is one of the daemon's settings, which this test counts",
    ),
    Expected(
        "tests/integration/daemon/test_advisories.py::*",
        "the faults that are published are those of older versions",
    ),
)
_EXECUTABLE = (
    Expected(
        "tests/integration/frontend/test_http_parity.py::*", "compares with NVIDIA's executable"
    ),
    Expected(
        "tests/integration/frontend/test_grpc_parity.py::*", "compares with NVIDIA's executable"
    ),
    Expected(
        "tests/integration/frontend/test_http_parity_generated.py::*",
        "compares with NVIDIA's executable",
    ),
    Expected("tests/integration/frontend/test_tracing.py::*", "compares with NVIDIA's executable"),
    Expected("tests/integration/frontend/test_daemon.py::*nvidia*", "NVIDIA's executable serves"),
    Expected("tests/integration/daemon/test_advisories.py::*", "NVIDIA's executable serves"),
)


def other_tree() -> ServerTree | None:
    """Return the tritonserver named by the environment if it is not of the pinned version."""
    named = os.environ.get(SERVER_VARIABLE)
    tree = read_tree(Path(named)) if named else None
    if not isinstance(tree, ServerTree) or tree.version == PINNED.triton_version:
        return None
    return tree


def pytest_report_header() -> str | None:
    """Name a tritonserver that is not the pinned one."""
    tree = other_tree()
    if tree is None:
        return None
    return f"tritonserver: {tree.root}, version {tree.version or 'unknown'}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests whose outcome differs."""
    tree = other_tree()
    if tree is not None:
        mark(items, tree)


def mark(items: list[pytest.Item], tree: ServerTree) -> None:
    """Mark tests that this tritonserver cannot run, or that are expected to fail with it."""
    for item in items:
        if tree.binary is None:
            for why in _reasons(item, _EXECUTABLE):
                item.add_marker(pytest.mark.skip(reason=f"{tree.root} has no executable: {why}"))
        for why in _reasons(item, DIFFERENCES):
            item.add_marker(pytest.mark.xfail(reason=why, strict=False))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Skip tests that failed for lack of the Python backend."""
    report = yield
    tree = other_tree() if report.failed else None
    if tree is not None and tree.lacks_python and NEEDS_PYTHON_BACKEND in report.longreprtext:
        path, line, _ = item.location
        report.outcome = "skipped"
        report.longrepr = (path, line or 0, f"Skipped: {tree.root} has no Python backend")
    return report


def _reasons(item: pytest.Item, expected: tuple[Expected, ...]) -> list[str]:
    return [one.why for one in expected if fnmatch(item.nodeid, one.tests)]
