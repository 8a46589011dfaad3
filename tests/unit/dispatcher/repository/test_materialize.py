"""Models whose files came with the request to load them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytriton.dispatcher.repository.materialize import BadFileName, MaterializedFiles, relative_path


def test_files_lie_as_in_a_repository_of_one_model(tmp_path: Path) -> None:
    given = MaterializedFiles(tmp_path / "given")
    repository = given.write("m", {"file:1/model.py": b"code", "file:labels.txt": b"a\nb"})
    assert (repository / "m" / "1" / "model.py").read_bytes() == b"code"
    assert (repository / "m" / "labels.txt").read_bytes() == b"a\nb"
    assert [one.name for one in repository.iterdir()] == ["m"]
    given.remove(repository)
    assert not repository.exists()


def test_two_loads_of_one_model_lie_apart(tmp_path: Path) -> None:
    given = MaterializedFiles(tmp_path / "given")
    first = given.write("m", {"file:1/model.py": b"old"})
    second = given.write("m", {"file:1/model.py": b"new"})
    assert (first / "m" / "1" / "model.py").read_bytes() == b"old"
    assert (second / "m" / "1" / "model.py").read_bytes() == b"new"


def test_files_of_a_former_daemon_are_removed(tmp_path: Path) -> None:
    (tmp_path / "given" / "1" / "m").mkdir(parents=True)
    MaterializedFiles(tmp_path / "given")
    assert not (tmp_path / "given").exists()


def test_files_of_the_running_version_are_kept(tmp_path: Path) -> None:
    served = MaterializedFiles(tmp_path / "given").write("m", {"file:1/model.py": b"old"})
    later = MaterializedFiles(tmp_path / "given", is_adopted=True)
    assert (served / "m" / "1" / "model.py").read_bytes() == b"old"
    assert later.write("m", {"file:1/model.py": b"new"}) != served


@pytest.mark.parametrize(
    "name",
    [
        "1/model.py",
        "file:",
        "file:/etc/passwd",
        "file:../x",
        "file:1/../../x",
        "file:1/mo\0del",
        "",
    ],
)
def test_a_file_that_leads_elsewhere_is_refused_and_nothing_written(
    name: str, tmp_path: Path
) -> None:
    given = MaterializedFiles(tmp_path / "given")
    with pytest.raises(BadFileName):
        given.write("m", {"file:1/model.py": b"", name: b""})
    assert not (tmp_path / "given").exists()


@pytest.mark.parametrize("model", ["", ".", "..", "a/b"])
def test_a_model_whose_name_is_no_folders_is_refused(model: str, tmp_path: Path) -> None:
    with pytest.raises(BadFileName, match="is not a valid name for a model with its own files"):
        MaterializedFiles(tmp_path / "given").write(model, {"file:1/model.py": b""})


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    given = MaterializedFiles(tmp_path / "given")
    with pytest.raises(OSError, match="1"):
        given.write("m", {"file:1": b"a file", "file:1/model.py": b"below a file"})
    assert list((tmp_path / "given").iterdir()) == []


def test_a_path_is_what_follows_its_prefix() -> None:
    assert relative_path("file:1/model.onnx").parts == ("1", "model.onnx")
