"""Model specifications: the process that inspects a model's files, instances, and refused models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.models import repositories

from pytriton._host import gpus
from pytriton.dispatcher.repository import folder_spec
from pytriton.dispatcher.repository.folder_spec import (
    WorkerSetup,
    inspect,
    instance_groups,
    specification,
)
from pytriton.dispatcher.repository.model_folders import (
    FoundModel,
    UnservableModel,
    read_model,
    route,
)

#: Prints the request and its environment.
_INSPECTOR = """
import json, os, sys, time

def main():
    request = json.load(sys.stdin)
    print("a library says hello")
    print("a complaint", file=sys.stderr)
    if "sleep" in request:
        time.sleep(1000)
    if "say" in request:
        print(request["say"])
        return
    print(json.dumps({"request": request, "cwd": os.getcwd(), "path": sys.path}))
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "library"
    folder.mkdir()
    (folder / "look_into.py").write_text(_INSPECTOR)
    monkeypatch.setattr(folder_spec, "_INSPECTOR", "look_into")
    return folder


def answer(library: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    model = FoundModel("m", library.parent, {}, {})
    return asyncio.run(inspect(model, request, library, "looking into it"))


def test_the_inspector_runs_in_the_model_s_folder_with_our_library_first(
    library: Path, tmp_path: Path
) -> None:
    found = answer(library, {"what": "é"})
    assert found["request"] == {"what": "é"}
    assert found["cwd"] == str(tmp_path)
    assert found["path"][0] == str(library)


@pytest.mark.parametrize(
    ("request_", "limit_s", "words"),
    [
        ({"say": json.dumps({"error": "it has no input"})}, 60.0, r"^model m: it has no input$"),
        ({"say": "{"}, 60.0, r"looking into it failed: a complaint"),
        ({"say": "\udcff"}, 60.0, r"looking into it failed: a complaint"),
        ({"sleep": True}, 0.5, r"looking into it took longer than 0\.5 s"),
    ],
    ids=["an error", "no JSON", "no text", "too slow"],
)
def test_errors_of_the_inspector_are_reported(
    library: Path,
    monkeypatch: pytest.MonkeyPatch,
    request_: dict[str, Any],
    limit_s: float,
    words: str,
) -> None:
    monkeypatch.setattr(folder_spec, "_INSPECTION_LIMIT_S", limit_s)
    with pytest.raises(UnservableModel, match=words):
        answer(library, request_)


def test_instance_groups_become_workers_and_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(gpus.VARIABLE, "4,GPU-b")  # those that the daemon may use
    assert instance_groups({}) == (1, [])
    cpu = {"count": 2, "kind": "KIND_CPU"}
    assert instance_groups({"instance_group": [cpu]}) == (2, ["", ""])
    some = {"count": 2, "kind": "KIND_GPU", "gpus": [0, 1]}
    assert instance_groups({"instance_group": [some, {"count": 1}]}) == (
        5,
        ["4", "4", "GPU-b", "GPU-b", None],
    )
    each = {"kind": "KIND_GPU"}
    assert instance_groups({"instance_group": [each]}) == (2, ["4", "GPU-b"])
    with pytest.raises(
        UnservableModel, match=r"model m: .* GPU 2: \$CUDA_VISIBLE_DEVICES hides it"
    ):
        instance_groups({"name": "m", "instance_group": [{"gpus": [0, 2]}]})


def test_a_group_on_gpus_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Triton; otherwise a worker would silently serve it on the CPU."""
    monkeypatch.delenv(gpus.VARIABLE, raising=False)
    monkeypatch.setattr(gpus, "_known_count", lambda: 0)
    monkeypatch.setattr(gpus, "_count", lambda: 0)
    for group in ({"kind": "KIND_GPU"}, {"kind": "KIND_GPU", "gpus": [0]}):
        with pytest.raises(UnservableModel, match=r"KIND_GPU requests GPU 0: this machine has no"):
            instance_groups({"instance_group": [group]})
    monkeypatch.setattr(gpus, "_known_count", lambda: None)  # only CUDA knows
    assert instance_groups({"instance_group": [{"kind": "KIND_GPU"}]}) == (1, ["0"])
    assert instance_groups({"instance_group": [{"kind": "KIND_AUTO"}]}) == (1, [None])


def test_implicit_state_is_refused(tmp_path: Path) -> None:
    """Only tritonserver's own backends keep it: a worker would treat each request as the first of its sequence."""
    config = 'sequence_batching { state [{ input_name: "a" output_name: "b" }] }'
    model = read_model(repositories.add(tmp_path, "m", {"1/model.onnx": b""}, config))
    onnx = route(model, tmp_path)
    assert onnx is not None
    with pytest.raises(
        UnservableModel, match=r"implicit state .*tritonserver that has the ONNX backend"
    ):
        asyncio.run(specification(model, onnx, WorkerSetup(tmp_path)))
