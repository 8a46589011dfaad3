"""Requests about model repositories, as a client makes them of a daemon without processes."""

from __future__ import annotations

from fakes.simulated_daemon import SimulatedDaemon
from pytriton._protocol import messages

#: What `states` says of the repository in tests/unit/dispatcher/repository/conftest.py, when all is loaded.
ALL = {
    "own": "ready tritonserver",
    "odd": "failed",
    "pair": "ready tritonserver",
    "py": "ready workers",
}


def states(sim: SimulatedDaemon) -> dict[str, str]:
    """Return what the index says of each model: its state, and who serves it."""
    answer = sim.answered(sim.client.ask(messages.GetRepository()))
    assert isinstance(answer, messages.Repository)
    return {one.name: f"{one.state} {one.served_by}".strip() for one in answer.models}


def reason(sim: SimulatedDaemon, name: str) -> str:
    answer = sim.answered(sim.client.ask(messages.GetRepository()))
    assert isinstance(answer, messages.Repository)
    return next(one.reason for one in answer.models if one.name == name)


def load(sim: SimulatedDaemon, name: str) -> str:
    """Load a model; return the failure, "" if it is served."""
    answer = sim.answered(sim.client.ask(messages.LoadFromRepository(name)))
    return answer.text if isinstance(answer, messages.Failure) else ""


def unload(sim: SimulatedDaemon, name: str) -> str:
    answer = sim.answered(sim.client.ask(messages.UnloadFromRepository(name)))
    return answer.text if isinstance(answer, messages.Failure) else ""
