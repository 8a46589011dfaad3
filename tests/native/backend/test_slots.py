"""Memory for the outputs of calls in the compiled proxy: the peak of many concurrent calls is released (slots.c)."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path


def test_memory_of_many_calls_is_released_after_a_delay(slots_program: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="pt-", dir="/tmp") as folder:
        command: list[str | Path] = [slots_program, folder]
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert said.splitlines() == [
        "in use: 0",
        "at once: 96, large",
        "after a while: 64",
        "in use: 56",
        "another: 64",
        "forgotten: 4",
    ]
