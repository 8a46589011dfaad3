"""The list of what differs with another core names tests that there are, and is used when it should be."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.suite import other_core

from pytriton._host.install.server_runtime import SERVER_VARIABLE
from pytriton._host.install.wheel import PINNED

_ROOT = Path(__file__).parents[3]
_ALL = (*other_core.DIFFERENCES, *other_core._EXECUTABLE)


@pytest.mark.parametrize("tests", sorted({one.tests for one in _ALL}))
def test_each_pattern_has_a_test(tests: str) -> None:
    path = tests.partition("::")[0]
    names = re.findall(r"^(?:async )?def (test_\w+)", (_ROOT / path).read_text(), re.MULTILINE)
    assert [one for one in names if fnmatch(f"{path}::{one}", tests)]


def _server(folder: Path, version: str | None, *, whole: bool) -> Path:
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "libtritonserver.so").touch()
    if whole:
        (folder / "bin").mkdir()
        (folder / "bin" / "tritonserver").touch(0o755)
    if version is not None:
        (folder / "TRITON_VERSION").write_text(version)
    return folder


def _marks(tree: Any, nodeid: str) -> list[str]:
    marks: list[Any] = []
    item: Any = SimpleNamespace(nodeid=nodeid, add_marker=marks.append)
    other_core.mark([item], tree)
    return [one.name for one in marks]


@pytest.mark.parametrize(
    ("version", "whole", "is_other"),
    [("2.70.0", True, True), (None, False, True), (PINNED.triton_version, True, False)],
)
def test_only_another_version_is_treated_as_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str | None,
    *,
    whole: bool,
    is_other: bool,
) -> None:
    monkeypatch.setenv(SERVER_VARIABLE, str(_server(tmp_path / "s", version, whole=whole)))
    tree = other_core.other_tree()
    assert (tree is not None) is is_other
    if tree is None:
        return
    compared = "tests/integration/frontend/test_http_parity.py::test_any[1]"
    assert _marks(tree, compared) == (["xfail"] if whole else ["skip", "xfail"])
    assert _marks(tree, "tests/integration/data/test_lanes.py::test_any") == []
    monkeypatch.delenv(SERVER_VARIABLE)
    assert other_core.other_tree() is None
