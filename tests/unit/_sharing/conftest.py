"""A separate folder for this process's shared values."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytriton._protocol.files.shared_entries import ENV_SHARED_DIR
from pytriton._sharing import segments


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Share with no other process, and keep nothing of earlier tests."""
    folder = tmp_path / "own"
    monkeypatch.setenv(ENV_SHARED_DIR, str(folder))
    monkeypatch.setattr(segments, "_segments", {})
    return folder
