"""Repositories whose files change while they are read or cannot be read, and files uploaded with a load request."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401, another user may not be able to read it
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.examples import examples
from support.users import NOBODY, needs_root

from pytriton.dispatcher.repository.repositories import (
    BadFileName,
    ModelSnapshot,
    Repositories,
    UploadedModels,
    relative_path,
)

_NOT_ASKED: Any = None


def places(*repositories: Path) -> Repositories:
    """Without a repository in a cloud, neither tritonserver nor the registry is needed."""
    paths = tuple(str(one) for one in repositories)
    return Repositories(paths, Path("/nowhere"), _NOT_ASKED, _NOT_ASKED)


def look(at: Repositories, former: Mapping[str, ModelSnapshot]) -> dict[str, ModelSnapshot]:
    return asyncio.run(at.snapshots(former))


def add(repository: Path, name: str, versions: int = 1) -> None:
    for version in range(1, versions + 1):
        folder = repository / name / str(version)
        folder.mkdir(parents=True)
        (folder / "model.py").write_text("")


@pytest.fixture
def exchanging(tmp_path: Path) -> Iterator[Path]:
    """A repository whose model is replaced again and again."""
    add(tmp_path, "model", versions=40)
    stopped = threading.Event()

    def exchange() -> None:
        while not stopped.is_set():
            os.rename(tmp_path / "model" / "20", tmp_path / "model" / "away")
            os.rename(tmp_path / "model" / "away", tmp_path / "model" / "20")
            os.rename(tmp_path / "model", tmp_path / ".away")
            os.rename(tmp_path / ".away", tmp_path / "model")

    thread = threading.Thread(target=exchange)
    thread.start()
    yield tmp_path
    stopped.set()
    thread.join()


def test_models_may_be_replaced_during_a_snapshot(exchanging: Path) -> None:
    """The snapshot has the model's previous files, or nothing of it."""
    at = places(exchanging)
    seen = look(at, {})
    for _ in range(examples(500)):
        seen = look(at, seen)


def test_an_unreadable_repository_keeps_its_models(tmp_path: Path) -> None:
    """It is reported once, and a later repository does not take over its names."""
    first, second, away = (tmp_path / name for name in ("first", "second", "away"))
    add(first, "one")
    add(first, "both")
    add(second, "both")
    at = places(first, second)
    before = look(at, {})
    first.rename(away)
    with capture_logs() as logs:
        assert look(at, before) == before
        assert look(at, before) == before
    assert [str(first) in one["reason"] for one in logs] == [True]
    away.rename(first)
    add(first, "late")
    now = look(at, before)
    assert sorted(now) == ["both", "late", "one"]
    assert now["one"] == before["one"]


@needs_root
def test_an_unreadable_folder_is_reported_once() -> None:
    """The model's other folders are read."""
    with tempfile.TemporaryDirectory() as name:  # tmp_path is for this user alone
        repository = Path(name)
        repository.chmod(0o755)
        add(repository, "model")
        closed = repository / "model" / "closed"
        closed.mkdir(mode=0o700)
        at = places(repository)
        os.seteuid(NOBODY)
        try:
            with capture_logs() as logs:
                before = look(at, {})
                assert look(at, before) == before
        finally:
            os.seteuid(0)
        assert [(one["folder"], one["reason"]) for one in logs] == [
            (str(closed), "Permission denied")
        ]
        (repository / "model" / "1" / "model.py").write_text("new")
        assert look(at, before) != before


def test_uploaded_files_form_a_repository_of_one_model(tmp_path: Path) -> None:
    uploaded = UploadedModels(tmp_path / "given")
    repository = uploaded.write("m", {"file:1/model.py": b"code", "file:labels.txt": b"a\nb"})
    assert (repository / "m" / "1" / "model.py").read_bytes() == b"code"
    assert (repository / "m" / "labels.txt").read_bytes() == b"a\nb"
    assert [one.name for one in repository.iterdir()] == ["m"]
    uploaded.remove(repository)
    assert not repository.exists()


def test_two_uploads_of_one_model_are_separate(tmp_path: Path) -> None:
    uploaded = UploadedModels(tmp_path / "given")
    first = uploaded.write("m", {"file:1/model.py": b"old"})
    second = uploaded.write("m", {"file:1/model.py": b"new"})
    assert (first / "m" / "1" / "model.py").read_bytes() == b"old"
    assert (second / "m" / "1" / "model.py").read_bytes() == b"new"


def test_files_of_a_previous_daemon_are_removed(tmp_path: Path) -> None:
    (tmp_path / "given" / "1" / "m").mkdir(parents=True)
    UploadedModels(tmp_path / "given")
    assert not (tmp_path / "given").exists()


def test_files_of_the_running_version_are_kept(tmp_path: Path) -> None:
    served = UploadedModels(tmp_path / "given").write("m", {"file:1/model.py": b"old"})
    later = UploadedModels(tmp_path / "given", is_adopted=True)
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
def test_a_file_outside_the_folder_is_refused_and_nothing_written(
    name: str, tmp_path: Path
) -> None:
    uploaded = UploadedModels(tmp_path / "given")
    with pytest.raises(BadFileName):
        uploaded.write("m", {"file:1/model.py": b"", name: b""})
    assert not (tmp_path / "given").exists()


@pytest.mark.parametrize("model", ["", ".", "..", "a/b"])
def test_a_name_that_is_not_a_folder_name_is_refused(model: str, tmp_path: Path) -> None:
    with pytest.raises(BadFileName, match="is not a valid name for a model whose files are sent"):
        UploadedModels(tmp_path / "given").write(model, {"file:1/model.py": b""})


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    uploaded = UploadedModels(tmp_path / "given")
    with pytest.raises(OSError, match="1"):
        uploaded.write("m", {"file:1": b"a file", "file:1/model.py": b"below a file"})
    assert list((tmp_path / "given").iterdir()) == []


def test_a_path_follows_the_prefix() -> None:
    assert relative_path("file:1/model.onnx").parts == ("1", "model.onnx")
