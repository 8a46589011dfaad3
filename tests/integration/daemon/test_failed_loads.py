"""A model that cannot be loaded does no harm, whatever the heap contains and however often the load is retried."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.models.inference import Inference
from support.models.tensors import ONES, X, Y
from support.real_daemon import RunningDaemon, eventually
from support.task_groups import mount, task_group

from pytriton._cli import daemon_connection
from pytriton._cli.errors import CliError
from pytriton._protocol.exit_codes import ExitCode
from pytriton.exceptions import RegistrationError
from pytriton.model_config import ModelConfig

#: Longer than `RunningDaemon.stop` waits: who waits for all of it does not end in time.
_GRACE_S = 250.0
_SAMPLE = {"data_type": "TYPE_FP32", "dims": [2], "zero_data": True}
_WARMUP = [{"name": "first", "batch_size": 2, "inputs": {"x": _SAMPLE}}]
_PBTXT = """
backend: "python" max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
_WARM_PBTXT = (
    _PBTXT
    + """
model_warmup [ { name: "first" batch_size: 1
  inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 2 ] zero_data: true } } } ]
"""
)
_RAISES = """
class TritonPythonModel:
    def execute(self, requests):
        raise ValueError("weights are not there yet")
"""
_HANGS = """
import threading

class TritonPythonModel:
    def initialize(self, args):
        threading.Event().wait()

    def execute(self, requests):
        return []
"""


def _add(requests: Any) -> Any:
    return [{"y": request["x"] + 1} for request in requests]


def _raise(requests: Any) -> Any:
    raise ValueError("weights are not there yet")


@pytest.fixture(scope="module", params=["native", "triton"])
def settings(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """Settings for a daemon whose tritonserver has no uninitialized memory that happens to be zero."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MALLOC_PERTURB_", "165")
        yield {
            "frontend": request.param,
            "tritonserver_options": {"model-load-retry-count": "1000000"},
            "grace_period_s": _GRACE_S,
        }


@pytest.fixture(scope="module")
def module_daemon(settings: dict[str, Any]) -> Iterator[RunningDaemon]:
    with RunningDaemon.start(**settings) as one:
        one.client.register(_add, "other", X, Y, progress=False)
        yield one
        assert one.stop() == ExitCode.OK


@pytest.fixture
def daemon(module_daemon: RunningDaemon) -> Iterator[RunningDaemon]:
    """The module's daemon, which serves `other` and nothing else."""
    with module_daemon.without_new_models():
        yield module_daemon


def put(repository: Path, name: str, config: str, code: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(f'name: "{name}" {config}')
    (repository / name / "1" / "model.py").write_text(code)


def test_an_exception_in_a_warm_up_fails_the_registration(daemon: RunningDaemon) -> None:
    """Of a new model, and of one that is to replace another."""
    server = daemon.server.pid
    config = ModelConfig(extra={"model_warmup": _WARMUP})
    with contextlib.closing(Inference("http", daemon.http)) as inference:
        for served in (["other"], ["other", "cold"]):
            if "cold" in served:
                daemon.client.register(_add, "cold", X, Y, progress=False)
            for _ in range(5):
                with pytest.raises(RegistrationError, match="ValueError: weights are not there"):
                    daemon.client.register(
                        _raise, "cold", X, Y, config, replace=True, progress=False
                    )
            assert daemon.server.pid == server
            assert [model.name for model in daemon.client.models()] == served
            for name in served:
                assert inference.infer(name, {"x": ONES})["y"].tolist() == (ONES + 1).tolist()


@pytest.mark.parametrize("runs_in", ["workers", "tritonserver"])
def test_failing_or_hanging_repository_models_hold_up_nothing(
    settings: dict[str, Any], tmp_path: Path, runs_in: str
) -> None:
    """The status shows them with the model's own exception, and the daemon can exit while one is being loaded."""
    put(tmp_path, "bad", _WARM_PBTXT if runs_in == "workers" else _PBTXT, _RAISES)
    put(tmp_path, "hangs", _PBTXT, _HANGS)
    if runs_in == "tritonserver":
        code = _RAISES.replace("def execute(self, requests)", "def initialize(self, args)")
        (tmp_path / "bad" / "1" / "model.py").write_text(code)
        settings = {**settings, "python_backend_model": ("bad", "hangs")}
    with RunningDaemon.start(model_repository=(str(tmp_path),), **settings) as daemon:
        server = daemon.server.pid
        daemon.client.register(_add, "other", X, Y, progress=False)

        def failed() -> Any:
            models = daemon.client.status().models
            return next((one for one in models if (one.name, one.state) == ("bad", "failed")), None)

        info = eventually(failed, "it has failed")
        assert "weights are not there yet" in (info.error or "")
        states = {one.name: one.state for one in daemon.client.repository()}
        assert states["hangs"] == "loading"
        assert daemon.said().count("weights are not there yet") < 20  # it is not repeated
        assert daemon.server.pid == server
        assert daemon.stop() == ExitCode.OK


def test_a_registration_is_refused_close_to_the_task_limit(daemon: RunningDaemon) -> None:
    if mount() is None:
        pytest.skip("no control group can be made here")
    client, server = daemon.client, daemon.server.pid
    with task_group() as group:
        group.add([psutil.Process(daemon.process.pid), *daemon.children()])
        for room in (3, 12):
            group.limit(group.tasks + room)
            with pytest.raises(RegistrationError, match=r"threads|worker"):
                client.register(_add, "many", X, Y, instances=9, progress=False)
            assert daemon.server.pid == server
        group.limit(None)
        client.register(_add, "many", X, Y, instances=9, progress=False)


def test_models_can_be_removed_and_the_daemon_stopped_without_a_free_task(
    settings: dict[str, Any],
) -> None:
    """tritonserver starts threads to unload a model, and aborts if it cannot."""
    if mount() is None:
        pytest.skip("no control group can be made here")
    with (
        RunningDaemon.start(**settings) as daemon,
        task_group() as group,
        contextlib.closing(Inference("http", daemon.http)) as inference,
    ):
        client, server = daemon.client, daemon.server.pid
        for number in range(6):
            client.register(_add, f"m{number}", X, Y, progress=False)
        group.add([psutil.Process(daemon.process.pid), *daemon.children()])
        group.limit(group.tasks)
        with pytest.raises(RegistrationError, match="worker"):
            client.register(_add, "m0", X, Y, replace=True, progress=False)
        if daemon.config.frontend == "native":
            with pytest.raises(CliError, match=r"was not replaced: .* threads .*pids\.max"):
                daemon_connection.replace_server(daemon.config.rundir)
        assert inference.infer("m0", {"x": ONES})["y"].tolist() == (ONES + 1).tolist()
        client.unregister("m1")
        names = [model.name for model in client.models()]
        assert "m0" in names
        assert "m1" not in names
        group.limit(group.tasks)
        assert group.refused > 0
        assert daemon.server.pid == server
        assert daemon.stop() == ExitCode.OK
        assert "exited before its models were unloaded" not in daemon.said()
