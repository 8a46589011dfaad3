"""Shared memory regions that another process truncates while they are read (bus_guard.c)."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.frontend.c_programs import built


def test_mappings_between_regions_are_kept(tmp_path: Path) -> None:
    program = built(Path(__file__).parent / "bus_guard.c", (), tmp_path)
    done = subprocess.run([program], check=True, capture_output=True, text=True)
    assert done.stdout == "0 0 b a 1\n"
