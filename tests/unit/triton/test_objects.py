"""Triton objects without a server: immediate validation, workspaces, life-cycle policies."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from pytriton.exceptions import (
    ModelNotFoundError,
    PyTritonBadParameterError,
    PyTritonInvalidOperationError,
    PyTritonValidationError,
)
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import (
    DefaultTritonLifecyclePolicy,
    RemoteTriton,
    Triton,
    TritonConfig,
    TritonLifecyclePolicy,
    VertextAILifecyclePolicy,
)
from pytriton.triton.server import new_runtime_dir
from pytriton.utils.workspace import CleanupWarning, Workspace

X = [Tensor(dtype=np.float32, shape=(-1,))]


def bind(
    triton: Triton, name: Any = "m", infer: Any = lambda requests: requests, **more: Any
) -> None:
    triton.bind(name, infer, X, X, **more)


def test_names_are_validated_immediately() -> None:
    with pytest.raises(PyTritonValidationError, match="Model name cannot be empty"):
        bind(Triton(), "")


@pytest.mark.parametrize("infer", [None, [], [len, "len"], "len"])
def test_values_that_are_not_callable_are_refused(infer: Any) -> None:
    wanted = "inference_fn has to be either callable or sequence of callables"
    with pytest.raises(PyTritonValidationError, match=wanted):
        bind(Triton(), infer=infer)


def test_a_name_can_be_bound_once() -> None:
    triton = Triton()
    bind(triton, "Linear")
    with pytest.raises(
        PyTritonInvalidOperationError, match="Cannot add model with the same name twice"
    ):
        bind(triton, "linear")


def test_a_name_can_be_bound_again() -> None:
    """As when a notebook's cell is run twice."""
    triton = Triton()
    bind(triton, "linear")
    bind(triton, "other")
    bind(triton, "linear", infer=len, replace=True)
    assert [(model.name, model.infer_func) for model in triton._models][1:] == [("linear", len)]
    with pytest.raises(PyTritonInvalidOperationError, match=r"replace=True.*unbind\('linear'\)"):
        bind(triton, "LINEAR", replace=True)
    bind(triton, "new", replace=True)


def test_bound_models_can_be_unbound() -> None:
    triton = Triton()
    bind(triton, "linear")
    bind(triton, "other")
    triton.unbind("linear")
    bind(triton, "linear")
    with pytest.raises(
        ModelNotFoundError, match=r"'none' is bound to this server\. Bound models: other, linear"
    ):
        triton.unbind("none")


def test_bound_models_are_freed_with_their_object() -> None:
    with pytest.raises(PyTritonBadParameterError, match=r"connect\(\)\.register"):
        bind(Triton(), ephemeral=False)


def test_outputs_are_not_optional() -> None:
    with pytest.raises(PyTritonValidationError, match="Output tensors cannot be optional"):
        Triton().bind("m", len, X, [Tensor(dtype=np.float32, shape=(1,), optional=True)])


def test_configurations_are_validated_immediately() -> None:
    with pytest.raises(PyTritonBadParameterError, match="`max_batch_size` must be greater"):
        bind(Triton(), config=ModelConfig(max_batch_size=0))


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"keyword argument 'instance' \(did you mean instances\?\)"
    ):
        bind(Triton(), instance=2)
    with pytest.raises(PyTritonBadParameterError, match="'process' or 'thread'"):
        bind(Triton(), isolation="fiber")


def test_a_server_that_was_not_started() -> None:
    triton = Triton()
    with pytest.raises(TimeoutError, match="Triton Inference Server is not ready after timeout"):
        triton.connect()
    assert (triton.is_alive(), triton.is_connected(), triton.stop()) == (False, False, False)
    assert triton.http_url == triton.grpc_url == ""


class Watched(Triton):
    """A server that runs until a liveness check finds nothing alive."""

    def __init__(self, *, stopping: bool) -> None:
        super().__init__()
        self._stopping = (
            stopping  #: it is found so because a thread, or a handler of a signal, stops it
        )

    def _prepare_to_serve(self) -> None:
        self._client = cast(Any, object())
        self._ended.clear()

    def is_alive(self) -> bool:
        if self._stopping:
            self._forget_served()
        return False


