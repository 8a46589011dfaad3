"""The list of differences of another core names existing tests."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest
from support.suite import other_core

_ROOT = Path(__file__).parents[3]
_ALL = (*other_core.DIFFERENCES, *other_core._EXECUTABLE)


@pytest.mark.parametrize("tests", sorted({one.tests for one in _ALL}))
def test_each_pattern_has_a_test(tests: str) -> None:
    path = tests.partition("::")[0]
    names = re.findall(r"^(?:async )?def (test_\w+)", (_ROOT / path).read_text(), re.MULTILINE)
    assert [one for one in names if fnmatch(f"{path}::{one}", tests)]
