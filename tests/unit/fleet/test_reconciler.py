"""Reconciliation of a fleet on Ray as tables: placements and served models in, steps out."""

from __future__ import annotations

import pytest

from pytriton.fleet.on_ray.reconciler import (
    ModelOnNode,
    RegisterAction,
    Remove,
    ScaleAction,
    Step,
    Wanted,
    is_served,
    reconcile,
)

A, B, C = "a", "b", "c"
ONE = ModelOnNode("d", 1)
Observed = dict[str, dict[str, ModelOnNode]]

CASES: dict[str, tuple[Wanted, Observed, list[Step], list[str]]] = {
    "new": (Wanted("d", {A: 2, B: 1}), {A: {}, B: {}}, [RegisterAction(A, "m", 2), RegisterAction(B, "m", 1)], []),
    "as it should be": (Wanted("d", {A: 1}), {A: {"m": ONE}}, [], []),
    "a daemon that does not answer yet": (Wanted("d", {A: 1, B: 1}), {A: {}}, [RegisterAction(A, "m", 1)], []),
    "more": (Wanted("d", {A: 3}), {A: {"m": ONE}}, [ScaleAction(A, "m", 3)], []),
    "fewer": (Wanted("d", {A: 1}), {A: {"m": ModelOnNode("d", 3)}}, [ScaleAction(A, "m", 1)], []),
    "another version": (
        Wanted("e", {A: 1, B: 1}), {A: {"m": ONE}, B: {}}, [RegisterAction(A, "m", 1, True), RegisterAction(B, "m", 1)], [],
    ),
    "moves: first elsewhere": (Wanted("d", {B: 1}), {A: {"m": ONE}, B: {}}, [RegisterAction(B, "m", 1)], []),
    "moves: then the balancers leave": (
        Wanted("d", {B: 1}), {A: {"m": ONE}, B: {"m": ONE}}, [], [A],
    ),
    "moves, but not all is placed": (
        Wanted("d", {B: 1}, pending=1), {A: {"m": ONE}, B: {"m": ONE}}, [], [],
    ),
    "moves to a node whose daemon is not there yet": (
        Wanted("d", {C: 1}), {A: {"m": ONE}, B: {}}, [], [],
    ),
    "fewer here only when there are more there": (
        Wanted("d", {A: 1, B: 2}), {A: {"m": ModelOnNode("d", 2)}, B: {"m": ONE}}, [ScaleAction(B, "m", 2)], [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_steps(case: str) -> None:
    wanted, observed, steps, leaving = CASES[case]
    plan = reconcile({"m": wanted}, observed)
    assert plan.steps == steps
    assert sorted(plan.leaving) == [(node, "m") for node in leaving]


def test_balancers_leave_a_node_before_its_model_is_removed() -> None:
    wanted = {"m": Wanted("d", {B: 1})}
    observed = {A: {"m": ONE}, B: {"m": ONE}}
    assert reconcile(wanted, observed, frozenset({(A, "m")})).steps == [Remove(A, "m")]
    # Unregistered models are removed everywhere, in the same way.
    plan = reconcile({}, observed, frozenset({(B, "m")}))
    assert plan.steps == [Remove(B, "m")]
    assert plan.leaving == {(A, "m"), (B, "m")}


@pytest.mark.parametrize(
    ("wanted", "observed", "expected"),
    [
        (Wanted("d", {A: 1}), {A: {"m": ONE}}, True),
        (Wanted("d", {A: 1}, 1), {A: {"m": ONE}}, False),
        (Wanted("d", {A: 2}), {A: {"m": ONE}}, False),
        (Wanted("e", {A: 1}), {A: {"m": ONE}}, False),
        (Wanted("d", {A: 1, B: 1}), {A: {"m": ONE}}, False),
        (Wanted("d", {}), {A: {"m": ONE}}, False),
        (Wanted("d", {A: 1}), {A: {"m": ONE}, B: {"m": ONE}}, True),
    ],
)
def test_whether_a_model_is_served(wanted: Wanted, observed: Observed, expected: bool) -> None:
    assert is_served("m", wanted, observed) is expected


def test_reconciling_converges_from_any_start() -> None:
    """Executing the steps leads to the wanted state from any start, never with fewer instances than before."""
    wanted = {"m": Wanted("d", {A: 2, B: 1}), "n": Wanted("d", {C: 1})}
    starts: list[Observed] = [
        {A: {}, B: {}, C: {}},
        {A: {"n": ONE, "m": ModelOnNode("old", 3)}, B: {"x": ONE}, C: {"m": ONE}},
        {
            A: {"m": ModelOnNode("d", 9)},
            B: {"n": ModelOnNode("d", 2)},
            C: {"m": ModelOnNode("d", 2)},
        },
    ]
    for observed in starts:
        before = {model: sum(model in one for one in observed.values()) for model in wanted}
        for _ in range(10):
            plan = reconcile(wanted, observed, frozenset())
            plan = reconcile(wanted, observed, frozenset(plan.leaving))
            for step in plan.steps:
                if isinstance(step, Remove):
                    del observed[step.node][step.model]
                else:
                    observed[step.node][step.model] = ModelOnNode("d", step.instances)
            for model, count in before.items():
                assert sum(model in one for one in observed.values()) >= min(count, 1)
        assert observed == {A: {"m": ModelOnNode("d", 2)}, B: {"m": ONE}, C: {"n": ONE}}
