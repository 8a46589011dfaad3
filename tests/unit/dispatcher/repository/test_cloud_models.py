"""A model in a bucket for which tritonserver has no backend: requests get the reason and the fix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.simulated_daemon import SimulatedDaemon
from fakes.triton.fake_server import FakeServer, Obstacle
from fakes.triton.repository_requests import load, reason

from pytriton._host.install.python_on_demand import PythonOnDemand
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.repository.model_loader import cloud_failure

Start = Callable[..., SimulatedDaemon]


def test_reason_names_what_a_bucket_can_hold(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("python", "pytriton", "pytriton_native"):
        (tmp_path / "backends" / name).mkdir(parents=True)

    async def repository_states(server: FakeServer) -> dict[str, str]:
        return {"classifier": ""}

    async def no_python(python: PythonOnDemand, model: str) -> None:
        """tritonserver's own python backend is not needed."""

    monkeypatch.setattr(FakeServer, "repository_states", repository_states)
    monkeypatch.setattr(PythonOnDemand, "ensure_if_possible", no_python)
    sim = start(model_repository=("s3://bucket/models",), model_control_mode="explicit")
    sim.server.obstacles["classifier"] = Obstacle("refuse")
    for said in (load(sim, "classifier"), reason(sim, "classifier")):
        assert said.startswith("tritonserver did not load classifier: no\nModels in cloud storage")
        assert "it has their backend (available: python)" in said
        assert "Workers also serve ONNX, " in said
        assert "--model-repository FOLDER" in said


def test_available_backends_exclude_our_own(tmp_path: Path) -> None:
    """With the kind and traceback of tritonserver's error, and also if it has no backend at all."""
    said = RemoteFailure(ErrorKind.UNAVAILABLE, "it said no\n", "its traceback")
    bare = cloud_failure(said, tmp_path)
    for name in ("openvino", "python", "pytriton", "pytriton_native"):
        (tmp_path / name).mkdir()
    failure = cloud_failure(said, tmp_path)
    assert (failure.kind, failure.traceback) == (said.kind, said.traceback)
    assert failure.text.startswith("it said no\nModels in cloud storage are served by tritonserver")
    assert "(available: openvino, python)" in failure.text
    assert "(available: none)" in bare.text
