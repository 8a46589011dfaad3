"""scripts/tools/attack-frontend with a few attacks of each kind: some seconds of hostile clients."""

from __future__ import annotations

import pytest
from attacks import __main__ as program

_FEW = {"connections": 30, "streams": 120, "calls": 300}
#: Like others, and each takes half a second.
_LEFT_OUT = {
    "pings",
    "settings",
    "continuations",
    "silent-clients",
    "slow-chunks",
    "large-json",
    "unread-streams",
    "unfinished-messages",
}
#: Slow clients are ended as soon as they may be.
_SOON = {"header_s": 0.5, "body_s": 0.5, "unsent_s": 0.5}


def test_hostile_clients_do_no_harm(capsys: pytest.CaptureFixture[str]) -> None:
    rows = program.attack(
        [name for name in program.ATTACKS if name not in _LEFT_OUT], _FEW, **_SOON
    )
    assert {row.name: row.problems for row in rows if row.problems} == {}
    assert all(sum(row.tally.seen.values()) for row in rows)
    assert capsys.readouterr().out.count("\n| ") == len(rows)
