"""Flow control of streams: what is unread, and when the sender has to wait, with both sides in one program (flow.c)."""

from __future__ import annotations

import subprocess
from pathlib import Path


def test_a_flow_is_full_until_half_of_it_has_been_read(flow_program: Path) -> None:
    said = subprocess.run([flow_program], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert said.splitlines() == [
        "nothing: open",
        "one large: open",
        "another: full",
        "large one read: open, rung",
        "16 MiB: full",
        "9 MiB left: full",
        "7 MiB left: open, rung",
        "many small ones: full",
        "widened: open, rung",
        "as much again: full",
        "another waits: full",
        "ended, to the first: open",
        "ended, to the other: open, rung",
        "not found",
    ]
