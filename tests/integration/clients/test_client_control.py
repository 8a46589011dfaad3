"""Clients of tritonserver unload and load models of workers, as with any tritonserver, and the daemon keeps track."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc
import tritonclient.http
from support.models.inference import PROTOCOLS, Inference
from support.models.model_folders import make_model
from support.real_daemon import RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

from pytriton._protocol.parameters import access_headers
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor

X = [Tensor(name="x", dtype=np.float32, shape=(1,))]
Y = [Tensor(name="y", dtype=np.float32, shape=(1,))]
ONE = {"x": np.ones((1, 1), np.float32)}
ENSEMBLE = """
platform: "ensemble"
input [ { name: "what", data_type: TYPE_STRING, dims: [ 1 ] } ]
output [ { name: "told", data_type: TYPE_STRING, dims: [ 1 ] } ]
ensemble_scheduling { step [ {
  model_name: "step", model_version: -1
  input_map { key: "what", value: "what" }
  output_map { key: "told", value: "told" }
} ] }
"""


@batch
def double(x: Any) -> dict[str, Any]:
    return {"y": 2 * x}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon with a repository: a Python model, which workers serve, and an ensemble of it."""
    repository = tmp_path_factory.mktemp("client") / "repository"
    make_model(repository / "step")
    (repository / "whole" / "1").mkdir(parents=True)
    (repository / "whole" / "config.pbtxt").write_text(ENSEMBLE)
    with RunningDaemon.start(model_repository=[str(repository)]) as running:
        eventually(
            lambda: all(one.state == "ready" for one in running.client.repository()),
            lambda: str(running.client.repository()),
        )
        yield running


class Control:
    """The requests that a tritonserver client with the access token can send."""

    def __init__(self, protocol: str, daemon: RunningDaemon) -> None:
        module = tritonclient.grpc if protocol == "grpc" else tritonclient.http
        self.client = module.InferenceServerClient(getattr(daemon, protocol))
        self.headers = access_headers(daemon.client.access_token, grpc=protocol == "grpc")

    def load(self, model: str, **more: Any) -> None:
        self.client.load_model(model, headers=self.headers, **more)

    def unload(self, model: str, **more: Any) -> None:
        self.client.unload_model(model, headers=self.headers, **more)

    def close(self) -> None:
        self.client.close()


@pytest.fixture(params=PROTOCOLS)
def control(request: pytest.FixtureRequest, daemon: RunningDaemon) -> Iterator[Control]:
    with closing(Control(request.param, daemon)) as control:
        yield control


@pytest.fixture
def model(daemon: RunningDaemon) -> Iterator[str]:
    """A registered model with one worker."""
    registered = daemon.client.register(
        double, "double", inputs=X, outputs=Y, config=ModelConfig(max_batch_size=4), progress=False
    )
    yield registered.name
    daemon.client.unregister(registered.name)


def state(daemon: RunningDaemon, model: str) -> str:
    return next(one.state for one in daemon.client.status().models if one.name == model)


def answers(daemon: RunningDaemon, model: str) -> bool:
    with closing(Inference("http", daemon.http)) as inference:
        try:
            answer = inference.infer(model, ONE)["y"].tolist()
        except InferenceServerException as error:
            if "no available versions" not in error.message():
                raise
            return False
        assert answer == [[2.0]]
        return True


def unloaded(daemon: RunningDaemon, model: str) -> None:
    """Wait until tritonserver has unloaded the model: it answers the request before it begins."""
    eventually(lambda: state(daemon, model) == "unloaded", lambda: state(daemon, model))


def test_a_client_unloads_and_loads_a_model_of_workers(
    daemon: RunningDaemon, model: str, control: Control
) -> None:
    pid = daemon.client.model(model).instances[0].pid
    for _ in range(2):
        control.unload(model)
        unloaded(daemon, model)
        assert not answers(daemon, model)
        control.load(model)
        assert state(daemon, model) == "ready"
        assert answers(daemon, model)
        control.load(model)  # is loaded already
        assert answers(daemon, model)
    assert daemon.client.model(model).instances[0].pid == pid


