"""Python models of a repository in workers, ensembles of them, and the status of models run by tritonserver itself."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from support.forks.prefork import command
from support.models import repositories
from support.models.inference import Inference, infer_once
from support.real_daemon import RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

from pytriton.exceptions import ModelNotFoundError, RegistrationError
from pytriton.model_config import ModelConfig, Tensor

pytest.importorskip("onnxruntime")
#: The first test waits for all models, and each change of one for new workers.
pytestmark = pytest.mark.timeout(600)

X = np.ones((1, 4), np.float32)
#: Says everything itself.
COMPLETING = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(4)
        config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [4]})
        config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [4]})
        return config

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", -one.inputs()[0].as_numpy())])
            for one in requests
        ]
"""
SETTINGS: dict[str, Any] = {
    "model_control_mode": "explicit",
    "load_model": ("all", "pipe", "stock", "versions", "misspelt"),
    "python_backend_model": ("stock",),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("models")
    repositories.add_multiplier(folder, "tenfold", {1: 10})
    repositories.add_affine(folder, "twice", {1: 2.0}, "max_batch_size: 8")
    repositories.add_ensemble(folder, "pipe", ["tenfold", "twice"])
    repositories.add_ensemble(folder, "all", ["pipe", "tenfold"])
    repositories.add_ensemble(folder, "with-registered", ["tenfold", "plus", "twice"])
    repositories.add_ensemble(folder, "lost", ["tenfold", "nobody"])
    repositories.add_multiplier(folder, "versions", {1: 1, 2: 2, 5: 5}, "version_policy { all {} }")
    repositories.add_multiplier(folder, "stock", {1: 3})
    repositories.add(folder, "completing", {"1/model.py": COMPLETING.encode()})
    repositories.add_multiplier(folder, "misspelt", {1: 1}, "max_batch_siz: 8")
    return folder


@pytest.fixture(scope="module")
def daemon(repository: Path) -> Iterator[RunningDaemon]:
    with RunningDaemon.start(model_repository=(str(repository),), **SETTINGS) as running:
        eventually(
            lambda: all(one.state != "loading" for one in running.client.repository()),
            "loaded",
            300,
        )
        yield running


def ask(daemon: RunningDaemon, model: str, version: int | None = None, x: Any = X) -> float:
    version_of = {} if version is None else {"model_version": str(version)}
    return float(infer_once(daemon, model, {"x": x}, "grpc", **version_of)["y"][0, 0])


def test_explicit_control_loads_named_models_and_the_steps_of_ensembles(
    daemon: RunningDaemon,
) -> None:
    found = {one.name: one for one in daemon.client.repository()}
    ready = {name: one.served_by for name, one in found.items() if one.state == "ready"}
    assert ready == {
        "tenfold": "workers", "twice": "workers", "versions": "workers",
        "all": "tritonserver", "pipe": "tritonserver", "stock": "tritonserver",
    }  # fmt: skip
    assert found["versions"].versions == [1, 2, 5]
    assert found["completing"].state == "unloaded"
    assert "max_batch_siz" in found["misspelt"].reason
    assert ask(daemon, "pipe") == 20
    assert ask(daemon, "all") == 200
    assert ask(daemon, "stock") == 3


def test_the_status_shows_models_that_tritonserver_runs_itself(daemon: RunningDaemon) -> None:
    models = {model.name: model for model in daemon.client.models()}
    tritonservers = {name for name, one in models.items() if one.info().served_by == "tritonserver"}
    assert tritonservers == {"all", "pipe", "stock"}
    models["stock"].wait_ready()
    assert models["stock"].instances == []
    assert models["stock"].url.endswith("/v2/models/stock")
    with pytest.raises(ModelNotFoundError, match="repository unload stock"):
        models["stock"].unregister()
    for word in ("status", "models"):
        table = command(word, "--runtime-dir", daemon.config.runtime_dir).stdout
        (line,) = [one for one in table.splitlines() if one.startswith("stock ")]
        assert "served by tritonserver" in line
        assert "ready" in line


def test_each_version_runs_its_own_code(daemon: RunningDaemon) -> None:
    assert [ask(daemon, "versions", version) for version in (1, 2, 5, None)] == [1, 2, 5, 5]
    before = {one.version: one.pid for one in daemon.client.model("versions").instances}
    assert set(before) == {1, 2, 5}
    psutil.Process(before[2]).kill()

    def replaced() -> bool:
        now = {one.version: one.pid for one in daemon.client.model("versions").instances}
        return now[2] not in (None, before[2])

    eventually(replaced, "a worker for version 2")
    assert [ask(daemon, "versions", version) for version in (1, 2, 5)] == [1, 2, 5]
    after = {one.version: one.pid for one in daemon.client.model("versions").instances}
    assert {**after, 2: 0} == {**before, 2: 0}


def test_an_ensemble_is_unavailable_without_its_steps(daemon: RunningDaemon) -> None:
    client = daemon.client
    client.unload_model("twice")
    assert client.model("pipe").info().state == "not_ready"
    with pytest.raises(InferenceServerException, match="pipe"):
        ask(daemon, "pipe")
    client.load_model("twice")
    client.model("pipe").wait_ready()
    eventually(functools.partial(Inference("grpc", daemon.grpc).is_ready, "all"), "all is ready")
    assert ask(daemon, "all") == 200


def test_a_registered_callable_can_be_a_step(daemon: RunningDaemon) -> None:
    client = daemon.client
    for ensemble, text in (("lost", "nobody"), ("with-registered", "plus")):
        with pytest.raises(RegistrationError, match=text):
            client.load_model(ensemble)

    def plus(requests: Any) -> Any:
        return [{"y": request["x"] + 1} for request in requests]

    tensors = [Tensor((4,), np.float32, "x")], [Tensor((4,), np.float32, "y")]
    client.register(plus, "plus", *tensors, ModelConfig(max_batch_size=8))
    client.load_model("with-registered")
    assert ask(daemon, "with-registered") == 22


def test_a_reload_serves_changed_files_and_fails_no_request(
    daemon: RunningDaemon, repository: Path
) -> None:
    client = daemon.client
    folder = repositories.add_multiplier(repository, "moving", {1: 1})
    client.load_model("moving")
    stop = threading.Event()
    seen = [ask(daemon, "moving")]

    def keep_asking() -> None:
        while not stop.is_set():
            seen.append(ask(daemon, "moving"))

    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(keep_asking) for _ in range(2)]
        try:
            (folder / "1" / "factor.py").write_text("FACTOR = 7.0\n")  # another size, too
            client.load_model("moving")
            eventually(lambda: seen[-1] == 7, "the changed file answers")
            (folder / "1" / "factor.py").write_text("raise ValueError('no factor')\n")
            with pytest.raises(RegistrationError, match="no factor"):
                client.load_model("moving")
            assert ask(daemon, "moving") == 7
        finally:
            stop.set()
        for one in asking:
            one.result()  # raises what a request raised
    assert set(seen) == {1, 7}
    client.unload_model("moving")
    with pytest.raises(InferenceServerException, match="moving"):
        ask(daemon, "moving")


