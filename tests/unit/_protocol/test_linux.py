"""System calls and files of the kernel."""

from __future__ import annotations

from pathlib import Path

from pytriton._protocol import linux


def test_a_process_s_name_may_contain_anything(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_bytes(b"7 (a) R 1 (b) S 5 6\n")
    assert linux.stat_fields(stat) == [b"", b"7", b"a) R 1 (b", b"S", b"5", b"6"]
