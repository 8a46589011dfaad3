"""Which registrations are synchronized, as tables: nodes with their registrations in, steps out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from fakes.fake_clients import model_spec

from pytriton._protocol import messages
from pytriton._protocol.messages.model_spec import registration_digest
from pytriton.daemon_client import DaemonClient
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.fleet.sync import Copy, Step, SyncPlan, SyncRemoval, carry_out, plan_sync

A, B, C = "a", "b", "c"


@pytest.mark.parametrize(
    ("kept", "source", "steps", "conflicts"),
    [
        ({}, None, [], {}),
        ({A: {"m": "1"}, B: {"m": "1"}}, None, [], {}),
        ({A: {"m": "1"}, B: {}}, None, [Copy(B, "m", A)], {}),
        ({A: {"m": "1"}, B: {"n": "2"}}, None, [Copy(B, "m", A), Copy(A, "n", B)], {}),
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


class _Node:
    """A daemon with registrations, which takes copies of others."""

    def __init__(self, *kept: messages.KeptRegistration) -> None:
        self.kept = kept
        self.taken: list[messages.ModelSpec] = []

    def registrations(self, *_: object, **__: object) -> Sequence[messages.KeptRegistration]:
        return self.kept

    def register_prepared(self, message: messages.Register, *_: object) -> None:
        self.taken.append(message.spec)


@pytest.mark.parametrize(
    ("autoscale", "devices"), [(None, ["0"]), (messages.Autoscale(1, 2), ["0", "1"])]
)
def test_a_model_that_was_scaled_down_is_copied_without_the_devices_that_it_does_not_use(
    autoscale: messages.Autoscale | None, devices: list[str]
) -> None:
    spec = model_spec(instances=1, devices=["0", "1"], autoscale=autoscale)
    digest = registration_digest(spec, [b""])
    nodes: dict[str, Any] = {A: _Node(messages.KeptRegistration(spec, digest, [b""])), B: _Node()}
    carry_out(SyncPlan([Copy(B, "m", A)], {}), cast("dict[str, DaemonClient]", nodes), None)
    assert nodes[B].taken == [model_spec(instances=1, devices=devices, autoscale=autoscale)]
