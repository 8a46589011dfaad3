"""The runner with a real daemon and a model repository: BentoML's guide with only its import changed."""

from __future__ import annotations

import asyncio
import functools
import json
import subprocess
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
from support.models.digits import digits
from support.models.inference import Array
from support.real_daemon import RunningDaemon, eventually

from pytriton.client.exceptions import PyTritonClientError, PyTritonClientInferenceServerError
from pytriton.exceptions import ModelNotFoundError, PyTritonInvalidOperationError
from pytriton.model_config import ModelConfig, Tensor
from pytriton.runner import InferResult, Runner, RunnerArgumentError

pytest.importorskip("onnxruntime")
#: The first test waits for all models of the repository.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repositories.add_five(tmp_path_factory.mktemp("models"), digits())


@pytest.fixture(scope="module")
def daemon(repository: Path) -> Iterator[RunningDaemon]:
    with RunningDaemon.start(
        readiness="all_attempted",  # one of the models cannot be served
        model_repository=(str(repository),),
        python_backend_model=("native",),
    ) as running:
        eventually(
            lambda: all(one.state != "loading" for one in running.client.repository()),
            "loaded",
            300,
        )
        yield running


@pytest.fixture(scope="module", params=["grpc", "http"])
def runner(daemon: RunningDaemon, request: pytest.FixtureRequest) -> Iterator[Runner]:
    made = Runner("triton_runner", tritonserver_type=request.param, daemon=daemon.client)
    yield made
    made.close()


def test_the_models_classify_real_digits(runner: Runner) -> None:
    _, _, images, labels = digits()
    by_onnx = runner.onnx_mnist.run(images.reshape(-1, 1, 8, 8).astype(np.float32))
    assert (by_onnx.as_numpy("OUTPUT__0").argmax(axis=1) == labels).mean() > 0.9
    by_sklearn = runner["sklearn-digits"].run(images[:64])
    assert (by_sklearn.as_numpy("predict")[:, 0] == labels[:64]).mean() > 0.9
    assert np.allclose(
        by_sklearn.as_numpy("predict_proba"), by_onnx.as_numpy("OUTPUT__0")[:64], atol=1e-4
    )


def test_the_snippets_of_the_guide_work(runner: Runner) -> None:
    triton_runner = runner
    triton_runner.init_local()
    result = triton_runner.onnx_mnist.run(
        np.zeros((1, 8, 8))
    )  # float64, and without the first axis
    assert isinstance(result, InferResult)
    assert result.as_numpy("OUTPUT__0").shape == (1, 10)
    output = result.get_output("OUTPUT__0", as_json=True)
    assert output["name"] == "OUTPUT__0"
    assert output["datatype"] == "FP32"
    plain, response = result.get_output("OUTPUT__0"), result.get_response()
    assert (plain["name"] if isinstance(plain, dict) else plain.name) == "OUTPUT__0"
    name = response["model_name"] if isinstance(response, dict) else response.model_name
    assert name == "onnx_mnist"
    assert result.get_response(as_json=True)["model_name"] == "onnx_mnist"

    async def serve() -> Array:
        answer = await triton_runner.onnx_mnist.async_run(INPUT__0=np.zeros((1, 8, 8)))
        return answer.as_numpy("OUTPUT__0")

    assert np.array_equal(asyncio.run(serve()), result.as_numpy("OUTPUT__0"))
    assert asyncio.run(serve()).shape == (1, 10)  # in another event loop


def test_run_works_inside_a_running_event_loop(runner: Runner) -> None:
    async def serve() -> tuple[Array, Array]:
        directly = runner.scaled.run(np.ones((1, 4)))
        threaded = await asyncio.to_thread(runner.scaled.run, np.ones((1, 4)))
        return directly.as_numpy("y"), threaded.as_numpy("y")

    first, second = asyncio.run(serve())
    assert first.tolist() == second.tolist() == [[4.0] * 4]


def test_the_version_policy_is_followed(runner: Runner) -> None:
    x = np.ones((2, 4), np.float32)
    assert runner.scaled.run(x).as_numpy("y")[0, 0] == 4
    assert runner.scaled.version(1).run(x).as_numpy("y")[0, 0] == 2
    assert runner.scaled.version("3").run(x).as_numpy("y")[0, 0] == 4
    with pytest.raises(PyTritonClientInferenceServerError, match=r"version 2"):
        runner.scaled.version(2).run(x)
    with pytest.raises(RunnerArgumentError, match="positive integer, got 0"):
        runner.scaled.version(0)


