"""Builds an sdist and wheels of this checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Top-level folder -> the package it is installed as. In pytriton/ each has a symlink of its name.
PROCESSES = {name: f"pytriton.{name}" for name in ("dispatcher", "proxy_backend", "worker")}
#: What a build needs of the checkout.
SOURCES = (
    "pyproject.toml",
    "setup.py",
    "README.md",
    "LICENSE",
    "THIRD_PARTY.md",
    "pytriton",
    *PROCESSES,
)


def copy_sources(to: Path, symlinks: bool) -> None:
    """Copy what a build reads, so that it leaves nothing in the checkout."""
    skip = {"__pycache__"} if symlinks else {"__pycache__", *PROCESSES}
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(
                source, to / name, symlinks=True, ignore=lambda _, names: skip & set(names)
            )
        elif source.exists():
            shutil.copy(source, to / name)


def build(source: Path, out: Path, *kinds: str) -> None:
    """Build an sdist and a wheel, or only `kinds`, such as `--wheel`."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), *kinds]
    done = subprocess.run(
        [*command, str(source)], check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert done.returncode == 0, done.stdout.decode()
