"""A simulated fleet with the real controller: all is served again, and a change costs what it changes."""

from __future__ import annotations

import pytest
from simulation.fleet.life import Fleet, Row, Setting

NODES, MODELS, INSTANCES = 8, 150, 2


@pytest.fixture(scope="module")
def rows() -> dict[str, Row]:
    fleet = Fleet(Setting(NODES, MODELS, INSTANCES, payload=1000))
    return {row.what: row for row in fleet.play()}


def test_all_comes_about(rows: dict[str, Row]) -> None:
    assert len(rows) == 8
    assert not [what for what in rows if "NOT DONE" in what]
    assert rows["all models registered"].calls["register"] >= MODELS
    assert 1 <= rows["one more model"].calls["register"] <= INSTANCES  # once on each node


def test_a_change_writes_one_model_and_not_the_whole_state(rows: dict[str, Row]) -> None:
    whole = rows["all models registered"].written
    assert rows["nothing, for 30 s"].written == 0
    for what in ("one more model", "one scaled by one"):
        assert 0 < rows[what].written < 4 * whole / MODELS


def test_at_rest_a_share_of_the_holders_is_asked_in_each_look(rows: dict[str, Row]) -> None:
    rest = rows["nothing, for 30 s"]
    assert 0 < rest.calls["where"] <= 250 * rest.steps < MODELS * INSTANCES * rest.steps
    assert rest.calls["wait"] <= 4 * rest.steps  # one question for all that was asked
    assert rest.calls["register"] == rest.calls["scale"] == rest.calls["unregister"] == 0


def test_only_models_of_a_dead_node_are_moved(
    rows: dict[str, Row],
) -> None:
    dies = rows["a node dies"]
    there = MODELS * INSTANCES // NODES
    assert 0 < dies.calls["register"] + dies.calls["scale"] < 2 * there
    assert dies.calls["unregister"] == 0


def test_a_new_controller_finds_all_as_it_should_be(rows: dict[str, Row]) -> None:
    anew = rows["the controller anew"]
    assert anew.calls["report_state"] >= NODES - 1 - NODES // 10
    assert anew.calls["register"] == anew.calls["scale"] == anew.calls["unregister"] == 0
    assert anew.written < 100  # it says that it is the controller by now, nothing else
