"""A pod of the Helm chart with a real daemon: each probe, the hook and the init containers do their job."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.charts.chart import only, render
from support.charts.chart_pod import Pod
from support.ports import lasting_port
from support.real_daemon import eventually

from pytriton._host.client_keys import KeyStore
from pytriton.daemon import connect

PORTS = ("http", "grpc", "metrics", "management", "openai")
#: A Triton Python model, as a value of the chart.
FILES = {
    "twice/1/model.py": """
import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(one, "x").as_numpy()) for one in requests]

    def answer(self, x):
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", 2 * x)])
""",
    "twice/config.pbtxt": """
backend: "python"
input [{ name: "x" data_type: TYPE_FP32 dims: [1] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [1] }]
""",
}
#: A declared callable, which holds a request as long as it is told to.
MODULES = {
    "coalesce.py": """
import os, pathlib, time
import numpy as np
from pytriton import declare
from pytriton.decorators import batch
from pytriton.model_config import Tensor

X = [Tensor(name="x", dtype=np.float32, shape=(1,))]
Y = [Tensor(name="y", dtype=np.float32, shape=(1,))]

@declare(name="held", inputs=X, outputs=Y)
@batch
def infer_fn(x):
    folder = pathlib.Path(os.environ["HOLD"])
    if x[0, 0] < 0:
        (folder / "begun").touch()
        while not (folder / "go").exists():
            time.sleep(0.01)
    return {"y": -x}
""",
    "talk.py": """
from pytriton import declare

@declare(openai="chat")
async def talk(request):
    yield request.messages[-1].text.upper()
""",
}


@pytest.fixture(scope="module")
def hold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder whose files block requests to `held`."""
    return tmp_path_factory.mktemp("hold")


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("alice") / "alice.key_secret"


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory, key_file: Path) -> Path:
    """A Secret as in docs/operations/kubernetes.md: the keys of the server, and the public keys of its clients."""
    keys = KeyStore(tmp_path_factory.mktemp("keys") / "keys")
    keys.make_server_key()
    keys.add("alice", key_file)
    flat = tmp_path_factory.mktemp("secret")
    for file in (*keys.folder.glob("server.*"), *keys.folder.glob("clients/*")):
        (flat / file.name).write_text(file.read_text())
    return flat


@pytest.fixture(scope="module")
def pod(hold: Path, secret: Path) -> Iterator[Pod]:
    """A pod whose init containers have run and whose daemon is ready."""
    values = {
        "listenAddress": "127.0.0.1",
        "ports": {name: lasting_port() for name in PORTS},
        "control": {"enabled": True, "port": lasting_port(), "keysSecret": "keys"},
        "models": {"files": FILES, "modules": MODULES, "register": ["held:infer_fn", "talk:talk"]},
        "environment": [{"name": "HOLD", "value": str(hold)}],
        "preStopSeconds": 1,
    }
    with Pod(render(values), {"keys": secret}) as pod:
        pod.run_init_containers()
        pod.start()
        pod.wait_for("startup")
        pod.wait_for("readiness")
        yield pod


def ask(pod: Pod, model: str, x: float) -> float:
    tensor = {"name": "x", "shape": [1], "datatype": "FP32", "data": [x]}
    if model == "held":
        tensor["shape"] = [1, 1]
    body = json.dumps({"inputs": [tensor]}).encode()
    url = f"http://127.0.0.1:{pod.port('http')}/v2/models/{model}/infer"
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=120) as answer:
        return float(json.load(answer)["outputs"][0]["data"][0])


def _refuses(pod: Pod) -> bool:
    try:
        ask(pod, "twice", 1)
    except urllib.error.HTTPError as error:
        error.close()
        return True
    except OSError:
        return True
    return False


def test_a_ready_pod_serves_files_and_modules(pod: Pod) -> None:
    """It becomes ready after both: the model of a ConfigMap, and the callable that the init container registered."""
    assert ask(pod, "twice", 4) == 8
    assert ask(pod, "held", 4) == -4
    assert pod.probe("liveness")


def test_the_monitors_scrape_the_daemon_and_tritonserver(pod: Pod) -> None:
    """At the ports and paths that ServiceMonitor and PodMonitor name."""
    objects = render({"metrics": {"podMonitor": {"enabled": True}}})
    (endpoint,) = only(objects, "PodMonitor")["spec"]["podMetricsEndpoints"]
    url = f"http://127.0.0.1:{pod.port(endpoint['port'])}{endpoint['path']}"
    with urllib.request.urlopen(url, timeout=60) as answer:
        text = answer.read().decode()
    assert "pytriton_" in text
    assert "nv_inference_queue_duration_us" in text  # what the autoscaler asks for


def test_the_openai_api_answers_at_its_port(pod: Pod) -> None:
    """For a model that the init container registered."""
    question = {"model": "talk", "messages": [{"role": "user", "content": "hello"}]}
    url = f"http://127.0.0.1:{pod.port('openai')}/v1/chat/completions"
    body = json.dumps(question).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=60) as answer:
        assert json.load(answer)["choices"][0]["message"]["content"] == "HELLO"


def test_a_client_connects_with_keys_of_the_secret(pod: Pod, key_file: Path) -> None:
    address = f"tcp://127.0.0.1:{pod.port('control')}"
    with connect(address, key_file=key_file, timeout_s=60) as client:
        assert {one.name for one in client.models()} >= {"held"}


def test_a_terminating_pod_finishes_its_requests(pod: Pod, hold: Path) -> None:
    """It is not ready after the hook, serves until SIGTERM, and exits when all requests are answered."""
    (hook,) = pod.container["lifecycle"]["preStop"].values()
    with ThreadPoolExecutor(2) as threads:
        held = threads.submit(ask, pod, "held", -1)
        eventually((hold / "begun").exists, "the request is with the worker")
        hooked = threads.submit(pod.run, hook["command"])
        while not hooked.done():
            assert ask(pod, "twice", 1) == 2
        assert not pod.probe("readiness")
        assert pod.probe("liveness")
        assert hooked.result().returncode == 0
        assert pod.process is not None
        pod.process.send_signal(signal.SIGTERM)
        eventually(lambda: _refuses(pod), "the pod takes no more")
        assert not held.done()
        (hold / "go").touch()
        assert held.result(60) == 1
    assert pod.process.wait(60) == 0
    assert not pod.probe("liveness")
    assert not pod.probe("startup")