def test_a_configuration_can_come_with_the_load_or_from_the_model(
    daemon: RunningDaemon, repository: Path
) -> None:
    client = daemon.client
    client.load_model("completing")
    assert ask(daemon, "completing") == -1
    assert client.model("completing").info().config["max_batch_size"] == 4
    repositories.add_multiplier(repository, "chosen", {1: 1, 2: 2, 3: 3})
    tensor = {"data_type": "TYPE_FP32", "dims": [4]}
    config = {
        "backend": "python",
        "max_batch_size": 2,
        "input": [{"name": "x", **tensor}],
        "output": [{"name": "y", **tensor}],
        "version_policy": {"latest": {"num_versions": 2}},
        "instance_group": [{"count": 2, "kind": "KIND_CPU"}],
    }
    client.load_model("chosen", config)
    model = client.model("chosen")
    assert model.info().versions == [2, 3]
    assert [(one.index, one.version) for one in model.instances] == [(0, 2), (0, 3), (1, 2), (1, 3)]
    assert [ask(daemon, "chosen", version) for version in (2, 3)] == [2, 3]


def test_all_models_are_served_after_tritonserver_was_killed(daemon: RunningDaemon) -> None:
    before = daemon.client.status().server.pid
    assert before is not None
    psutil.Process(before).kill()

    def answers() -> bool:
        if daemon.client.status().server.pid in (None, before):
            return False
        try:
            return ask(daemon, "all") == 200 and ask(daemon, "versions", 2) == 2
        except InferenceServerException:  # it is being started
            return False

    eventually(answers, "ensembles and versions answer again", 200)