@pytest.mark.parametrize("stopping", [True, False])
def test_only_unexpectedly_stopped_workers_count_as_lost(
    stopping: bool, caplog: pytest.LogCaptureFixture
) -> None:
    Watched(stopping=stopping).serve(monitoring_period_s=0.001)
    assert ("A model has no worker left" in caplog.text) is not stopping


def test_arguments_have_names() -> None:
    with pytest.raises(TypeError):
        Triton(TritonConfig())  # type: ignore[call-arg]


def test_policies() -> None:
    assert TritonLifecyclePolicy() == DefaultTritonLifecyclePolicy
    assert TritonLifecyclePolicy(False, True) == VertextAILifecyclePolicy
    assert Triton()._policy is DefaultTritonLifecyclePolicy
    assert Triton(config=TritonConfig(allow_vertex_ai=True))._policy is VertextAILifecyclePolicy


def test_without_launch_at_startup_nothing_starts() -> None:
    policy = TritonLifecyclePolicy(launch_triton_on_startup=False)
    with Triton(triton_lifecycle_policy=policy) as triton:
        assert not triton.is_connected()
        assert triton._server is None


def test_remote_servers_of_this_machine_only() -> None:
    with pytest.raises(PyTritonInvalidOperationError, match="not an address of this machine"):
        RemoteTriton("192.0.2.1:8000").connect()


# ── workspaces ───────────────────────────────────────────────────────────────────────────────────


def test_a_workspace_must_not_exist(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError, match="already exists"):
        Triton(workspace=tmp_path)
    with pytest.raises(FileExistsError):
        Workspace(tmp_path)


def test_an_object_that_never_ran_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTRITON_HOME", str(tmp_path / "home"))
    assert Triton(workspace=tmp_path / "mine").stop() is False
    assert list(tmp_path.iterdir()) == []


def test_the_location_of_workspaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOMEWHERE", str(tmp_path))
    monkeypatch.setenv("PYTRITON_HOME", "$SOMEWHERE/home")
    workspace = Workspace()
    assert workspace.path.parent == tmp_path / "home"
    assert workspace.name.startswith("workspace_")
    assert stat.S_IMODE(workspace.path.stat().st_mode) == 0o700
    assert workspace.is_empty()
    assert workspace.model_store_path == workspace.path / "model-store"
    (workspace.path / "file").touch()
    workspace.clean()
    workspace.clean()
    assert not workspace.exists()


def test_a_workspace_that_cannot_be_removed_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace(tmp_path / "w")
    workspace.path.rmdir()
    workspace.path.touch()  # a file: rmtree refuses it, whoever runs the test
    with pytest.warns(CleanupWarning, match="could not be removed"):
        workspace.clean()


def test_a_runtime_directory_is_short_whatever_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    monkeypatch.setattr("tempfile.tempdir", str(long))
    assert len(os.fsencode(new_runtime_dir())) < 60


_REFUSED = """
import sys
from pytriton.exceptions import DaemonStartError
from pytriton.triton.server import DaemonProcess
folder, said = sys.argv[1:]
file = open(said, "w")  # one of the numbers that were free, or not
server = DaemonProcess({"runtime_dir": folder, "http_port": -5}, lambda *_: None)
server.start()
try:
    server.wait_ready()
except DaemonStartError as error:
    file.write(str(error))
"""


@pytest.mark.programs
@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", ">&-"])
def test_a_script_may_lack_standard_descriptors(tmp_path: Path, closed: str) -> None:
    """As under a service manager that closes them: its daemon still reports."""
    said = tmp_path / "said"
    command = [sys.executable, "-c", _REFUSED, str(tmp_path / "run"), str(said)]
    subprocess.run(f"exec {shlex.join(command)} {closed}", shell=True, check=True, timeout=100)
    assert said.read_text().endswith("http_port: -5 is not a whole number from 0 to 65535")
