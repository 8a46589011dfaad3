"""Only the daemon's user can access its files and shared memory, while a model loads and after it has served."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.inotify import IN_ATTRIB, IN_CREATE, Watch
from support.models.inference import PROTOCOLS, Array, infer_once
from support.models.tensors import X, Y
from support.real_daemon import RunningDaemon, eventually

from pytriton.decorators import batch

OTHERS = stat.S_IRWXG | stat.S_IRWXO


@pytest.fixture(scope="module", autouse=True)
def _open_umask() -> Iterator[None]:
    """Give the daemon the umask of a user who shares everything by default."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture(scope="module")
def open_daemon(_open_umask: None) -> Iterator[RunningDaemon]:
    """A daemon whose proxies use named shared memory."""
    with RunningDaemon.start(proxy="python") as running:
        yield running


@pytest.fixture
def fresh_daemon(open_daemon: RunningDaemon) -> Iterator[RunningDaemon]:
    """The same daemon without a model."""
    yield open_daemon
    open_daemon.client.unregister("model")


def _mode(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def _regions(daemon: RunningDaemon) -> list[Path]:
    return [Path("/dev/shm", name) for name in daemon.regions()]


def _check_modes(daemon: RunningDaemon) -> None:
    rundir = Path(daemon.config.runtime_dir)
    for folder in (rundir, rundir / "l", rundir / "logs", rundir / "models", rundir / "lib"):
        assert _mode(folder) == 0o700, folder
    for file in (rundir / "access_token", rundir / "control.sock", *(rundir / "logs").iterdir()):
        assert _mode(file) == 0o600, file
    for region in _regions(daemon):
        assert not _mode(region) & OTHERS, region


def _slow_factory(folder: Path) -> Any:
    """Return a factory that waits until the test lets it continue."""

    def factory() -> Any:
        (folder / "loading").touch()
        while not (folder / "go").exists():
            threading.Event().wait(0.05)

        @batch
        def infer(x: Array) -> dict[str, Array]:
            print("asked for", x[0, :3].tolist())
            return {"y": x * 2}

        return infer

    return factory


class _Watcher:
    """Checks the modes of the daemon's regions whenever the kernel reports a new region or a changed mode."""

    def __init__(self, daemon: RunningDaemon) -> None:
        self._daemon = daemon
        self._ended, self._end = os.pipe()
        self.seen: set[int] = set()

    def run(self) -> None:
        with Watch(Path("/dev/shm"), IN_CREATE | IN_ATTRIB) as watch:
            while True:
                for region in _regions(self._daemon):
                    with contextlib.suppress(FileNotFoundError):  # gone since
                        self.seen.add(_mode(region))
                ready, _, _ = select.select([watch.descriptor, self._ended], [], [])
                if self._ended in ready:
                    break
                watch.take()
        os.close(self._ended)

    def stop(self) -> None:
        os.close(self._end)


def test_files_and_shared_memory_are_private_at_all_times(
    fresh_daemon: RunningDaemon, tmp_path: Path
) -> None:
    watcher = _Watcher(fresh_daemon)
    with ThreadPoolExecutor(2) as threads:
        watching = threads.submit(watcher.run)
        registering = threads.submit(
            fresh_daemon.client.register,
            _slow_factory(tmp_path), "model", X, Y, factory=True, instances=2, progress=False,
        )  # fmt: skip
        try:
            eventually((tmp_path / "loading").exists, "a worker loads")
            _check_modes(fresh_daemon)
            (tmp_path / "go").touch()
            registering.result(timeout=100)
            for protocol in PROTOCOLS:
                megabytes = np.ones((1, 1 << 22), np.float32)  # the region grows
                assert (
                    infer_once(fresh_daemon, "model", {"x": megabytes}, protocol)["y"].sum()
                    == 2 << 22
                )
        finally:
            (tmp_path / "go").touch()
            watcher.stop()
        watching.result()
    _check_modes(fresh_daemon)
    assert len(_regions(fresh_daemon)) == 2
    assert watcher.seen == {0o600}


_ATTEMPTS = """
import os, socket, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
for path in sys.argv[1:]:
    try:
        if path.endswith(".sock"):
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).connect(path)
        elif os.path.isdir(path):
            os.listdir(path)
        else:
            os.open(path, os.O_RDONLY)
    except PermissionError:
        continue
    except OSError as error:
        print(path, error)
    else:
        print(path, "was opened")
print("done")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_can_open_nothing(fresh_daemon: RunningDaemon, tmp_path: Path) -> None:
    """A process of an unprivileged user tries every file, socket and region."""
    (tmp_path / "go").touch()
    fresh_daemon.client.register(
        _slow_factory(tmp_path), "model", X, Y, factory=True, progress=False
    )
    rundir = Path(fresh_daemon.config.runtime_dir)
    everything = [rundir, *rundir.rglob("*"), *_regions(fresh_daemon)]
    assert len(everything) > 15
    done = subprocess.run(
        [sys.executable, "-c", _ATTEMPTS, *map(str, everything)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("done\n", "")
