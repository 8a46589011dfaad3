"""The folders of tritonserver's model repository."""

from __future__ import annotations

from pathlib import Path

from pytriton.dispatcher import repository
from pytriton.ipc import messages


def test_a_python_models_labels_and_warm_up_samples_are_there(tmp_path: Path) -> None:
    model = tmp_path / "model"
    (model / "warmup").mkdir(parents=True)
    (model / "warmup" / "sample").write_bytes(b"x")
    for name in ("labels.txt", "model.py"):
        (model / name).write_text("cat")
    outputs = [{"name": "y", "label_filename": "labels.txt"}, {"name": "z"}]
    outputs.append({"name": "w", "label_filename": "../model/model.py"})
    spec = messages.ModelSpec(
        "m",
        2,
        {"input": [], "output": outputs},
        messages.World("python"),
        python_model=messages.PythonModel("{}", str(model)),
    )
    for _ in range(2):  # the second time in place of the first
        repository.make_folder(tmp_path / "models", spec)
        folder = tmp_path / "models" / "m"
        assert sorted(entry.name for entry in folder.iterdir()) == ["2", "labels.txt", "warmup"]
        assert (folder / "labels.txt").read_text() == "cat"
    repository.remove_folder(tmp_path / "models", "m")
    assert (model / "warmup" / "sample").exists()
