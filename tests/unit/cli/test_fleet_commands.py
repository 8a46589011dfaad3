"""`pytriton-daemon fleet`: whom each command asks, and for what."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest
from typer.testing import CliRunner

from pytriton.cli.app import app
from pytriton.exceptions import CanaryError
from pytriton.fleet.canary import Canary
from pytriton.fleet.served import FleetModel
from pytriton.ipc import messages


class Asked:
    """The client that commands get, and what it was made with."""

    def __init__(self) -> None:
        self.client = Mock(
            register=Mock(return_value=SimpleNamespace(name="m", urls={"n1": "http://n1"})),
            scale=Mock(return_value=None),
        )
        self.connected: list[dict[str, Any]] = []

    def connect(self, **place: Any) -> Any:
        self.connected.append(place)
        return self.client


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    asked = Asked()
    monkeypatch.setattr("pytriton.daemon.connect", asked.connect)
    monkeypatch.setattr("pytriton.cli.registering.load_target", lambda text: text)
    monkeypatch.delenv("PYTRITON_DAEMON_NODES", raising=False)
    return asked


def run(*words: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["fleet", *words])
    return found.exit_code, found.output


def without_progress(one: Any) -> Any:
    name, positional, named = one
    named = {key: value for key, value in named.items() if key != "progress"}
    return getattr(call, name)(*positional, **named)


NODES = {"nodes": "n1,n2", "key_file": None}
RAY = {"fleet": "f", "ray_address": "auto"}


@pytest.mark.parametrize(
    ("words", "place"), [(("--nodes", "n1,n2"), NODES), (("--fleet", "f"), RAY)]
)
@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        (("unregister", "m"), [call.unregister("m")]),
        (("rollback", "m"), [call.rollback("m")]),
        (("scale", "m", "3"), [call.scale("m", 3)]),
        (("register", "a:b"), [call.register("a:b")]),
        (
            ("register", "a:b", "--replace", "--canary", "0.2", "--watch", "5"),
            [call.register("a:b", replace=True, canary=Canary(0.2, 5.0))],
        ),
    ],
)
def test_what_is_asked_of_whom(
    asked: Asked,
    command: tuple[str, ...],
    wanted: list[Any],
    words: tuple[str, ...],
    place: dict[str, Any],
) -> None:
    code, output = run(*command, *words)
    assert code == 0, output
    assert asked.connected == [place]
    assert [without_progress(one) for one in asked.client.mock_calls] == wanted


def test_who_is_asked_is_said_once(asked: Asked) -> None:
    assert run("unregister", "m", "--fleet", "f", "--nodes", "n") == (
        2,
        "pytriton-daemon: say either --fleet, or --nodes and --key-file\n",
    )
    code, output = run("unregister", "m")
    assert (code, "which nodes?" in output) == (2, True)
    assert asked.connected == []


def test_a_version_that_went_back_ends_the_command_with_its_reason(asked: Asked) -> None:
    asked.client.register.side_effect = CanaryError("3 of its 3 requests failed")
    code, output = run("register", "a:b", "--nodes", "n", "--replace", "--canary", "0.1")
    assert (code, "3 of its 3 requests failed" in output) == (7, True)


def test_a_share_that_is_none_is_a_wrong_use(asked: Asked) -> None:
    code, output = run("register", "a:b", "--nodes", "n", "--replace", "--canary", "2")
    assert (code, "share=2.0" in output) == (2, True)
    assert asked.client.register.mock_calls == []


def test_models_shows_what_is_on_trial(asked: Asked) -> None:
    def info(trial: messages.Trial | None) -> messages.ModelInfo:
        return messages.ModelInfo("m", 1, "ready", [], trial=trial)

    told = {"n1": info(messages.Trial("t")), "n2": info(None)}
    asked.client.models.return_value = [FleetModel(asked.client, "m", told, ["n3"])]
    code, output = run("models", "--nodes", "n")
    assert (code, "2/3, 1 on trial" in output) == (0, True)
