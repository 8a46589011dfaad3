"""Histories of a tritonserver that ends while it loads models of a repository: all are served but the culprit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.fakes.brain import Brain
from support.fakes.triton.fake_server import Obstacle
from support.fakes.triton.repository_requests import ALL, load, reason, states
from support.models import repositories

from pytriton._protocol import messages

Start = Callable[..., Brain]
OWN = "ready tritonserver"


def add_own(repository: Path, *names: str) -> None:
    """Add models that tritonserver serves itself."""
    for name in names:
        repositories.add(repository, name, {"1/libtriton_mine.so": b""}, 'backend: "mine"')


@pytest.mark.parametrize("name", ["own", "pair"])
def test_it_ends_once_more_while_all_is_loaded_again(start: Start, name: str) -> None:
    brain = start()
    brain.server.end()
    brain.server.obstacles[name] = Obstacle("end")
    brain.advance(30.0)
    assert states(brain) == ALL
    assert {"own", "pair", "py"} == set(brain.server.models)
    assert brain.server.starts == 3


def test_the_model_that_ends_it_each_time_fails_alone(start: Start, repository: Path) -> None:
    """And is not tried again by itself, but by who asks for it."""
    add_own(repository, "a", "z")
    brain = start()
    all_of_them = {**ALL, "a": OWN, "z": OWN}
    assert states(brain) == all_of_them
    brain.server.end()
    brain.server.obstacles["own"] = Obstacle("end", times=99)
    brain.advance(60.0)
    assert states(brain) == {**all_of_them, "own": "failed tritonserver"}
    assert "exited 2 times in a row while loading model own" in reason(brain, "own")
    assert {"a", "z", "py"} <= set(brain.server.models)
    assert brain.server.starts == 4
    assert brain.daemon.repository_models.known.failed
    brain.server.end()
    brain.advance(120.0)
    assert brain.server.starts == 5
    assert states(brain)["own"] == "failed tritonserver"
    brain.server.obstacles.clear()
    assert load(brain, "own") == ""
    brain.server.end()
    brain.advance(120.0)
    assert states(brain) == all_of_them
    assert reason(brain, "own") == ""


def test_a_client_asks_again_for_the_model_that_ends_it(start: Start) -> None:
    """As often as the client does; the daemon itself loads it no more."""
    brain = start()
    brain.server.obstacles["own"] = Obstacle("end", times=2)
    asked = [brain.client.ask(messages.LoadFromRepository("own")) for _ in range(2)]
    for one in asked:
        assert isinstance(brain.answered(one), messages.Failure)
    brain.advance(60.0)
    assert states(brain)["own"] == "failed tritonserver"
    assert "py" in brain.server.models
    assert load(brain, "own") == ""
    assert states(brain)["own"] == OWN


def test_a_model_that_is_refused_at_one_start_is_tried_at_the_next(start: Start) -> None:
    brain = start()
    brain.server.end()
    brain.server.obstacles["own"] = Obstacle("refuse")
    brain.advance(30.0)
    assert states(brain)["own"] == "failed tritonserver"
    brain.server.end()
    brain.advance(30.0)
    assert states(brain) == ALL


@pytest.mark.parametrize(
    ("times", "own", "starts"), [(1, OWN, 2), (99, "failed", 3)], ids=["once", "each time"]
)
def test_it_ends_at_the_first_loads(
    start: Start,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    times: int,
    own: str,
    starts: int,
) -> None:
    """Those that it loaded at the same time, and those that come while it is started again, are served."""
    add_own(repository, "a", "b", "y", "z")
    made = Brain._make_server

    def make_server(self: Brain, *arguments: object) -> object:
        server = made(self, *arguments)  # type: ignore[arg-type]
        server.obstacles["own"] = Obstacle("end", times)
        return server

    monkeypatch.setattr(Brain, "_make_server", make_server)
    brain = start()
    brain.advance(120.0)
    found = states(brain)
    assert found["own"] == own
    assert {found[name] for name in ("a", "b", "y", "z")} == {OWN}
    assert found["py"] == "ready workers"
    assert found["pair"] == (OWN if times == 1 else "failed")
    assert brain.server.starts == starts
    assert brain.daemon.repository_models.tried
    if times > 1:
        assert "tritonserver exited 2 times in a row while loading model own" in reason(
            brain, "pair"
        )


def test_it_ends_while_files_are_followed(start: Start, repository: Path) -> None:
    """What has changed is loaded anew by the one that is started next, and what comes meanwhile."""
    brain = start(model_control_mode="poll", repository_poll_s=5.0)
    brain.server.obstacles["own"] = Obstacle("end")
    brain.server.history.clear()
    (repository / "own" / "1" / "libtriton_mine.so").write_bytes(b"another one")
    for _ in range(100):
        if brain.server.ready:
            brain.advance(0.1)
    assert not brain.server.ready
    add_own(repository, "late")
    brain.advance(30.0)
    assert states(brain) == {**ALL, "late": OWN}
    # By the one that ended, by its successor as what it served, and as what has changed.
    assert brain.server.history.count("load own") == 3


def test_a_server_that_does_not_take_the_others_place_changes_nothing(start: Start) -> None:
    brain = start()
    models = brain.daemon.repository_models
    models.known.server_lost = True
    brain.server.obstacles["own"] = Obstacle("refuse")
    brain.loop.run(models.load_again())
    assert states(brain)["own"] == "failed tritonserver"
    models.known.server_lost = True
    brain.loop.ask(models.former_serves_on)
    assert states(brain) == ALL
    assert not models.known.server_lost
    assert brain.answered(brain.client.ask(messages.UnloadFromRepository("own"))) == messages.Done()
