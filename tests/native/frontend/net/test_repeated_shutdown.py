"""Shutdown of an event loop's connections, requested more than once (repeated_shutdown.c)."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.frontend.c_programs import built


def test_a_slow_loop_gets_each_shutdown_request_once(tmp_path: Path) -> None:
    rooms = ("net/*.c", "thread_pool/*.c", "base/*.c", "memory/*.c")
    program = built(Path(__file__).parent / "repeated_shutdown.c", rooms, tmp_path)
    done = subprocess.run([program], check=True, capture_output=True, text=True)
    assert done.stdout == "drained\n"
