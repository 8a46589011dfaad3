"""Suspending and resuming models with the real tritonserver, with the compiled and the Python proxy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib import request as urlrequest
from urllib.error import HTTPError

import pytest
from support.models.inference import PROTOCOLS, Inference, infer_once
from support.models.tensors import ONES, X, Y
from support.real_daemon import FRONT, RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

from pytriton import Autoscale
from pytriton.client import DecoupledModelClient
from pytriton.daemon import Model
from pytriton.model_config import ModelConfig

AT_ONCE = Autoscale(min=0, max=1, idle_after=0.5)


@pytest.fixture(scope="module")
def python_proxies() -> Iterator[RunningDaemon]:
    """A daemon whose models have Python proxies, which may write bytecode."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"):
            patch.delenv(name, raising=False)
        with RunningDaemon.start(proxy="python") as daemon:
            yield daemon


def echo(requests: Any) -> Any:
    return [{"y": request["x"]} for request in requests]


def stream(requests: Any) -> Any:
    for _ in range(3):
        yield [{"y": request["x"]} for request in requests]


def broken() -> Any:
    raise RuntimeError("no weights")


def until_asleep(model: Model) -> None:
    eventually(
        lambda: model.info().state == "suspended", lambda: f"it is suspended: {model.info()}"
    )
    eventually(lambda: model.instances == [], lambda: f"no worker is left: {model.instances}")


def ready(daemon: RunningDaemon, name: str) -> bool:
    with urlrequest.urlopen(f"http://{daemon.http}/v2/models/{name}/ready", timeout=60) as answer:
        return bool(answer.status == 200)


def answers_of_a_model_that_sleeps(daemon: RunningDaemon) -> list[int]:
    """Send requests over both protocols to a suspended model; return the responses."""
    model = daemon.client.register(echo, "m", X, Y, instances=AT_ONCE, progress=False)

    def ask(number: int) -> list[Any]:
        answer = infer_once(daemon, "m", {"x": ONES * number}, PROTOCOLS[number % 2])["y"]
        return list(answer.reshape(-1))

    until_asleep(model)
    assert ready(daemon, "m")
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, range(8)))
    return [int(one[0]) for one in answers]


def answers_of_a_stream_that_sleeps(daemon: RunningDaemon) -> int:
    """Return the number of responses of a suspended decoupled model."""
    config = ModelConfig(decoupled=True)
    model = daemon.client.register(
        stream, "streams", X, Y, config, instances=AT_ONCE, progress=False
    )
    until_asleep(model)
    with DecoupledModelClient(f"grpc://{daemon.grpc}", "streams") as client:
        return len(list(client.infer_sample(ONES[0])))


def test_requests_to_suspended_models_are_answered(daemon: RunningDaemon) -> None:
    assert answers_of_a_model_that_sleeps(daemon) == list(range(8))
    assert answers_of_a_stream_that_sleeps(daemon) == 3


def test_requests_to_suspended_models_are_answered_by_the_python_proxy(
    python_proxies: RunningDaemon,
) -> None:
    with python_proxies.without_new_models() as daemon:
        assert answers_of_a_model_that_sleeps(daemon) == list(range(8))
        assert answers_of_a_stream_that_sleeps(daemon) == 3


def test_the_python_proxy_runs_in_its_own_environment(python_proxies: RunningDaemon) -> None:
    """It imports the packages of that environment, with NumPy 1, and the daemon's copy of the modules."""
    runtime_dir = Path(python_proxies.config.runtime_dir)
    with python_proxies.without_new_models() as daemon:
        daemon.client.register(echo, "m", X, Y, progress=False)
        eventually(lambda: len(daemon.stubs()) == 1, "the proxies of earlier models have ended")
        (proxy,) = daemon.stubs()
        mapped = {Path(one.path) for one in proxy.memory_maps()}
    (packages,) = {
        path.parents[2] for path in mapped if path.match("numpy/core/_multiarray_umath.*.so")
    }
    environment = (runtime_dir / "proxy-python").resolve()
    assert packages.is_relative_to(environment)
    assert list(packages.glob("numpy-1.*.dist-info"))
    cache = runtime_dir / "backends/pytriton/pytriton/_protocol/__pycache__"
    assert list(cache.glob("__init__.cpython-*.pyc"))


def test_a_lazy_model_is_loaded_by_its_first_request(
    daemon: RunningDaemon, inference: Inference
) -> None:
    model = daemon.client.register(echo, "lazy", X, Y, lazy=True, progress=False)
    assert model.instances == []
    assert ready(daemon, "lazy")
    assert inference.infer("lazy", {"x": ONES})["y"].tolist() == ONES.tolist()
    assert len(model.info().instances) == 1


def test_a_request_that_waits_too_long_is_refused_with_retry_after() -> None:
    def slow() -> Any:
        time.sleep(600)

    with RunningDaemon.start(resume_timeout_s=0.5, grace_period_s=0.1) as daemon:
        daemon.client.register(slow, "slow", X, Y, factory=True, lazy=True, progress=False)
        body = b'{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":[1]}]}'
        with pytest.raises(HTTPError) as refused:
            urlrequest.urlopen(f"http://{daemon.http}/v2/models/slow/infer", body, timeout=60)
        with refused.value as answer:
            assert answer.status == 503
            assert b"(resume_timeout_s): try again later" in answer.read()
            if FRONT == "native":  # NVIDIA's has no words of its own to add
                assert answer.headers["Retry-After"] == "1"
        daemon.client.unregister("slow")


def test_a_lazy_model_that_cannot_be_loaded_says_why(
    daemon: RunningDaemon, inference: Inference
) -> None:
    daemon.client.register(broken, "broken", X, Y, factory=True, lazy=True, progress=False)
    with pytest.raises(InferenceServerException, match="no weights") as failure:
        inference.infer("broken", {"x": ONES}, client_timeout=100)
    assert "UNAVAILABLE" in failure.value.status()
    daemon.client.unregister("broken")
