"""Settings files and environments of tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytriton._host.settings.declarations import ConfigError
from pytriton._host.settings.sources import load

#: An environment in which no settings file of this machine is found, but /etc's.
EMPTY_ENV = {"HOME": "/nonexistent"}


def write(folder: Path, text: str, name: str = "pytriton-daemon.toml") -> Path:
    """Write a settings file."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def error_of(cwd: Path, flags: Any = None, env: Any = None) -> str:
    """Return what is said of settings that are wrong."""
    with pytest.raises(ConfigError) as caught:
        load(flags or {}, {**EMPTY_ENV, **(env or {})}, cwd)
    return str(caught.value)
