"""How much memory a process may use, by the limits of its control groups of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytriton._protocol import linux

_V1 = "4:memory:/pod/box\n2:cpu,cpuacct:/c\n1:name=systemd:/\n0::/unified"
_V2 = "0::/pod/box"
_NONE_V1 = str((1 << 63) - 4096)
_MIB = 1 << 20


def _v1(limit: int | str, used: int, cached: int) -> dict[str, str]:
    return {
        "memory.limit_in_bytes": f"{limit}",
        "memory.usage_in_bytes": f"{used}",
        # Without "total_", only of this group and not of those below it.
        "memory.stat": f"inactive_file 1\ntotal_inactive_file {cached}",
    }


def _v2(limit: int | str, used: int, cached: int) -> dict[str, str]:
    return {
        "memory.max": f"{limit}",
        "memory.current": f"{used}",
        "memory.stat": f"anon 1\ninactive_file {cached}",
    }


@pytest.mark.parametrize(
    ("own", "groups", "total", "available"),
    [
        (_V2, {}, None, None),
        (_V2, {"pod/box": _v2("max", 5, 0), "pod": _v2("max", 5, 0)}, None, None),
        (_V2, {"pod/box": _v2(_MIB, 1000, 100)}, _MIB, _MIB - 900),
        (_V2, {"pod/box": _v2(_MIB, 0, 0), "pod": _v2(2 * _MIB, 2 * _MIB + 1, 0)}, _MIB, 0),
        (_V1, {}, None, None),
        (_V1, {"memory/pod/box": _v1(_NONE_V1, 5, 0), "memory": _v1(_NONE_V1, 5, 0)}, None, None),
        (_V1, {"memory/pod/box": _v1(_MIB, 1000, 100)}, _MIB, _MIB - 900),
        (_V1, {"memory/pod/box": _v1(2 * _MIB, 0, 0), "memory/pod": _v1(_MIB, 10, 0)}, _MIB, _MIB - 10),
        # In a container, the root of the mount is its own group.
        (_V1, {"memory": _v1(_MIB, 1000, 0)}, _MIB, _MIB - 1000),
    ],
)  # fmt: skip
def test_control_groups_limit_the_memory(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    own: str,
    groups: dict[str, dict[str, str]],
    total: int | None,
    available: int | None,
) -> None:
    (tmp_path / "groups").write_text(own)
    for group, files in groups.items():
        folder = tmp_path / "mounted" / group
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(f"{text}\n")
    monkeypatch.setattr(linux, "_OWN_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(linux, "_CGROUPS", tmp_path / "mounted")
    if total is None:
        assert linux.total_memory() > 16 * _MIB
        assert linux.available_memory() > 16 * _MIB
    else:
        assert (linux.total_memory(), linux.available_memory()) == (total, available)
