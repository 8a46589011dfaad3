"""Check that an environment is inspected without the packages of the checkout."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from release import attachments, install_check
from release.builder import Built

pytestmark = pytest.mark.programs


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder and a folder on PYTHONPATH contain packages, as a checkout does."""
    for name in ("here", "there"):
        (tmp_path / name / "strange.egg-info").mkdir(parents=True)
        text = f"Name: strange-{name}\nVersion: 1\n"
        (tmp_path / name / "strange.egg-info" / "PKG-INFO").write_text(text)
        (tmp_path / name / "pytriton").mkdir()
        (tmp_path / name / "pytriton" / "__init__.py").write_text("raise ImportError('not this')")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "there"))
    return tmp_path / "here"


def test_the_sbom_lists_only_the_environment(checkout: Path) -> None:
    pytest.importorskip("cyclonedx_py")
    (checkout / "p.tar.gz").write_text("")
    built = Built(checkout / "p.tar.gz", ())
    text = attachments.sbom(Path(sys.executable), built, Path(__file__).parents[4], 1)
    assert '"name": "numpy"' in text
    assert '"name": "strange' not in text


def test_the_installed_client_is_checked(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    # This environment already has a client, so pip has nothing to do.
    python.write_text(f'#!/bin/sh\n[ "$1" = -m ] || exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    made = install_check.Environment(tmp_path / "environment", {})
    monkeypatch.setattr(install_check, "make_environment", lambda *_: made)
    assert "clients work" in install_check.check_client(tmp_path / "p.whl", tmp_path)
