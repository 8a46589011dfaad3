"""What is looked at in an environment is what was installed there, wherever a release is made."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from release import install_check, inventory

pytestmark = pytest.mark.programs


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: it has a package of its own, as a checkout has, and so has one on PYTHONPATH."""
    for name in ("here", "there"):
        (tmp_path / name / "strange.egg-info").mkdir(parents=True)
        text = f"Name: strange-{name}\nVersion: 1\n"
        (tmp_path / name / "strange.egg-info" / "PKG-INFO").write_text(text)
        (tmp_path / name / "pytriton").mkdir()
        (tmp_path / name / "pytriton" / "__init__.py").write_text("raise ImportError('not this')")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "there"))
    return tmp_path / "here"


def test_the_inventory_is_of_the_environment_alone(checkout: Path) -> None:
    names = [one.name for one in inventory.installed(Path(sys.executable))]
    assert "numpy" in names
    assert [one for one in names if one.startswith("strange")] == []


def test_the_client_that_is_tried_is_the_one_that_was_installed(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    # This environment has a client already: pip has nothing to do.
    python.write_text(f'#!/bin/sh\n[ "$1" = -m ] || exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    made = install_check.Environment(tmp_path / "environment", {})
    monkeypatch.setattr(install_check, "make_environment", lambda *_: made)
    assert "clients work" in install_check.try_client(tmp_path / "p.whl", tmp_path)
