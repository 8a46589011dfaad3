"""tritonserver's model repository: which names belong to models that it serves itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytriton._protocol import messages
from pytriton.dispatcher.server import own_repository


def test_a_linked_folder_is_served_by_tritonserver_itself(tmp_path: Path) -> None:
    models, folder = tmp_path / "models", tmp_path / "mine"
    models.mkdir()
    folder.mkdir()
    own_repository.link(models, "mine", folder)
    assert own_repository.is_linked(models, "mine")
    own_repository.unlink(models, "mine")
    assert not own_repository.is_linked(models, "mine")


@pytest.mark.parametrize("name", ["a" * 300, "zero\0byte", "", "no/such"])
def test_names_that_are_invalid_as_file_names_are_not_models(tmp_path: Path, name: str) -> None:
    """A request for such a model reports that there is none (found by scripts/tools/fuzz: File name too long)."""
    assert not own_repository.is_linked(tmp_path, name)


LABELS = (
    "labels.txt",
    "names/labels.txt",
    "1/labels.txt",
    "../secret",
    "/etc/hostname",
    "none.txt",
    "",
)


@pytest.mark.parametrize("python", [True, False])
def test_files_that_triton_reads_are_in_the_models_folder(tmp_path: Path, python: bool) -> None:
    models, own = tmp_path / "models", tmp_path / "mine" / "m"
    for name in ("labels.txt", "names/labels.txt", "1/labels.txt", "../secret"):
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).write_text(name)
    config = {"output": [{"label_filename": name} for name in LABELS]}
    kind = messages.PythonModel("", str(own)) if python else None
    world = messages.WorkerEnvironment("python", cwd="/" if python else str(own))
    own_repository.make_folder(models, messages.ModelSpec("m", 1, config, world, python_model=kind))
    there = [str(one.relative_to(models / "m")) for one in sorted((models / "m").rglob("*"))]
    assert there == ["1", "1/labels.txt", "labels.txt", "names", "names/labels.txt"]


def test_workers_warm_up_and_not_triton() -> None:
    """A warm-up that fails in Triton's core may crash the whole server."""
    config = {"output": [], "model_warmup": [{"name": "w"}], "max_batch_size": 2}
    spec = messages.ModelSpec("m", 1, config, messages.WorkerEnvironment("python"))
    loaded = own_repository.triton_config(spec, "ipc://x", "m#1", 1)
    assert "model_warmup" not in loaded
    assert loaded["max_batch_size"] == 2


def test_the_working_directory_of_a_callable_is_not_a_model_s_folder(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    world = messages.WorkerEnvironment("python", cwd=str(tmp_path))
    spec = messages.ModelSpec("m", 1, {"output": [{"name": "y"}]}, world)
    own_repository.make_folder(tmp_path / "models", spec)
    assert [one.name for one in (tmp_path / "models" / "m").iterdir()] == ["1"]
