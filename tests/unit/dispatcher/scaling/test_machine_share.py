"""The machine's resources are shared fairly between models, and never exceeded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.dispatcher.scaling.policy import Cost, MachineResources, Want, share_out

MIB = 1 << 20
CPU = Cost(cpus=1.0)
BIG = Cost(memory=1000 * MIB)


@pytest.mark.parametrize(
    ("wants", "room", "expected"),
    [
        pytest.param([Want("a", 1, 8)], MachineResources(2), {"a": 8}, id="what costs nothing"),
        pytest.param(
            [Want("a", 1, 8, load=6, cost=CPU)], MachineResources(4), {"a": 4}, id="as many as CPUs"
        ),
        pytest.param(
            [Want("a", 1, 3, load=1, cost=CPU)], MachineResources(1), {"a": 1}, id="one CPU"
        ),
        pytest.param(
            [Want("a", 1, 8, load=6, cost=Cost(0.25))],
            MachineResources(2),
            {"a": 8},
            id="those that mostly wait",
        ),
        pytest.param(
            [Want("a", 4, 4, load=4, cost=CPU), Want("b", 1, 4, load=4, cost=CPU)],
            MachineResources(4),
            {"a": 2, "b": 2},
            id="each its share",
        ),
        pytest.param(
            [Want("a", 3, 3, load=3, cost=CPU, weight=2.0), Want("b", 1, 3, load=3, cost=CPU)],
            MachineResources(3),
            {"a": 2, "b": 1},
            id="by weight",
        ),
        pytest.param(
            [Want("a", 4, 4, 4, load=4, cost=CPU), Want("b", 1, 4, load=4, cost=CPU)],
            MachineResources(4),
            {"a": 4, "b": 1},
            id="floors come first",
        ),
        pytest.param(
            [Want("a", 4, 4, 4, load=0, cost=CPU), Want("b", 1, 4, load=4, cost=CPU)],
            MachineResources(4),
            {"a": 4, "b": 4},
            id="instances without work take no CPU",
        ),
        pytest.param(
            [Want("a", 2, 2, cost=BIG), Want("b", 1, 4, cost=BIG)],
            MachineResources(8, 1500 * MIB),
            {"a": 2, "b": 2},
            id="as many as memory allows",
        ),
        pytest.param(
            [Want("a", 3, 3, cost=BIG)],
            MachineResources(8, -9 * MIB),
            {"a": 3},
            id="what is there stays",
        ),
        pytest.param(
            [Want("a", 3, 1, cost=BIG), Want("b", 1, 3, cost=BIG)],
            MachineResources(8, 0),
            {"a": 1, "b": 3},
            id="what one gives up is there for the other",
        ),
    ],
)
def test_shares(wants: list[Want], room: MachineResources, expected: dict[str, int]) -> None:
    assert {name: grant.instances for name, grant in share_out(wants, room).items()} == expected


@pytest.mark.parametrize(
    ("want", "room", "text"),
    [
        (Want("a", 2, 8, load=8, cost=CPU), MachineResources(2), "CPUs: an instance uses 1.0"),
        (
            Want("a", 1, 2, cost=BIG),
            MachineResources(9, 600 * MIB),
            "takes 1,000 MiB, and 600 MiB are left",
        ),
    ],
)
def test_a_reduced_share_has_a_reason(want: Want, room: MachineResources, text: str) -> None:
    assert text in share_out([want], room)["a"].limit


def test_a_full_share_has_no_reason() -> None:
    assert share_out([Want("a", 1, 3)], MachineResources(1))["a"].limit == ""


def test_a_fluctuating_measurement_removes_no_instance() -> None:
    for cpus in (0.60, 0.66, 0.62, 0.70):
        grant = share_out([Want("a", 3, 4, load=3.4, cost=Cost(cpus))], MachineResources(2))["a"]
        assert grant.instances >= 3


WANTS = st.lists(
    st.builds(
        lambda now, wanted, load, cpus, memory, weight: (now, wanted, load, cpus, memory, weight),
        st.integers(0, 5),
        st.integers(1, 9),
        st.floats(0, 9),
        st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0]),
        st.sampled_from([0, 10, 100]),
        st.sampled_from([0.5, 1.0, 2.0]),
    ),
    min_size=1,
    max_size=6,
)


@given(WANTS, st.sampled_from([1, 2, 8]), st.integers(0, 300))
def test_grants_never_exceed_the_machine(
    rows: list[tuple[int, int, float, float, int, float]], cpus: int, memory: int
) -> None:
    wants = [
        Want(f"m{i}", now, wanted, 1, load, weight, Cost(cost, size))
        for i, (now, wanted, load, cost, size, weight) in enumerate(rows)
    ]
    grants = share_out(wants, MachineResources(cpus, memory))
    for want in wants:
        assert want.least <= grants[want.model].instances <= want.wanted
        assert bool(grants[want.model].limit) == (grants[want.model].instances < want.wanted)
    added = sum(
        max(0, grants[one.model].instances - max(one.now, one.least)) * one.cost.memory
        for one in wants
    )
    freed = sum(max(0, one.now - grants[one.model].instances) * one.cost.memory for one in wants)
    assert added <= memory + freed
