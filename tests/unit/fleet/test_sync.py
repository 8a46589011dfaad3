"""Which registrations are synchronized, as tables: nodes with their registrations in, steps out."""

from __future__ import annotations

import pytest

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.fleet.sync import Copy, Step, SyncPlan, SyncRemoval, plan_sync

A, B, C = "a", "b", "c"


@pytest.mark.parametrize(
    ("kept", "source", "steps", "conflicts"),
    [
        ({}, None, [], {}),
        ({A: {"m": "1"}, B: {"m": "1"}}, None, [], {}),
        ({A: {"m": "1"}, B: {}}, None, [Copy(B, "m", A)], {}),
        (
            {A: {"m": "1"}, B: {"n": "2"}},
            None,
            [Copy(B, "m", A), Copy(A, "n", B)],
            {},
        ),
        ({A: {"m": "1"}, B: {"m": "2"}, C: {}}, None, [], {"m": [A, B]}),
        ({A: {"m": "1"}, B: {"m": "2"}, C: {}}, B, [Copy(A, "m", B, True), Copy(C, "m", B)], {}),
        ({A: {"m": "1", "n": "1"}, B: {"m": "1"}}, B, [SyncRemoval(A, "n")], {}),
        ({A: {"m": "1"}, B: {}}, B, [SyncRemoval(A, "m")], {}),
    ],
)
def test_plans(
    kept: dict[str, dict[str, str]],
    source: str | None,
    steps: list[Step],
    conflicts: dict[str, list[str]],
) -> None:
    assert plan_sync(kept, source) == SyncPlan(steps, conflicts)


def test_an_unknown_source() -> None:
    with pytest.raises(
        PyTritonBadParameterError, match="'x' is not one of the nodes that answered: a"
    ):
        plan_sync({A: {}}, "x")
