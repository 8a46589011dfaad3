"""How many processors a process may use, by its affinity and the quotas of its control groups of both versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytriton._protocol import linux

_V1 = "4:memory:/m\n3:cpuset:/\n2:cpu,cpuacct:/pod/box\n1:name=systemd:/\n0::/"
_V2 = "0::/pod/box"


@pytest.mark.parametrize(
    ("groups", "files", "cpus", "active"),
    [
        (_V2, {}, 8, 2),
        (_V2, {"pod/box/cpu.max": "max 100000", "pod/cpu.max": "max 100000"}, 8, 2),
        (_V2, {"pod/box/cpu.max": "250000 100000"}, 2.5, 0),
        (_V2, {"pod/box/cpu.max": "400000 100000", "pod/cpu.max": "50000 100000"}, 0.5, 0),
        (_V2, {"cpu.max": "900000 100000"}, 8, 2),
        (_V1, {}, 8, 2),
        (_V1, {"cpu/pod/box/cpu.cfs_quota_us": "-1", "cpu/pod/box/cpu.cfs_period_us": "100000"}, 8, 2),
        (_V1, {"cpu/pod/box/cpu.cfs_quota_us": "150000", "cpu/pod/box/cpu.cfs_period_us": "50000"}, 3, 0),
        # In a container, the root of the mount is its own group.
        (_V1, {"cpu/cpu.cfs_quota_us": "150000", "cpu/cpu.cfs_period_us": "100000"}, 1.5, 0),
        ("", {}, 8, 2),
    ],
)  # fmt: skip
def test_quotas_limit_the_processors(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    groups: str,
    files: dict[str, str],
    cpus: float,
    active: int,
) -> None:
    (tmp_path / "groups").write_text(groups)
    for name, text in files.items():
        path = tmp_path / "mounted" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    monkeypatch.setattr(linux, "_OWN_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(linux, "_CGROUPS", tmp_path / "mounted")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert (linux.usable_cpus(), linux.max_active_waits()) == (cpus, active)


@pytest.mark.parametrize(("cpus", "active"), [(1, 0), (2, 1), (3, 1), (64, 16)])
def test_a_quarter_of_the_processors_may_be_polling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpus: int, active: int
) -> None:
    monkeypatch.setattr(linux, "_CGROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cpus)))
    assert linux.max_active_waits() == active
