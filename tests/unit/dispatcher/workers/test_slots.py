"""Slots: which worker of a registration serves what, with separate workers for each version of Python models."""

from __future__ import annotations

import pytest

from pytriton._protocol import messages
from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.models.admission import MAX_WORKERS, check
from pytriton.dispatcher.workers.worker import instance_of, slot_count, spec_of_slot

WORLD = messages.WorkerEnvironment("/usr/bin/python3")


def spec(
    versions: list[int], *, python: bool = True, instances: int = 2, standby_workers: int = 1
) -> messages.ModelSpec:
    model = messages.PythonModel("{}", "/m") if python else None
    return messages.ModelSpec(
        "m",
        max(versions, default=1),
        {},
        WORLD,
        instances,
        standby_workers=standby_workers,
        python_model=model,
        versions=versions,
    )


def taken(model: messages.ModelSpec) -> list[tuple[int, int]]:
    slots = range(slot_count(model))
    return [(spec_of_slot(model, slot).version, instance_of(model, slot)) for slot in slots]


def test_every_version_of_a_python_model_has_all_instances() -> None:
    model = spec([2, 5])
    assert taken(model) == [(2, 0), (5, 0), (2, 1), (5, 1), (2, 2), (5, 2)]
    assert [instance_of(model, slot) for slot in range(6)] == [0, 0, 1, 1, 2, 2]
    assert spec_of_slot(model, 0).versions == []


def test_scaling_adds_slots_at_the_end() -> None:
    assert taken(spec([2, 5], instances=3))[:6] == taken(spec([2, 5], instances=2))


@pytest.mark.parametrize(
    "model", [spec([]), spec([2, 5], python=False)], ids=["one version", "no model.py"]
)
def test_workers_of_other_models_serve_all_versions(model: messages.ModelSpec) -> None:
    assert taken(model) == [(model.version, instance) for instance in range(3)]
    assert spec_of_slot(model, 1) is model


def test_the_most_workers_are_counted_with_the_versions() -> None:
    check(spec([1, 2], instances=MAX_WORKERS // 2, standby_workers=0), [b""])
    with pytest.raises(RemoteFailure, match=f"at most {MAX_WORKERS}"):
        check(spec([1, 2], instances=MAX_WORKERS // 2 + 1, standby_workers=0), [b""])
