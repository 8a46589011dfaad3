"""A repository with models of every kind, and daemons that serve it, on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes.fake_clients import model_spec
from fakes.simulated_daemon import SimulatedDaemon, successive_daemons
from support.models import repositories

from pytriton._protocol import messages
from pytriton.dispatcher.repository.model_folders import FoundModel, UnservableModel

Start = Callable[..., SimulatedDaemon]


async def _specification(
    model: FoundModel, *_: object, **__: object
) -> tuple[messages.ModelSpec, bytes]:
    """What the inspecting process would make of the model's files."""
    if (model.folder / "spoilt").exists():
        raise UnservableModel(f"model {model.name}: its files are spoilt")
    return model_spec(model.name, versions=sorted(model.versions)), b"recipe"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """`py` is for workers, `own` for tritonserver, `pair` an ensemble of both, and `odd` cannot be served."""
    folder = tmp_path / "repository"
    repositories.add(folder, "py", {"1/model.py": b""}, 'backend: "python"')
    repositories.add(folder, "own", {"1/libtriton_mine.so": b""}, 'backend: "mine"')
    repositories.add_ensemble(folder, "pair", ["py", "own"])
    repositories.add(folder, "odd", {"1/model.plan": b""}, 'platform: "tensorrt_plan"')
    return folder


@pytest.fixture
def start(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts one daemon after another with the repository; after 10 seconds each has loaded its models."""
    loading = "pytriton.dispatcher.repository.model_loader.specification"
    monkeypatch.setattr(loading, _specification)
    usual = {"model_repository": (str(repository),)}
    with successive_daemons(tmp_path, settles_s=10.0, **usual) as start:
        yield start
