"""Requests about model repositories, as a client sends them to a simulated daemon."""

from __future__ import annotations

from fakes.simulated_daemon import SimulatedDaemon
from pytriton._protocol import messages

#: The result of `states` for the repository in tests/unit/dispatcher/repository/conftest.py, once all is loaded.
ALL = {
    "own": "ready tritonserver",
    "odd": "failed",
    "pair": "ready tritonserver",
    "py": "ready workers",
}


def states(sim: SimulatedDaemon) -> dict[str, str]:
    """Return each model's state in the index, and who serves it."""
    answer = sim.answered(sim.client.ask(messages.GetRepository()))
    assert isinstance(answer, messages.Repository)
    return {one.name: f"{one.state} {one.served_by}".strip() for one in answer.models}


def reason(sim: SimulatedDaemon, name: str) -> str:
    answer = sim.answered(sim.client.ask(messages.GetRepository()))
    assert isinstance(answer, messages.Repository)
    return next(one.reason for one in answer.models if one.name == name)


def load(sim: SimulatedDaemon, name: str) -> str:
    """Load a model; return the failure, or "" if it is served."""
    answer = sim.answered(sim.client.ask(messages.LoadFromRepository(name)))
    return answer.text if isinstance(answer, messages.Failure) else ""


def unload(sim: SimulatedDaemon, name: str) -> str:
    answer = sim.answered(sim.client.ask(messages.UnloadFromRepository(name)))
    return answer.text if isinstance(answer, messages.Failure) else ""
