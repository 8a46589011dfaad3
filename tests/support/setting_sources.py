"""Settings files and environments for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytriton._host.settings.declarations import ConfigError
from pytriton._host.settings.sources import load

#: An environment in which no settings file is found except the one in /etc.
EMPTY_ENV = {"HOME": "/nonexistent"}


def write(folder: Path, text: str, name: str = "pytriton-daemon.toml") -> Path:
    """Write a settings file."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def error_of(cwd: Path, flags: Any = None, env: Any = None) -> str:
    """Return the error about invalid settings."""
    with pytest.raises(ConfigError) as caught:
        load(flags or {}, {**EMPTY_ENV, **(env or {})}, cwd)
    return str(caught.value)
