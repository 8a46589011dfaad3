"""The cache folder: what uses its entries, what is pruned, and what environments leave there."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import filelock
import pytest

from pytriton._cli.commands.install import cache_entries
from pytriton._host.install.cache import publish
from pytriton._host.install.cache_usage import CacheEntry, entries_of, prune
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._register import environments
from pytriton.exceptions import PyTritonBadParameterError

DAY_S = 86_400


def make(cache: Path, name: str, days: float = 0.0) -> Path:
    """Create a complete entry with a file of 10 KiB, last used this many days ago."""
    path = cache / name
    path.mkdir(parents=True)
    (path / "file").write_bytes(b"x" * 10_240)
    if path.parent.name == "environments":
        (path / ".complete").touch()
    last = time.time() - days * DAY_S
    os.utime(path, (last, last))
    return path


def states(entries: list[CacheEntry]) -> dict[str, str]:
    return {f"{entry.kind}/{entry.path.name}": entry.state for entry in entries}


@pytest.mark.programs
def test_entries_show_their_size_and_what_uses_them(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    make(cache, "environments/requirements-idle")
    kept = make(cache, "environments/requirements-kept")
    running = make(cache, "environments/requirements-running")
    make(cache, "environments/archive-failed").joinpath(".complete").unlink()
    make(cache, "native-proxy/1234")
    make(cache, "native-proxy/.5678.tmp-draft")
    made = make(cache, "native-frontend/.9abc.tmp-draft")
    make(cache, "of-somebody-else/thing")
    config = DaemonConfig(cache_dir=str(cache), state_dir=str(tmp_path / "state"))
    (tmp_path / "state" / "models").mkdir(parents=True)
    (tmp_path / "state" / "models" / "empty.registration").touch()
    (tmp_path / "state" / "models" / "m.previous").write_bytes(
        b"\0" + os.fsencode(kept) + b"/bin/python\0"
    )
    (running / "python").symlink_to(sys.executable)
    with (
        filelock.FileLock(made.with_name(".9abc.lock")),
        subprocess.Popen(
            [str(running / "python"), "-c", "input()"],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process,
    ):
        entries = cache_entries(config)
        process.kill()
    assert states(entries) == {
        "native-frontend/.9abc.tmp-draft": "being made",
        "native-proxy/.5678.tmp-draft": "incomplete",
        "native-proxy/1234": "unused",
        "environments/archive-failed": "incomplete",
        "environments/requirements-idle": "unused",
        "environments/requirements-kept": "registered",
        "environments/requirements-running": "running",
    }
    assert all(entry.size >= 10_240 for entry in entries)


def test_stale_and_failed_entries_are_removed(tmp_path: Path) -> None:
    make(tmp_path, "server/old", days=31)
    make(tmp_path, "server/new", days=29)
    make(tmp_path, "environments/requirements-old", days=31)
    make(tmp_path, "environments/requirements-failed").joinpath(".complete").unlink()
    kept = make(tmp_path, "environments/requirements-kept", days=31)
    (tmp_path / "m.registration").write_bytes(os.fsencode(kept))
    entries = entries_of(tmp_path, [tmp_path / "m.registration", tmp_path / "gone"])
    gone = list(prune(entries, unused_days=30))
    assert sorted(entry.path.name for entry in gone) == [
        "old",
        "requirements-failed",
        "requirements-old",
    ]
    left = [path.name for path in tmp_path.glob("*/*") if path.is_dir()]
    assert sorted(left) == ["new", "requirements-kept"]


def test_entries_in_use_are_not_pruned(tmp_path: Path) -> None:
    used = make(tmp_path, "server/used", days=31)
    locked = make(tmp_path, "native-proxy/locked", days=31)
    entries = entries_of(tmp_path, [])
    publish(used, lambda folder: None, Path.exists, lambda text: None)
    with filelock.FileLock(locked.with_name(".locked.lock")):
        assert list(prune(entries, unused_days=30)) == []
    assert used.exists()
    assert locked.exists()


def make_environment(folder: Path, make: Callable[[], None]) -> None:
    environments._create_once(folder, make)


def test_a_failed_environment_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "environments" / "requirements-1"

    def fail() -> None:
        (folder / "lib").mkdir(parents=True)
        raise PyTritonBadParameterError("no such package")

    with pytest.raises(PyTritonBadParameterError, match="no such package"):
        make_environment(folder, fail)
    assert not folder.exists()


def test_an_environment_is_created_once_and_its_use_is_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "environments" / "requirements-1"
    made = []

    def make_it() -> None:
        folder.mkdir()
        made.append(folder)

    make_environment(folder, make_it)
    os.utime(folder, (1.0, 1.0))
    make_environment(folder, make_it)
    assert made == [folder]
    (entry,) = entries_of(tmp_path, [])
    assert entry.used_at > time.time() - DAY_S
