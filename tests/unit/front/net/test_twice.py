"""The end of a loop's connections, asked for more than once (twice.c)."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.front.building import built


def test_a_loop_that_is_slow_to_look_is_given_nothing_twice(tmp_path: Path) -> None:
    rooms = ("net/*.c", "background/*.c", "base/*.c", "memory/*.c")
    program = built(Path(__file__).parent / "twice.c", rooms, tmp_path)
    done = subprocess.run([program], check=True, capture_output=True, text=True)
    assert done.stdout == "drained\n"