def test_concurrent_requests_reach_the_versions_they_name(runner: Runner) -> None:
    x = np.ones((1, 4), np.float32)

    def ask(version: int) -> float:
        return float(runner.scaled.version(version).run(x).as_numpy("y")[0, 0])

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, [1, 3] * 40))
    assert answers == [2.0, 4.0] * 40


def test_tritonserver_serves_models_of_its_own_backends(
    runner: Runner, daemon: RunningDaemon
) -> None:
    assert runner.native.run(np.ones((2, 4))).as_numpy("y").tolist() == [[5.0] * 4] * 2
    served = {one.name: one.served_by for one in daemon.client.repository()}
    assert served["native"] == "tritonserver"
    assert served["onnx_mnist"] == "workers"


def test_wrong_calls_are_refused_before_a_request_is_sent(runner: Runner) -> None:
    x = np.ones((1, 4), np.float32)
    wrong: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((x,), {"x": x}, "either by position or by name"),
        ((x, x), {}, r"has 1 inputs \(x \(FP32 \[4\]\)\), got 2"),
        ((), {}, "requires the input 'x'"),
        ((), {"z": x}, "has no input 'z'; its inputs are x"),
        ((x[:, :3],), {}, r"shape \[1, 3\], which does not match the batch, then \[4\]"),
        ((np.ones((5, 4)),), {}, "at most 4 rows, got 5"),
        ((np.array([["a"] * 4]),), {}, "takes FP32 .*got <U1"),
        ((1j * x,), {}, "takes FP32 .*got complex64"),
        ((object(),), {}, "cannot be an object"),
        (([[1.0, 2.0], [3.0]],), {}, "not a tensor|takes FP32"),
    ]
    for positional, named, text in wrong:
        with pytest.raises(RunnerArgumentError, match=text):
            runner.scaled.run(*positional, **named)
        with pytest.raises(RunnerArgumentError, match=text):
            asyncio.run(runner.scaled.async_run(*positional, **named))


def test_a_model_that_is_not_served_says_why(runner: Runner) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no model 'nonesuch'; models: .*onnx_mnist"):
        runner.nonesuch.run(1)
    with pytest.raises(ModelNotFoundError, match=r"spoilt.*failed.*'z'.*its inputs are x"):
        runner.spoilt.run(1)
    with pytest.raises(ModelNotFoundError, match=r"spoilt.*failed"):
        asyncio.run(runner.spoilt.async_run(1))


def test_an_unknown_output_is_reported_with_those_there_are(runner: Runner) -> None:
    result = runner.scaled.run(np.ones((1, 4)))
    for ask in (result.as_numpy, result.get_output):
        with pytest.raises(RunnerArgumentError, match="no output 'q'; its outputs are y"):
            ask("q")
    with pytest.raises(RunnerArgumentError, match="no output 'q'; its outputs are y"):
        runner.scaled.options(outputs=["q"]).run(np.ones((1, 4)))


def test_options_of_a_request_reach_the_server(runner: Runner) -> None:
    answer = runner.scaled.options(request_id="seven", outputs=["y"]).run(np.ones((1, 4)))
    assert answer.get_response(as_json=True)["id"] == "seven"
    with pytest.raises(RunnerArgumentError, match="Unknown option 'prio'"):
        runner.scaled.options(prio=1)
    other = "query_params" if runner.link().url.is_grpc else "client_timeout"
    with pytest.raises(RunnerArgumentError, match=rf"option '{other}' is not supported over"):
        runner.scaled.options(**{other: 1}).run(np.ones((1, 4)))


