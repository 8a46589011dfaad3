"""What clients are told of a daemon's decisions, on a virtual clock: who, what, why, over a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fakes.brain import Brain

from pytriton._protocol import messages

_SPEC = messages.ModelSpec("m", 1, {"max_batch_size": 8}, messages.World("python"))


@pytest.fixture
def brain(tmp_path: Path) -> Iterator[Brain]:
    one = Brain(tmp_path)
    try:
        yield one
    finally:
        one.close()


def _register(brain: Brain) -> None:
    brain.served(brain.client.ask(messages.Register(_SPEC), [b"callable"]))


def _explained(brain: Brain, model: str = "m") -> Any:
    return brain.answered(brain.client.ask(messages.Explain(model)))


def test_a_crash_loop_is_explained(brain: Brain) -> None:
    _register(brain)
    brain.usual_plan = "fails"
    brain.alive("m")[0].end()
    brain.advance(20.0)
    answer = _explained(brain)
    assert "instance 0 is in a crash loop" in answer.verdict
    assert "no file" in answer.verdict
    told = [event.kind for event in answer.events]
    assert told[:4] == ["loading", "ready", "registered", "crashed"]
    assert {"load_failed", "backoff", "crash_loop", "unready"} <= set(told)


def test_events_of_a_model_that_never_was_are_an_error(brain: Brain) -> None:
    _register(brain)
    failed = brain.answered(brain.client.ask(messages.GetEvents("nope")))
    assert isinstance(failed, messages.Failure)
    assert "no model 'nope' is registered; registered models: m" in failed.text
    none_such: Any = brain.answered(brain.client.ask(messages.GetEvents("m", ["crashed"])))
    assert none_such.events == []
    brain.answered(brain.client.ask(messages.Unregister("m")))
    former: Any = brain.answered(brain.client.ask(messages.GetEvents("m")))
    assert former.events


def test_who_asked_is_told_and_what_failed(brain: Brain) -> None:
    _register(brain)
    brain.answered(brain.client.ask(messages.Scale("m", 2)))
    brain.plans = ["fails"]
    failed = brain.answered(brain.client.ask(messages.Register(_SPEC, replace=True), [b"worse"]))
    assert isinstance(failed, messages.Failure)
    brain.answered(brain.client.ask(messages.Unregister("m")))
    answer = _explained(brain)
    me = f"process {brain.client.pid}"
    asked = [(event.kind, event.who) for event in answer.events if event.who]
    assert asked == [("registered", me), ("scaled", me), ("not_replaced", me), ("unregistered", me)]
    assert answer.verdict == f"m is not served: it was unregistered by {me}"
    scaled = next(event for event in answer.events if event.kind == "scaled")
    assert scaled.numbers == {"instances": 2, "before": 1}


def test_a_model_that_nobody_knows_is_an_error(brain: Brain) -> None:
    answer = _explained(brain, "unknown")
    assert isinstance(answer, messages.Failure)
    assert answer.kind == "not_found"


def test_events_outlive_a_daemon_and_a_failed_restore_is_explained(tmp_path: Path) -> None:
    first = Brain(tmp_path, event_log_size=100_000)
    try:
        _register(first)
    finally:
        first.close()
    second = Brain(tmp_path, usual_plan="fails", event_log_size=100_000)
    try:
        second.advance(10.0)
        answer = _explained(second)
        assert "could not be restored" in answer.verdict
        kinds = [event.kind for event in answer.events]
        assert "registered" in kinds
        assert kinds[-1] == "not_restored"
    finally:
        second.close()
