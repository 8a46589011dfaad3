"""Statements of BentoML's guide about its runner, and its omissions, with one runner's own daemon."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.models import repositories
from support.ports import lasting_port
from support.real_daemon import eventually
from tritonclient.grpc import InferInput, InferRequestedOutput

from pytriton.exceptions import RegistrationError
from pytriton.model_config import ModelConfig, Tensor
from pytriton.runner import Runner, RunnerArgumentError

X = np.ones((1, 4), np.float32)
PACKAGED = Path(__file__).parents[3] / "examples" / "packaging" / "models"
CONFIG = f"""
{repositories.PYTHON_CONFIG}
dynamic_batching {{ max_queue_delay_microseconds: 500000 preferred_batch_size: [ 4 ] }}
version_policy {{ all {{ }} }}
"""
#: Of an ONNX model with further files that tritonserver reads itself.
LABELLED = """
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] label_filename: "names/labels.txt" } ]
model_warmup [ {
  name: "sample" batch_size: 1
  inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 4 ] input_data_file: "x.bin" } }
} ]
"""
#: Of a model that is only ever asked by four at once: it waits for the fourth, however late that comes.
PATIENT = CONFIG.replace("500000", "50000000")


@pytest.fixture(scope="module")
def port() -> int:
    return lasting_port()


@pytest.fixture(scope="module")
def arguments(port: int) -> list[str]:
    return [
        f"--grpc-port={port}",
        "--model-control-mode=explicit",
        "--load-model=batched",
        "--load-model=together",
        "--load-model=normalize",
    ]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("models")
    files = {f"{version}/model.py": repositories.PYTHON_MODEL.encode() for version in (1, 2)}
    for name in ("batched", "infer"):
        repositories.add(repository, name, files, CONFIG)
    repositories.add(repository, "together", files, PATIENT)
    more = {"names/labels.txt": b"a\nb\nc\nd\n", "warmup/x.bin": bytes(16)}
    repositories.add_affine(repository, "labelled", {1: 2.0}, LABELLED)
    repositories.add(repository, "labelled", more)
    return repository


@pytest.fixture(scope="module")
def runner(repository: Path, arguments: list[str]) -> Iterator[Runner]:
    with Runner("reference", [repository, PACKAGED], cli_args=arguments) as made:
        yield made


def test_a_port_in_the_options_is_used(runner: Runner, port: int, arguments: list[str]) -> None:
    """BentoML's runner ignores it. Addresses are loopback addresses, and the caller's list is not changed."""
    status = runner.link().client.status()
    assert runner.link().url.without_scheme == f"127.0.0.1:{port}"
    urls = (status.server.http_url, status.server.grpc_url, status.server.metrics_url)
    assert all("//127.0.0.1:" in url for url in urls)
    assert arguments[0] == f"--grpc-port={port}"
    assert len(arguments) == 5


def test_the_packaged_repository_is_served(runner: Runner) -> None:
    """The repository of examples/packaging, with images of any size."""
    for height, width in ((1, 2), (3, 1)):
        images = np.full((2, height, width, 3), 255, np.uint8)
        normalized = runner.normalize.run(images).as_numpy("normalized")
        assert normalized.dtype == np.float32
        assert (normalized == np.ones(images.shape)).all()


def test_metrics_are_served(runner: Runner) -> None:
    runner.batched.run(X)
    with urllib.request.urlopen(runner.link().client.status().server.metrics_url) as page:
        text = page.read().decode()
    assert 'nv_inference_request_success{model="batched",version="2"}' in text


def test_a_model_named_like_a_method_is_reached_by_index(runner: Runner) -> None:
    """The model is loaded at run time in explicit mode; the method remains the method."""
    runner.sync.load_model("infer")
    assert runner["infer"].run(X).as_numpy("y")[0, 0] == 5
    assert callable(runner.infer)


def test_requests_are_batched_by_triton(runner: Runner) -> None:
    """Four concurrent requests form one batch: there are fewer executions than inferences."""

    def counts() -> tuple[int, int]:
        found = runner.sync.get_inference_statistics("together", "2", as_json=True)
        (model,) = found["model_stats"]
        return int(model.get("inference_count", 0)), int(model.get("execution_count", 0))

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda value: runner.together.run(X * value), range(1, 5)))
    assert [one.as_numpy("y")[0, 0] for one in answers] == [5, 10, 15, 20]
    # They are counted after their answers, and not all figures at once.
    eventually(lambda: counts()[0] >= 4 and counts()[1] > 0, "they are counted")
    inferences, executions = counts()
    assert inferences == 4
    assert executions < 4


def test_a_stream_of_requests_and_responses(runner: Runner) -> None:
    """tritonclient's `stream_infer`, awaited; over HTTP it is an error."""

    def count(requests: Any) -> Any:
        for request in requests:
            for number in range(int(request["n"].flat[0])):
                yield [{"number": np.array([number], np.int32)}]

    tensors = [Tensor((1,), np.int32, "n")], [Tensor((1,), np.int32, "number")]
    config = ModelConfig(decoupled=True, batching=False)
    runner.link().client.register(count, "count", *tensors, config)
    tensor = runner.link().sync.module.InferInput("n", [1], "INT32")
    tensor.set_data_from_numpy(np.array([3], np.int32))

    async def questions() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "count", "inputs": [tensor]}

    async def collect(asked: Runner) -> list[int]:
        found = []
        async for result, error in asked.stream_infer(questions()):
            assert error is None
            found.append(int(result.as_numpy("number")[0]))
        return found

    assert asyncio.run(collect(runner)) == [0, 1, 2]
    over_http = Runner("http", daemon=runner.link().client, tritonserver_type="http")
    with pytest.raises(RunnerArgumentError, match="stream_infer requires gRPC"):
        asyncio.run(collect(over_http))
    over_http.close()


def test_label_and_warm_up_files_of_a_model_are_found(runner: Runner, repository: Path) -> None:
    """Workers serve the model, tritonserver reads these files from its folder, as in Triton's own examples."""
    runner.sync.load_model("labelled")
    x = InferInput("x", [1, 4], "FP32").set_data_from_numpy(np.array([[1, 2, 4, 3]], np.float32))
    best = [InferRequestedOutput("y", class_count=1)]
    answer = runner.sync.infer("labelled", [x], outputs=best).as_numpy("y")
    assert answer.tolist() == [[b"8.000000:2:c"]]
    (repository / "labelled" / "warmup" / "x.bin").unlink()
    with pytest.raises(RegistrationError, match=r"warmup/x\.bin"):
        runner.sync.load_model("labelled")
    assert runner.labelled.run(X).as_numpy("y").tolist() == [[2.0] * 4]