def test_the_runner_can_call_registered_callables(runner: Runner, daemon: RunningDaemon) -> None:
    def count(requests: Any) -> Any:
        for request in requests:
            for number in range(int(request["n"].flat[0])):
                yield [{"number": np.array([number], np.int32)}]

    if "count" not in runner.models():
        daemon.client.register(
            count,
            "count",
            [Tensor((1,), np.int32, "n")],
            [Tensor((1,), np.int32, "number")],
            ModelConfig(decoupled=True, batching=False),
        )
    assert {"count", "scaled"} <= set(runner.models())
    if runner.link().url.is_grpc:
        numbers = [int(one.as_numpy("number")[0]) for one in runner["count"].stream([3])]
        assert numbers == [0, 1, 2]

        async def collect() -> list[int]:
            stream = runner["count"].async_stream(n=[4])
            return [int(one.as_numpy("number")[0]) async for one in stream]

        assert asyncio.run(collect()) == [0, 1, 2, 3]
    else:
        with pytest.raises(RunnerArgumentError, match="requires gRPC"):
            list(runner["count"].stream([3]))


def as_json(answer: Any) -> Any:
    return json.loads(json.dumps(answer))


def test_the_methods_of_tritonclient_work(runner: Runner) -> None:
    calls = runner.sync
    assert calls.is_server_live()
    assert calls.is_server_ready()
    assert calls.is_model_ready("scaled")
    assert not calls.is_model_ready("scaled", "2")
    assert as_json(calls.get_server_metadata(as_json=True))["name"] == "triton"
    config = as_json(calls.get_model_config("scaled", as_json=True))
    assert config.get("config", config)["max_batch_size"] == 4
    assert as_json(calls.get_model_metadata("scaled", as_json=True))["versions"] == ["1", "3"]
    statistics = as_json(calls.get_inference_statistics("scaled", as_json=True))
    assert {one["name"] for one in statistics["model_stats"]} == {"scaled"}
    index = calls.get_model_repository_index(as_json=True)
    models = {one["name"]: one for one in (index if isinstance(index, list) else index["models"])}
    assert models["onnx_mnist"]["state"] == "READY"
    assert "its inputs are x" in models["spoilt"]["reason"]
    settings = as_json(calls.update_log_settings({"log_verbose_level": 1}, as_json=True))
    assert "1" in str(settings.get("settings", settings)["log_verbose_level"])
    calls.update_log_settings({"log_verbose_level": 0})
    assert "log_info" in str(as_json(calls.get_log_settings(as_json=True)))
    assert "trace_rate" in str(as_json(calls.get_trace_settings(as_json=True)))
    assert "trace_rate" in str(
        as_json(calls.update_trace_settings(settings={"trace_rate": "9"}, as_json=True))
    )
    assert "gpu" not in json.dumps(calls.get_cuda_shared_memory_status(as_json=True))


def test_shared_memory_is_registered_and_unregistered(runner: Runner, tmp_path: Path) -> None:
    name = f"runner-test-pytriton-{tmp_path.parent.name}-{threading.get_ident()}"
    path = Path("/dev/shm") / name
    path.write_bytes(bytes(64))
    try:
        runner.sync.register_system_shared_memory("mine", f"/{name}", 64)
        assert "mine" in json.dumps(runner.sync.get_system_shared_memory_status(as_json=True))
        runner.sync.unregister_system_shared_memory("mine")
        assert "mine" not in json.dumps(runner.sync.get_system_shared_memory_status(as_json=True))
        with pytest.raises(PyTritonClientInferenceServerError):  # this machine has no GPU
            runner.sync.register_cuda_shared_memory("gpu", b"x" * 64, 0, 64)
        runner.sync.unregister_cuda_shared_memory()
    finally:
        path.unlink()


def test_calls_are_coroutines_as_in_the_guide(runner: Runner) -> None:
    async def serve() -> None:
        assert await runner.is_server_ready()
        assert await runner.is_model_ready("native")
        await runner.unload_model("native")
        assert not await runner.is_model_ready("native")
        await runner.load_model("native")
        assert await runner.is_model_ready("native")
        await runner.unload_model("scaled")
        assert not await runner.is_model_ready("scaled")
        with pytest.raises(ModelNotFoundError, match=r"scaled.*unloaded"):
            await runner.scaled.async_run(np.ones((1, 4)))
        await runner.load_model("scaled")
        assert (await runner.scaled.async_run(np.ones((1, 4)))).as_numpy("y")[0, 0] == 4
        module = runner.link().sync.module
        tensor = module.InferInput("x", [1, 4], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 4), np.float32))
        answer = await runner.infer("scaled", [tensor], model_version="1")
        assert answer.as_numpy("y")[0, 0] == 2
        assert (await runner.scaled.async_run(tensor)).as_numpy("y")[0, 0] == 4

    asyncio.run(serve())


