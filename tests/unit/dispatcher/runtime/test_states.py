"""The tables of states: the legal transitions, and no others."""

from __future__ import annotations

import enum

import pytest

from pytriton.dispatcher.runtime.states import (
    CHANGES,
    InstanceState,
    ModelState,
    ServerState,
    StateMachine,
)

_KINDS = (InstanceState, ModelState, ServerState)
_ALL = [state for kind in _KINDS for state in kind]


@pytest.mark.parametrize("state", _ALL, ids=str)
def test_every_state_is_in_the_table(state: enum.Enum) -> None:
    assert state in CHANGES
    assert {type(after) for after in CHANGES[state]} <= {type(state)}


@pytest.mark.parametrize("old", _ALL, ids=str)
def test_only_the_transitions_in_the_table_are_legal(old: enum.Enum) -> None:
    for new in type(old):
        machine = StateMachine(old)
        if new in CHANGES[old]:
            assert machine.change(new) is old
            assert machine.state is new
        else:
            with pytest.raises(
                ValueError, match=f"illegal transition from {old.name} to {new.name}"
            ):
                machine.change(new)
            assert machine.state is old


@pytest.mark.parametrize("kind", _KINDS, ids=lambda kind: kind.__name__)
def test_every_state_is_reachable_and_leads_to_the_end(kind: type[enum.Enum]) -> None:
    first, last = kind["STARTING"], kind["STOPPED"]
    assert _reached(first) == set(kind)
    assert all(last in _reached(state) for state in kind)


def _reached(start: enum.Enum) -> set[enum.Enum]:
    found, todo = {start}, [start]
    while todo:
        new = set(CHANGES[todo.pop()]) - found
        found |= new
        todo += new
    return found
