"""Opening, removing and checking files that somebody else may have created."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from pytriton._host.settings.declarations import DaemonConfig
from pytriton._host.settings.start_flags import StartFlags
from pytriton._protocol.files.private_files import files_of_others, open_private, remove
from pytriton._protocol.files.rundir import RuntimeDir
from pytriton.dispatcher.models.persistence.state_dir import Store, StoreError
from pytriton.dispatcher.runtime.worker_library import lay_out_library


def test_a_file_is_created_private_and_links_are_not_followed(tmp_path: Path) -> None:
    with open(tmp_path / "new", "w", opener=open_private):
        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600
    target = tmp_path / "target"
    target.write_text("mine")
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links") as raised:
        open(tmp_path / "link", "w", opener=open_private)  # noqa: SIM115, it is not opened
    assert raised.value.errno == errno.ELOOP
    assert target.read_text() == "mine"


def test_anything_can_be_removed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    (target / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to(target)
    remove(tmp_path / "link")
    assert (target / "below").is_dir()
    remove(target)
    remove(tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_of_other_users_are_found_in_a_tree(tmp_path: Path) -> None:
    for name in ("a/b/ours", "a/b/theirs", "passed/theirs"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        if file.name == "theirs":
            os.chown(file, 65534, -1)
    assert files_of_others(tmp_path, passing_over=frozenset({"passed"})) == [
        tmp_path / "a/b/theirs"
    ]
    os.symlink("a", tmp_path / "link")
    os.lchown(tmp_path / "link", 65534, -1)
    assert tmp_path / "link" in files_of_others(tmp_path)


def test_the_workers_library_is_rebuilt(short_dir: Path) -> None:
    rundir = RuntimeDir(short_dir)
    rundir.create()
    rundir.library.mkdir()
    (rundir.library / "numpy.py").write_text("planted")
    library = lay_out_library(rundir)
    assert [entry.name for entry in library.iterdir()] == ["pytriton"]
    assert stat.S_IMODE(library.stat().st_mode) == 0o700


def test_saved_flags_are_not_written_through_a_link(short_dir: Path) -> None:
    target = short_dir / "target"
    target.write_text("mine")
    (short_dir / "start.json").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        StartFlags({}, None, "/").write(RuntimeDir(short_dir))
    assert target.read_text() == "mine"


def test_state_in_a_folder_writable_by_others_is_refused(tmp_path: Path) -> None:
    Store(tmp_path / "state").close()
    (tmp_path / "state" / "models").chmod(0o777)
    with pytest.raises(StoreError, match=r"state/models is writable by users other than its owner"):
        Store(tmp_path / "state")


def test_the_log_is_not_written_through_a_link(
    short_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from pytriton.dispatcher.runtime import logs

    rundir = RuntimeDir(short_dir)
    rundir.create()
    target = short_dir / "target"
    target.write_text("mine")
    rundir.log_file().symlink_to(target)
    logs.configure(DaemonConfig(runtime_dir=str(short_dir), log_format="none"), rundir.logs)
    try:
        logs.child_logger("tritonserver").warning("said")
    finally:
        logs.close()
    assert target.read_text() == "mine"
    assert f"cannot write {rundir.log_file()}" in capsys.readouterr().err