def test_versions_change_under_load_without_a_failed_request(
    daemon: RunningDaemon, repository: Path
) -> None:
    runner = Runner("load", daemon=daemon.client)
    repositories.add_affine(repository, "moving", {1: 2.0})
    runner.sync.load_model("moving")
    x = np.ones((1, 4), np.float32)
    stop = threading.Event()
    seen: list[float] = []

    def newest_is(wanted: float) -> bool:
        return seen[-1:] == [wanted]

    def ask() -> int:
        count = 0
        while not stop.is_set():
            seen.append(float(runner.moving.run(x).as_numpy("y")[0, 0]))
            count += 1
        return count

    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(ask) for _ in range(3)]
        try:
            eventually(functools.partial(newest_is, 2.0), "the first version answers")
            for version in (2, 3):
                repositories.add_affine(repository, "moving", {version: 1.0 + version})
                runner.sync.load_model("moving")
                wanted = 1.0 + version
                eventually(functools.partial(newest_is, wanted), "the version answers")
        finally:
            stop.set()
        assert all(one.result() > 0 for one in asking)  # raises what a request raised
    assert set(seen) == {2.0, 3.0, 4.0}
    runner.close()


def test_a_model_survives_a_failed_reload(daemon: RunningDaemon, repository: Path) -> None:
    runner = Runner("reload", daemon=daemon.client)
    folder = repositories.add_affine(repository, "steady", {1: 2.0})
    runner.sync.load_model("steady")
    (folder / "1" / "model.onnx").write_bytes(b"no ONNX at all")
    with pytest.raises(Exception, match=r"steady.*model\.onnx cannot be loaded"):
        runner.sync.load_model("steady")
    assert runner.steady.run(np.ones((1, 4))).as_numpy("y")[0, 0] == 2
    runner.close()


def test_a_configuration_can_come_with_the_load(daemon: RunningDaemon, repository: Path) -> None:
    runner = Runner("override", daemon=daemon.client)
    repositories.add_affine(repository, "shaped", {1: 2.0, 2: 5.0})
    policy: dict[str, Any] = {"version_policy": {"all": {}}}
    runner.sync.load_model("shaped", config=json.dumps(policy))
    answers = [
        runner.shaped.version(one).run(np.ones((1, 4))).as_numpy("y")[0, 0] for one in (1, 2)
    ]
    assert answers == [2, 5]
    runner.close()


def test_the_command_line_lists_loads_and_unloads(daemon: RunningDaemon) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return command("repository", *words, "--runtime-dir", daemon.config.runtime_dir)

    assert run("unload", "native").stdout == "unloaded native\n"
    states = {one["name"]: one["state"] for one in json.loads(run("list", "--json").stdout)}
    assert states["native"] == "unloaded"
    assert states["spoilt"] == "failed"
    assert run("load", "native").stdout == "loaded native\n"
    table = run("list").stdout
    assert "its inputs are x" in " ".join(table.split())
    refused = run("load", "nonesuch")
    assert refused.returncode
    assert "no model repository has a model 'nonesuch'" in refused.stderr


def test_models_are_served_after_tritonserver_was_killed(daemon: RunningDaemon) -> None:
    runner = Runner("again", daemon=daemon.client)
    before = daemon.client.status().server.pid
    assert before is not None
    psutil.Process(before).kill()

    def answers() -> bool:
        if daemon.client.status().server.pid in (None, before):
            return False
        try:
            x = np.ones((1, 4))
            return bool(runner.scaled.run(x) and runner.native.run(x))
        except (ModelNotFoundError, PyTritonClientError):  # it is being started
            return False

    eventually(answers, "both kinds of models answer again", 200)
    runner.close()


def test_a_closed_runner_raises_an_error(daemon: RunningDaemon) -> None:
    runner = Runner("closed", daemon=daemon.client)
    assert runner.runner_handle_is_ready()
    runner.destroy()
    assert runner.runner_handle_is_ready()
    runner.close()
    with pytest.raises(PyTritonInvalidOperationError, match="'closed' has been closed"):
        runner.scaled.run(1)
