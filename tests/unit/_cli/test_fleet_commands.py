"""`pytriton-daemon fleet`: which nodes each command contacts, and with which request."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest
from fakes.fake_dispatcher import status
from typer.testing import CliRunner

from pytriton._cli.command_table import parser
from pytriton._protocol import messages
from pytriton.exceptions import CanaryError
from pytriton.fleet.canary import Canary
from pytriton.fleet.on_ray.client import RayNode
from pytriton.fleet.placement_status import FleetModel


class Asked:
    """The client given to commands; records the nodes it was created with."""

    def __init__(self) -> None:
        self.client = Mock(
            register=Mock(return_value=SimpleNamespace(name="m", by_node={})),
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
    monkeypatch.setattr("pytriton._cli.register_target.load_target", lambda text: text)
    monkeypatch.delenv("PYTRITON_DAEMON_NODES", raising=False)
    return asked


def run(*words: str) -> tuple[int, str]:
    words = ("fleet", *words)
    # As the program has it: only the commands that are meant are made.
    found = CliRunner().invoke(parser([*words]), words)
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
def test_each_command_contacts_the_right_nodes(
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


def test_the_contacted_node_is_named_once(asked: Asked) -> None:
    assert run("unregister", "m", "--fleet", "f", "--nodes", "n") == (
        2,
        "pytriton-daemon: use either --fleet, or --nodes and --key-file\n",
    )
    code, output = run("unregister", "m")
    assert (code, "no nodes are given" in output) == (2, True)
    assert asked.connected == []


def test_a_rolled_back_version_fails_the_command_with_the_reason(asked: Asked) -> None:
    asked.client.register.side_effect = CanaryError("3 of its 3 requests failed")
    code, output = run("register", "a:b", "--nodes", "n", "--replace", "--canary", "0.1")
    assert (code, "3 of its 3 requests failed" in output) == (7, True)


def test_an_invalid_share_is_a_usage_error(asked: Asked) -> None:
    code, output = run("register", "a:b", "--nodes", "n", "--replace", "--canary", "2")
    assert (code, "share=2.0" in output) == (2, True)
    assert asked.client.register.mock_calls == []


def test_models_shows_what_is_provisional(asked: Asked) -> None:
    def info(lease: messages.Lease | None) -> messages.ModelInfo:
        return messages.ModelInfo("m", 1, "ready", [], lease=lease)

    reported = {"n1": info(messages.Lease("t")), "n2": info(None)}
    asked.client.models.return_value = [FleetModel(asked.client, "m", reported, ["n3"])]
    code, output = run("models", "--nodes", "n")
    assert (code, "2/3, 1 provisional" in output) == (0, True)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("--num-gpus", "1"), {"resources": {"num_gpus": 1.0}}),
        (
            ("--num-cpus", "2", "--resources", '{"memory": 5}'),
            {"resources": {"num_cpus": 2.0, "memory": 5}},
        ),
        (("--resources", "{}"), {"resources": {}}),
        (
            ("--runtime-env-json", '{"env_vars": {"A": "b"}}'),
            {"runtime_env": {"env_vars": {"A": "b"}}},
        ),
        (("--runtime-env", "env.json"), {"runtime_env": {"pip": ["torch"]}}),
        (("--runtime-env", "env.yaml"), {"runtime_env": {"working_dir": "."}}),
    ],
)
def test_the_shell_shows_ray_s_resources(
    asked: Asked,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    wanted: dict[str, Any],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "env.json").write_text('{"pip": ["torch"]}')
    (tmp_path / "env.yaml").write_text("# of the model\nworking_dir: .\n")
    code, output = run("register", "a:b", "--fleet", "f", *words)
    assert code == 0, output
    (one,) = asked.client.mock_calls
    assert without_progress(one) == call.register("a:b", **wanted)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--resources", "num_gpus=1"), "--resources 'num_gpus=1' is not JSON"),
        (
            ("--resources", "[1]"),
            "--resources must be an object that maps names to values, not list",
        ),
        (("--num-gpus", "1", "--resources", '{"num_gpus": 1}'), "both set num_gpus"),
        (("--runtime-env", "nowhere.yaml"), "nowhere.yaml cannot be read"),
        (("--runtime-env", '{"pip": []}'), "--runtime-env-json with the text itself"),
        (("--runtime-env", "bad.yaml"), "neither JSON nor YAML"),
        (("--runtime-env", "text.yaml"), "must be an object that maps names to values, not str"),
        (("--runtime-env", "env.json", "--runtime-env-json", "{}"), "use either"),
    ],
)
def test_invalid_ray_options_are_refused_before_any_request(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.yaml").write_text("a: b: c")
    (tmp_path / "text.yaml").write_text("torch")
    code, output = run("register", "a:b", "--fleet", "f", *words)
    assert (code, said in output.replace("\n", " ")) == (2, True), output
    assert asked.connected == []


def test_resource_options_require_ray(asked: Asked) -> None:
    code, output = run("register", "a:b", "--nodes", "n", "--num-gpus", "1")
    assert (code, "use --fleet NAME" in output) == (2, True)
    assert asked.connected == []


@pytest.mark.parametrize("target", ["mlflow:model", "hf:text-classification=model", "model.onnx"])
def test_what_a_fleet_does_not_register_is_refused(asked: Asked, target: str) -> None:
    code, output = run("register", target, "--nodes", "n")
    assert (code, "a fleet registers only callables" in output.replace("\n", " ")) == (2, True), (
        output
    )
    assert asked.connected == []


def test_nodes_that_are_too_many_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Mock(return_value=2)
    monkeypatch.setattr("pytriton.fleet.on_ray.lifecycle.start_fleet", start)
    code, output = run("start", "--nodes", "1", "--", "--http-port", "0")
    assert (code, "2 nodes are surplus" in output) == (0, True)
    expected = call("default", "auto", nodes=1, flags=["--http-port", "0"], runtime_dir=None)
    assert start.mock_calls == [expected]


def test_drained_nodes_are_shown_as_drained(asked: Asked) -> None:
    asked.client.nodes.return_value = [
        RayNode("n1", "h", True, status()),
        RayNode("n2", "h", True, None, "gone"),
        RayNode("n3", "h", False, status()),
    ]
    code, output = run("nodes")
    assert (code, output.count("draining")) == (0, 2), output
