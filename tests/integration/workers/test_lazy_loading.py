"""Persisted lazy models after a restart: tritonserver does not have one before the first request for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib import request as urlrequest
from urllib.error import HTTPError

import psutil
import pytest
from support.models.inference import Inference, infer_once
from support.models.tensors import ONES, X, Y
from support.real_daemon import FRONT, RunningDaemon, eventually

import pytriton
from pytriton._cli import daemon_connection

pytestmark = pytest.mark.skipif(
    FRONT == "triton", reason="NVIDIA's frontend has all of them from its start"
)
_NAMES = [f"m{number}" for number in range(16)]


def echo(requests: Any) -> Any:
    return [{"y": request["x"]} for request in requests]


def asks_m0(requests: Any) -> Any:
    return [{"y": pytriton.infer("m0", {"x": request["x"]})["y"] + 1} for request in requests]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon restored from another one, in which the lazy models were registered."""
    folder = str(tmp_path_factory.mktemp("state"))
    with RunningDaemon.start(state_dir=folder) as former:
        former.client.register(asks_m0, "asks", X, Y, progress=False)
        for name in _NAMES:
            former.client.register(echo, name, X, Y, lazy=True, progress=False)
    with RunningDaemon.start(state_dir=folder) as running:
        restored = {"asks": "ready", **dict.fromkeys(_NAMES, "suspended")}
        eventually(lambda: states(running) == restored, lambda: str(states(running)))
        yield running


def states(daemon: RunningDaemon) -> dict[str, str]:
    return {one.name: one.state for one in daemon.client.status().models}


def is_deferred(daemon: RunningDaemon, name: str) -> bool:
    """Return whether tritonserver does not have a model, without sending it a request."""
    info = next(one for one in daemon.client.status().models if one.name == name)
    return info.state == "suspended" and "on the first request" in info.scaling


def infer(daemon: RunningDaemon, name: str, protocol: str = "http") -> bool:
    answer = infer_once(daemon, name, {"x": ONES}, protocol)["y"]
    return bool((answer == ONES).all())


def get(daemon: RunningDaemon, path: str) -> int:
    try:
        with urlrequest.urlopen(f"http://{daemon.http}/v2/{path}", timeout=60) as answer:
            return int(answer.status)
    except HTTPError as error:
        with error:
            return error.code


def test_the_server_is_ready_without_lazy_models(daemon: RunningDaemon) -> None:
    assert is_deferred(daemon, "m15")
    eventually(lambda: get(daemon, "health/ready") == 200, "it says that it is ready")
    assert "loaded into tritonserver on the first request" in daemon.client.explain("m15").verdict


def logs_requests(daemon: RunningDaemon, name: str) -> bool:
    daemon.client.log_requests(name, True)
    return True


_ASKED: dict[str, Callable[[RunningDaemon], object]] = {
    "m1": lambda daemon: infer(daemon, "m1"),
    "m2": lambda daemon: infer(daemon, "m2", "grpc"),
    "m3": lambda daemon: get(daemon, "models/m3/versions/1/ready") == 200,
    "m4": lambda daemon: get(daemon, "models/m4") == 200,
    "m5": lambda daemon: daemon.client.scale("m5", 2, progress=False),
    "m6": lambda daemon: daemon.client.register(
        echo, "m6", X, Y, lazy=True, replace=True, progress=False
    ),
    "m7": lambda daemon: logs_requests(daemon, "m7"),
}


@pytest.mark.parametrize("name", _ASKED)
def test_a_request_loads_a_lazy_model(daemon: RunningDaemon, name: str) -> None:
    assert is_deferred(daemon, name)
    assert _ASKED[name](daemon)
    assert not is_deferred(daemon, name)
    assert infer(daemon, name)


def test_a_probe_loads_no_lazy_model(daemon: RunningDaemon) -> None:
    """Load balancers and fleets probe all models every second."""
    inference = Inference("grpc", daemon.grpc)
    assert [get(daemon, f"models/{name}/ready") for name in ("m14", "m15")] == [200, 200]
    assert inference.is_ready("m14")
    assert not inference.is_ready("nobody")
    inference.close()
    assert get(daemon, "models/nobody/ready") == 400
    assert is_deferred(daemon, "m14")
    assert is_deferred(daemon, "m15")
    assert infer(daemon, "m14")


def test_a_call_from_another_model_loads_a_lazy_model(daemon: RunningDaemon) -> None:
    assert is_deferred(daemon, "m0")
    assert (infer_once(daemon, "asks", {"x": ONES})["y"] == ONES + 1).all()


def test_an_unregistered_lazy_model_is_unknown(daemon: RunningDaemon) -> None:
    assert is_deferred(daemon, "m8")
    daemon.client.unregister("m8")
    assert get(daemon, "models/m8") == 404


def test_a_fleet_lists_lazy_models(daemon: RunningDaemon) -> None:
    assert is_deferred(daemon, "m15")
    assert {one.spec.name for one in daemon.client.registrations()} >= {"m1", "m15"}


def test_a_lazy_model_is_loaded_after_a_server_replacement(daemon: RunningDaemon) -> None:
    psutil.Process(daemon.server.pid).kill()
    with ThreadPoolExecutor(4) as threads:
        asked = ["m9", "m9", "m10", "m1"]
        assert all(threads.map(lambda name: infer(daemon, name), asked))
    daemon_connection.replace_server(daemon.config.rundir)
    assert is_deferred(daemon, "m11")
    assert infer(daemon, "m11")


def test_a_lazy_model_is_loaded_after_an_upgrade(daemon: RunningDaemon) -> None:
    daemon.client.upgrade()
    assert is_deferred(daemon, "m12")
    assert infer(daemon, "m12", "grpc")
    daemon.client.upgrade()
    assert infer(daemon, "m13")
