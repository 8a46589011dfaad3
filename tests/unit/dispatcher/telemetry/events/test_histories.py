"""What clients learn about a daemon's decisions, on a virtual clock: who, what, why, and across a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fakes.simulated_daemon import SimulatedDaemon, successive_daemons

from pytriton._protocol import messages


def _explained(sim: SimulatedDaemon, model: str = "m") -> Any:
    return sim.answered(sim.client.ask(messages.Explain(model)))


def test_a_crash_loop_is_explained(sim: SimulatedDaemon) -> None:
    sim.served(sim.client.register("m"))
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
    sim.served(sim.client.register("m"))
    failed = sim.answered(sim.client.ask(messages.GetEvents("nope")))
    assert isinstance(failed, messages.Failure)
    assert "no model 'nope' is registered; registered models: m" in failed.text
    none_such: Any = sim.answered(sim.client.ask(messages.GetEvents("m", ["crashed"])))
    assert none_such.events == []
    sim.answered(sim.client.ask(messages.Unregister("m")))
    former: Any = sim.answered(sim.client.ask(messages.GetEvents("m")))
    assert former.events


def test_events_name_the_requester_and_the_failure(sim: SimulatedDaemon) -> None:
    sim.served(sim.client.register("m"))
    sim.answered(sim.client.ask(messages.Scale("m", 2)))
    sim.plans = ["fails"]
    failed = sim.answered(sim.client.register("m", b"worse", replace=True))
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


def test_failed_changes_are_events_with_their_reason(sim: SimulatedDaemon) -> None:
    sim.plans = ["fails", "fails"]
    sim.answered(sim.client.register("m"))
    sim.answered(sim.client.register("m", replace=True))  # there is nothing to replace
    sim.plans = ["hangs"]
    request = sim.client.register("m")
    sim.settle()
    sim.client.give_up(request)
    sim.settle()
    sim.served(sim.client.register("m"))
    refused = sim.client.register("m")
    sim.answered(refused)
    sim.plans = ["fails", "fails"]
    sim.answered(sim.client.register("m", replace=True))
    sim.answered(sim.client.ask(messages.Scale("m", 2)))
    answer: Any = sim.answered(sim.client.ask(messages.GetEvents("m")))
    failed = [(one.kind, one.reason) for one in answer.events if one.kind.endswith("_failed")]
    no_file = "model m could not be loaded: no file"
    assert [one for one in failed if one[0] != "load_failed"] == [
        ("registration_failed", no_file),
        ("registration_failed", no_file),
        ("registration_failed", "its client cancelled it or exited"),
        ("registration_failed", refused.failure),
        ("replace_failed", no_file),
        ("scale_failed", no_file),
    ]
    assert answer.events[-1].numbers == {"instances": 2, "before": 1}


def test_an_unknown_model_is_an_error(sim: SimulatedDaemon) -> None:
    answer = _explained(sim, "unknown")
    assert isinstance(answer, messages.Failure)
    assert answer.kind == "not_found"


def test_events_outlive_a_daemon_and_a_failed_restore_is_explained(tmp_path: Path) -> None:
    with successive_daemons(tmp_path, settles_s=10.0, event_log_size=100_000) as start:
        first = start()
        first.served(first.client.register("m"))
        answer = _explained(start(usual_plan="fails"))
    assert "could not be restored" in answer.verdict
    kinds = [event.kind for event in answer.events]
    assert "registered" in kinds
    assert kinds[-1] == "restore_failed"
