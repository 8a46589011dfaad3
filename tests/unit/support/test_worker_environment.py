"""All tests have the same surroundings, so that workers of a daemon are forks of one process (tests/conftest.py)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

NAME = "PYTEST_CURRENT_TEST"
ROOT = Path(__file__).parents[3]


@pytest.fixture
def name() -> str:
    """What a worker would have that a fixture starts."""
    return os.environ[NAME]


def test_workers_do_not_see_which_test_runs(name: str) -> None:
    """With the test's name in it, each test's workers would need a fork server of their own."""
    assert name == os.environ[NAME] == "a test"


def test_callables_of_tests_travel_by_value() -> None:
    """Workers that could import a test's module would import pytest with it."""
    assert ROOT not in [Path(path).resolve() for path in sys.path]
