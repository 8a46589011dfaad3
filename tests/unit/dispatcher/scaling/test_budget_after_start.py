"""Memory budgets after a restart: sizes are known, and models that wait for memory block no others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.suspending_daemons import MIB, Budgeted

from pytriton._protocol import messages

Start = Callable[..., Budgeted]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts one daemon after another in the same folder."""
    running: list[Budgeted] = []

    def start(**options: Any) -> Budgeted:
        if running:
            running.pop().sim.close()
        running.append(Budgeted(tmp_path, **options))
        return running[0]

    yield start
    for one in running:
        one.sim.close()


def needs(daemon: Budgeted, name: str) -> int:
    """Return the expected memory of a model's next worker, in MiB."""
    registration = daemon.sim.services.registry.served.by_name(name)
    return daemon.sim.loop.ask(lambda: registration.pool.account.needs(1)["memory"]) // MIB


def test_sizes_outlive_a_restart(start: Start) -> None:
    daemon = start()
    daemon.sizes["a"] = 400
    daemon.register("a")
    assert needs(daemon, "a") == 250  # an estimate
    daemon.served("a")
    daemon = start()
    assert needs(daemon, "a") == 400
    assert daemon.sim.services.registry.served.by_name("a").pool.account.is_estimated is False


def test_sizes_are_persisted_while_the_daemon_runs(start: Start) -> None:
    """A killed daemon loses only the last seconds."""
    daemon = start()
    daemon.sizes["a"] = 400
    daemon.register("a")
    daemon.served("a")
    daemon.sim.advance(6.0)
    daemon.sim.loop.settle()
    content = json.loads((daemon.sim.state / "sizes.json").read_bytes())
    assert content["models"]["a"]["memory"] == 400 * MIB


def test_sizes_are_measured_again_after_a_replacement(start: Start) -> None:
    daemon = start()
    daemon.sizes["a"] = 400
    daemon.register("a")
    daemon.served("a")
    registration = daemon.sim.services.registry.served.by_name("a")
    answer = daemon.sim.client.ask(messages.Register(registration.spec, replace=True), [b"new"])
    daemon.sim.served(answer)
    daemon = start()
    assert needs(daemon, "a") == 250


def test_a_smaller_budget_does_not_refuse_a_model_for_a_remembered_size(start: Start) -> None:
    daemon = start()
    daemon.sizes["a"] = 400
    daemon.register("a", instances=2)
    daemon.wait(daemon.batch("a"), 10.0)
    daemon.sim.advance(2.0)
    daemon = start(memory_budget="700MiB")
    daemon.sim.advance(1.0)
    assert daemon.state("a") == "suspended"
    assert needs(daemon, "a") == 175


def test_without_a_budget_nothing_is_stored(start: Start) -> None:
    daemon = start(memory_budget=None)
    daemon.register("a", lazy=False)
    daemon = start(memory_budget=None)
    assert not (daemon.sim.state / "sizes.json").exists()


def test_models_that_wait_for_memory_do_not_delay_those_that_fit(start: Start) -> None:
    daemon = start(memory_budget="3000MiB")
    for name, size in {"a": 600, "b": 700, "c": 800, "d": 300}.items():
        daemon.sizes[name] = size
        daemon.register(name, lazy=False, memory_request=size * MIB)
    daemon = start()
    daemon.sizes.update(a=600, b=700, c=800, d=300)
    daemon.sim.advance(2.0)
    assert {name: daemon.state(name) for name in "abcd"} == {
        "a": "ready", "b": "restoring", "c": "restoring", "d": "ready",
    }  # fmt: skip
    daemon.sim.advance(65.0)  # both have waited for the same minute
    assert {name: daemon.state(name) for name in "bc"} == {"b": "failed", "c": "failed"}
