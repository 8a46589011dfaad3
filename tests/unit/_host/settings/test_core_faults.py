"""Which ensembles trigger faults of Triton's core."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pytriton._host.install.wheel import PINNED
from pytriton._host.settings import core_faults

_FAULTY, _FIXED = "2.51.0", "2.69.0"
_LIMITED: dict[str, Any] = {"dynamic_batching": {"default_queue_policy": {"max_queue_size": 4}}}
_BY_PRIORITY: dict[str, Any] = {
    "dynamic_batching": {"priority_queue_policy": {"1": {"max_queue_size": "4"}}}
}
_DECOUPLED: dict[str, Any] = {"model_transaction_policy": {"decoupled": True}}
_PLAIN: dict[str, Any] = {"dynamic_batching": {"default_queue_policy": {"max_queue_size": 0}}}


def ensemble(*steps: tuple[str, str, str], **scheduling: Any) -> dict[str, Any]:
    """Return an ensemble of steps, each with its model, its inputs and its outputs, such as ("a", "x", "y z")."""

    def tensors(names: str) -> dict[str, str]:
        return {f"of_model_{number}": name for number, name in enumerate(names.split())}

    entries = [
        {"model_name": model, "input_map": tensors(inputs), "output_map": tensors(outputs)}
        for model, inputs, outputs in steps
    ]
    return {"ensemble_scheduling": {"step": entries, **scheduling}}


_CHAIN = ensemble(("a", "x", "t"), ("b", "t", "u"), ("c", "u", "y"))
#: In another order than they run.
_FORK = ensemble(("d", "t u", "y"), ("b", "s", "t"), ("c", "s", "u"), ("a", "x", "s"))


@pytest.mark.parametrize(
    ("config", "models", "expected"),
    [
        (_CHAIN, {}, None),
        (_CHAIN, {"c": _LIMITED}, None),
        (_CHAIN, {"c": _LIMITED, "a": _DECOUPLED}, "step c .* after step a, which is decoupled"),
        (_CHAIN, {"c": _PLAIN, "a": _DECOUPLED}, None),
        (_CHAIN, {"a": {**_LIMITED, **_DECOUPLED}}, None),
        (_FORK, {}, None),
        (_FORK, {"b": _LIMITED}, "step b .* in parallel with step c"),
        (_FORK, {"c": _BY_PRIORITY}, "step c .* in parallel with step b"),
        (_FORK, {"a": _LIMITED, "d": _LIMITED}, None),
        (ensemble(("a", "x", "y"), ("a", "x", "z")), {"a": _LIMITED}, "in parallel with step a"),
        # tritonserver refuses it
        (ensemble(("a", "y", "z"), ("b", "z", "y")), {"a": _LIMITED}, None),
        ({}, {}, None),
    ],
)
def test_a_full_queue(
    config: dict[str, Any], models: dict[str, dict[str, Any]], expected: str | None
) -> None:
    why = core_faults.blocked_by_full_queue(config, models, _FAULTY)
    assert (why is None) == (expected is None)
    if expected is not None:
        assert re.search(expected, why or "")
        assert "Remove max_queue_size" in (why or "")
    assert core_faults.blocked_by_full_queue(config, models, _FIXED) is None
    assert core_faults.blocked_by_full_queue(config, models, "") is None


@pytest.mark.parametrize(
    ("config", "models", "producer"),
    [
        (_CHAIN, {}, None),
        (_CHAIN, {"a": _DECOUPLED}, "a"),
        (_CHAIN, {"c": _DECOUPLED}, None),  # no step takes its responses
        (
            ensemble(("a", "x", "t"), ("b", "t", "y"), max_inflight_requests=4),
            {"a": _DECOUPLED},
            None,
        ),
    ],
)
def test_unbounded_memory(
    config: dict[str, Any], models: dict[str, dict[str, Any]], producer: str | None
) -> None:
    assert core_faults.unbounded_step(config, models) == producer


def test_faults_of_a_version() -> None:
    assert core_faults.faults(PINNED.triton_version) == list(core_faults.FAULTS)
    assert core_faults.CACHE not in core_faults.faults("2.61.0")
    assert core_faults.faults("2.69.0") == core_faults.faults(None) == []
