"""What clients learn about a daemon's decisions, on a virtual clock: who, what, why, and across a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.simulated_daemon import SimulatedDaemon

from pytriton._protocol import messages

_SPEC = messages.ModelSpec("m", 1, {"max_batch_size": 8}, messages.WorkerEnvironment("python"))


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[SimulatedDaemon]:
    one = SimulatedDaemon(tmp_path)
    try:
        yield one
    finally:
        one.close()


def _register(sim: SimulatedDaemon) -> None:
    sim.served(sim.client.ask(messages.Register(_SPEC), [b"callable"]))


def _explained(sim: SimulatedDaemon, model: str = "m") -> Any:
    return sim.answered(sim.client.ask(messages.Explain(model)))


def test_a_crash_loop_is_explained(sim: SimulatedDaemon) -> None:
    _register(sim)
    sim.usual_plan = "fails"
    sim.alive("m")[0].end()
    sim.advance(20.0)
    answer = _explained(sim)
    assert "instance 0 is in a crash loop" in answer.verdict
    assert "no file" in answer.verdict
    reported = [event.kind for event in answer.events]
    assert reported[:4] == ["loading", "ready", "registered", "crashed"]
    assert {"load_failed", "backoff", "crash_loop", "not_ready"} <= set(reported)


def test_events_of_a_model_that_never_existed_are_an_error(sim: SimulatedDaemon) -> None:
    _register(sim)
    failed = sim.answered(sim.client.ask(messages.GetEvents("nope")))
    assert isinstance(failed, messages.Failure)
    assert "no model 'nope' is registered; registered models: m" in failed.text
    none_such: Any = sim.answered(sim.client.ask(messages.GetEvents("m", ["crashed"])))
    assert none_such.events == []
    sim.answered(sim.client.ask(messages.Unregister("m")))
    former: Any = sim.answered(sim.client.ask(messages.GetEvents("m")))
    assert former.events


def test_events_name_the_requester_and_the_failure(sim: SimulatedDaemon) -> None:
    _register(sim)
    sim.answered(sim.client.ask(messages.Scale("m", 2)))
    sim.plans = ["fails"]
    failed = sim.answered(sim.client.ask(messages.Register(_SPEC, replace=True), [b"worse"]))
    assert isinstance(failed, messages.Failure)
    sim.answered(sim.client.ask(messages.Unregister("m")))
    answer = _explained(sim)
    me = f"process {sim.client.pid}"
    asked = [(event.kind, event.who) for event in answer.events if event.who]
    assert asked == [
        ("registered", me),
        ("scaled", me),
        ("replace_failed", me),
        ("unregistered", me),
    ]
    assert answer.verdict == f"m is not served: it was unregistered by {me}"
    scaled = next(event for event in answer.events if event.kind == "scaled")
    assert scaled.numbers == {"instances": 2, "before": 1}


def test_an_unknown_model_is_an_error(sim: SimulatedDaemon) -> None:
    answer = _explained(sim, "unknown")
    assert isinstance(answer, messages.Failure)
    assert answer.kind == "not_found"


def test_events_outlive_a_daemon_and_a_failed_restore_is_explained(tmp_path: Path) -> None:
    first = SimulatedDaemon(tmp_path, event_log_size=100_000)
    try:
        _register(first)
    finally:
        first.close()
    second = SimulatedDaemon(tmp_path, usual_plan="fails", event_log_size=100_000)
    try:
        second.advance(10.0)
        answer = _explained(second)
        assert "could not be restored" in answer.verdict
        kinds = [event.kind for event in answer.events]
        assert "registered" in kinds
        assert kinds[-1] == "restore_failed"
    finally:
        second.close()
