"""Triton's model control API has the effect of `pytriton-daemon repository load` and `unload`, with both frontends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from support.real_daemon import RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

from pytriton._protocol.parameters import access_headers

_CONFIG = """
backend: "python" max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
_SENT = {
    "name": "sent",
    "backend": "python",
    "max_batch_size": 8,
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1]}],
}
#: Answers with its number, and how many requests it has had.
_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.count = 0

    def execute(self, requests):
        self.count += 1
        answer = np.array([[{number}, self.count]], np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", answer)]) for _ in requests]
"""


def put(repository: Path, name: str, text: str) -> None:
    folder = repository / name
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(f'name: "{name}" {_CONFIG}')
    (folder / "1" / "model.py").write_text(text)


def model(number: int) -> str:
    return _MODEL.replace("{number}", str(number))


@pytest.fixture(scope="module", params=["native", "triton"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningDaemon, Path]]:
    """A daemon with a repository from which it loads nothing by itself."""
    repository = tmp_path_factory.mktemp("models")
    settings = {"model_repository": (str(repository),), "model_control_mode": "explicit"}
    with RunningDaemon.start(frontend=request.param, **settings) as daemon:
        yield daemon, repository


class Client:
    """A tritonserver client of one protocol."""

    def __init__(self, daemon: RunningDaemon, protocol: str) -> None:
        self.module: Any = tritonclient.grpc if protocol == "grpc" else tritonclient.http
        address = daemon.grpc if protocol == "grpc" else daemon.http
        self._client = self.module.InferenceServerClient(address)
        token = daemon.config.rundir.access_token()
        self._headers = access_headers(token, grpc=protocol == "grpc")

    def load(self, name: str, **given: Any) -> None:
        self._client.load_model(name, headers=self._headers, **given)

    def unload(self, name: str) -> None:
        self._client.unload_model(name, headers=self._headers)

    def ask(self, name: str) -> list[float]:
        value = self.module.InferInput("x", [1, 1], "FP32")
        value.set_data_from_numpy(np.zeros((1, 1), np.float32))
        answer = self._client.infer(name, [value]).as_numpy("y")
        return [float(one) for one in answer.ravel()]

    def close(self) -> None:
        self._client.close()


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, served: tuple[RunningDaemon, Path]) -> Iterator[Client]:
    one = Client(served[0], request.param)
    yield one
    for info in served[0].client.repository():
        if info.state != "unloaded":
            one.unload(info.name)
    one.close()


def test_an_edited_model_is_reread(served: tuple[RunningDaemon, Path], client: Client) -> None:
    put(served[1], "m", model(1))
    client.load("m")  # for the first time
    assert [client.ask("m"), client.ask("m")] == [[1, 1], [1, 2]]
    put(served[1], "m", model(2))
    client.load("m")
    assert client.ask("m") == [2, 1]


def test_no_state_survives_unloading(served: tuple[RunningDaemon, Path], client: Client) -> None:
    daemon, repository = served
    put(repository, "m", model(1))
    client.load("m")
    assert client.ask("m") == [1, 1]
    client.unload("m")
    assert {one.name: one.state for one in daemon.client.repository()}["m"] == "unloaded"
    eventually(lambda: not daemon.workers(), "its worker has ended")
    with pytest.raises(InferenceServerException, match="m"):
        client.ask("m")
    client.load("m")
    assert client.ask("m") == [1, 1]


def test_a_load_can_bring_the_files(client: Client) -> None:
    files = {"file:1/model.py": model(9).encode()}
    client.load("sent", config=json.dumps(_SENT), files=files)
    assert client.ask("sent") == [9, 1]


def test_a_load_can_bring_the_configuration(
    served: tuple[RunningDaemon, Path], client: Client
) -> None:
    put(served[1], "m", model(1))
    client.load("m", config=json.dumps({**_SENT, "name": "m", "max_batch_size": 2}))
    (info,) = [one for one in served[0].client.models() if one.name == "m"]
    assert info.info().config["max_batch_size"] == 2
    assert client.ask("m") == [1, 1]


def test_a_failed_load_says_why_and_changes_nothing(
    served: tuple[RunningDaemon, Path], client: Client
) -> None:
    put(served[1], "m", model(1))
    client.load("m")
    put(served[1], "m", "raise ValueError('no weights')")
    with pytest.raises(InferenceServerException, match="ValueError: no weights"):
        client.load("m")
    assert client.ask("m") == [1, 1]
    with pytest.raises(InferenceServerException, match="nobody"):
        client.load("nobody")
