"""A daemon's reaction to the deletion of its runtime directory, and to another daemon's new one of the same name."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import select
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytriton._protocol import linux
from pytriton._protocol.files.rundir import RuntimeDir
from pytriton.dispatcher.runtime import runtime_dir_guard
from pytriton.dispatcher.runtime.runtime_dir_guard import RuntimeDirGuard


class Scene:
    """A held directory, and the notifications of its holder."""

    def __init__(self, path: Path) -> None:
        self.rundir = RuntimeDir(path)
        self.locks: list[int] = []
        self.held = RuntimeDirGuard(self.rundir, self.make())
        self.reported: list[str] = []
        self.was_reported = asyncio.Event()

    def make(self, pid: str = "4242", *, locked: bool = True) -> int:
        """Create the directory as a daemon does."""
        self.rundir.create()
        lock = os.open(self.rundir.lock_file, os.O_CREAT | os.O_RDWR, 0o600)
        self.locks.append(lock)
        os.write(lock, pid.encode())
        if locked:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return lock

    def delete(self) -> None:
        shutil.rmtree(self.rundir.path)

    def hear(self, why: str) -> None:
        self.reported.append(why)
        self.was_reported.set()

    async def heard(self) -> str:
        await asyncio.wait_for(self.was_reported.wait(), 100)
        self.was_reported.clear()
        return self.reported[-1]


@pytest.fixture
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("d") / "run"


@pytest.fixture
def scenes(path: Path) -> Iterator[list[Scene]]:
    made: list[Scene] = []
    yield made
    for lock in made[0].locks:
        os.close(lock)


async def test_the_guard_recognizes_its_own_directory(path: Path, scenes: list[Scene]) -> None:
    scenes.append(scene := Scene(path))
    assert scene.held.exists
    assert scene.held.holder is None
    scene.delete()
    assert not scene.held.exists
    assert scene.held.holder is None
    scene.make(locked=False)  # say, by a daemon that did not start
    assert not scene.held.exists
    assert scene.held.holder is None
    scene.delete()
    scene.make("77")
    assert not scene.held.exists
    assert scene.held.holder == 77


async def test_deletion_and_the_new_owner_are_each_reported_once(
    path: Path, scenes: list[Scene]
) -> None:
    scenes.append(scene := Scene(path))
    watch = scene.held.watch(scene.hear, lambda why: scene.hear(f"taken: {why}"), every_s=0.001)
    watching = asyncio.ensure_future(watch)
    scene.delete()
    assert await scene.heard() == (
        f"its runtime directory {path} was deleted: commands cannot find the daemon, and it cannot start workers or "
        "tritonserver"
    )
    scene.make("77")
    assert await scene.heard() == (
        f"taken: its runtime directory {path} was deleted, and pid 77 has created another one"
    )
    await asyncio.wait_for(watching, 100)
    assert len(scene.reported) == 2


@pytest.mark.parametrize("how", ["deleted", "renamed", "parent renamed", "lock deleted"])
async def test_the_kernel_reports_that_the_directory_is_gone(
    path: Path, scenes: list[Scene], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It does so before the first poll."""
    monkeypatch.setattr(runtime_dir_guard, "_NOTIFIED_POLL_INTERVAL_S", 1e6)
    scenes.append(scene := Scene(path))
    watching = asyncio.ensure_future(scene.held.watch(scene.hear, scene.hear, every_s=1e6))
    await asyncio.sleep(0)
    if how == "deleted":
        scene.delete()
    elif how == "renamed":
        path.rename(path.with_name("other"))
    elif how == "parent renamed":
        path.parent.rename(path.parent.with_name(f"{path.parent.name}-other"))
    else:
        scene.rundir.lock_file.unlink()
    assert "was deleted: commands cannot find the daemon" in await scene.heard()
    watching.cancel()


async def test_the_directory_is_polled_if_the_kernel_cannot_notify(
    path: Path, scenes: list[Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(paths: object) -> int:
        raise OSError(errno.EMFILE, "the limit of inotify instances is reached")

    monkeypatch.setattr("pytriton._protocol.linux.watch_for_removal", refuse)
    scenes.append(scene := Scene(path))
    watching = asyncio.ensure_future(scene.held.watch(scene.hear, scene.hear, every_s=0.001))
    await asyncio.sleep(0)
    scene.delete()
    assert "was deleted: commands cannot find the daemon" in await scene.heard()
    watching.cancel()


def test_changed_permissions_in_a_watched_folder_are_not_reported(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    descriptor = linux.watch_for_removal([folder, tmp_path])
    try:
        (tmp_path / "other").touch()
        (tmp_path / "other").chmod(0o600)
        folder.chmod(0o700)
        assert select.select([descriptor], [], [], 0)[0] == []
        folder.rmdir()
        assert select.select([descriptor], [], [], 5)[0] == [descriptor]
    finally:
        os.close(descriptor)