def test_only_a_client_loads_a_model_that_a_client_unloaded(
    daemon: RunningDaemon, model: str
) -> None:
    with closing(Control("grpc", daemon)) as control:
        control.unload(model)
        unloaded(daemon, model)
        former = daemon.client.model(model).instances[0].pid
        assert former is not None
        os.kill(former, signal.SIGKILL)
        eventually(
            lambda: daemon.client.model(model).instances[0].pid not in (None, former),
            "the worker is replaced",
        )
        assert daemon.client.scale(model, 2).name == model
        assert state(daemon, model) == "unloaded"
        control.load(model)
        assert state(daemon, model) == "ready"
        assert answers(daemon, model)


def test_a_replacement_is_served(daemon: RunningDaemon, model: str) -> None:
    with closing(Control("grpc", daemon)) as control:
        control.unload(model)
        unloaded(daemon, model)
        daemon.client.register(
            double, model, inputs=X, outputs=Y, config=ModelConfig(max_batch_size=4), replace=True,
            progress=False,
        )  # fmt: skip
        assert state(daemon, model) == "ready"
        assert answers(daemon, model)


def test_only_allowed_configuration_fields_are_accepted(
    daemon: RunningDaemon, model: str, control: Control
) -> None:
    with tritonclient.http.InferenceServerClient(daemon.http) as http:
        config = http.get_model_config(model)
    control.load(model, config=json.dumps({**config, "max_batch_size": 7}))
    assert answers(daemon, model)
    with tritonclient.http.InferenceServerClient(daemon.http) as http:
        assert http.get_model_config(model)["max_batch_size"] == 7
    bare = {name: config[name] for name in ("max_batch_size", "input", "output")}
    with pytest.raises(
        InferenceServerException, match="lacks the settings that pytriton-daemon adds"
    ):
        control.load(model, config=json.dumps({**bare, "backend": config["backend"]}))
    # At once: without a Python, the python backend would hang, and all later loads with it.
    for files in (None, {"file:1/model.py": b"pass"}):
        with pytest.raises(InferenceServerException, match="backend 'python'"):
            control.load(model, config=json.dumps({**bare, "backend": "python"}), files=files)
    assert answers(daemon, model)
    control.load(model)
    assert state(daemon, model) == "ready"


def test_the_daemon_tracks_an_ensemble_and_its_steps(daemon: RunningDaemon) -> None:
    def states() -> dict[str, str]:
        return {one.name: one.state for one in daemon.client.repository()}

    def reported() -> list[bytes]:
        text = {"what": np.array([b"6 * 7"], np.object_)}
        with closing(Inference("grpc", daemon.grpc)) as inference:
            return list(inference.infer("whole", text)["told"])

    with closing(Control("grpc", daemon)) as control:
        control.unload(
            "whole", unload_dependents=True
        )  # not the step, which is loaded by itself, too
        eventually(
            lambda: states() == {"whole": "unloaded", "step": "ready"}, lambda: str(states())
        )
        control.unload("step")
        eventually(lambda: set(states().values()) == {"unloaded"}, lambda: str(states()))
        assert not {one.name for one in daemon.client.status().models} & {"step", "whole"}
        with pytest.raises(InferenceServerException):
            reported()
        control.load("whole")  # and so its step
        eventually(lambda: set(states().values()) == {"ready"}, lambda: str(states()))
        assert reported() == [b"42"]


def test_an_unloaded_model_stays_unloaded_after_a_server_restart(
    daemon: RunningDaemon, model: str, tmp_path: Path
) -> None:
    daemon.client.register_model(make_model(tmp_path / "other"))
    with closing(Control("grpc", daemon)) as control:
        control.unload(model)
        unloaded(daemon, model)
    former = daemon.client.status().server.pid
    assert former is not None
    psutil.Process(former).kill()
    eventually(lambda: daemon.client.status().server.pid not in (None, former), "another one")
    eventually(lambda: state(daemon, "other") == "ready", "what was loaded is loaded again")
    assert state(daemon, model) == "unloaded"
    with closing(Control("grpc", daemon)) as control:
        control.load(model)
        assert answers(daemon, model)
    daemon.client.unregister("other")
