"""What both frontends share: their environment, and shared memory left by a tritonserver that exited."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.triton.fake_frontend_place import PREFIX, fake_place

from pytriton._protocol import linux
from pytriton._protocol.lanes.lane import ACTIVE_WAITS_VARIABLE
from pytriton.dispatcher.server import frontend


def test_proxies_learn_how_many_of_them_may_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linux, "max_active_waits", lambda: 3)
    monkeypatch.setenv(ACTIVE_WAITS_VARIABLE, "64")
    assert frontend.environment(fake_place(tmp_path, []))[ACTIVE_WAITS_VARIABLE] == "3"


def test_an_undeletable_region_does_not_prevent_removing_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may create files in /dev/shm: stopping at one would prevent every restart of tritonserver."""
    shm = tmp_path / "shm"
    for number in range(3):
        (shm / f"{PREFIX}{number}-folder").mkdir(parents=True)
        (shm / f"{PREFIX}{number}").touch()
    (shm / "another's").touch()
    monkeypatch.setattr(frontend, "SHM", shm)
    fake_place(tmp_path, []).sweep_shared_memory()
    assert sorted(path.name for path in shm.iterdir() if path.is_file()) == ["another's"]


def test_the_next_daemon_removes_the_regions_of_a_killed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd kills the cleanup helper together with a killed daemon."""
    shm, own, another = tmp_path / "shm", tmp_path / "own", tmp_path / "another"
    shm.mkdir()
    own.touch()
    another.touch()
    monkeypatch.setattr(frontend, "SHM", shm)
    remaining = {frontend.claim_shm_prefix(another.stat()), "pytriton-1-ab-x", "own"}
    killed = frontend.claim_shm_prefix(own.stat())
    for name in {killed, f"{killed}1-x", *remaining}:
        (shm / name).touch()
    prefix = frontend.claim_shm_prefix(own.stat())
    assert {path.name for path in shm.iterdir()} == remaining
    assert prefix != killed
