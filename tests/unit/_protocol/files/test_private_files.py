"""Opening, removing and looking at files where somebody else may have been before."""

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


def test_file_is_made_for_its_owner_and_a_link_is_not_followed(tmp_path: Path) -> None:
    with open(tmp_path / "new", "w", opener=open_private):
        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600
    target = tmp_path / "target"
    target.write_text("mine")
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links") as raised:
        open(tmp_path / "link", "w", opener=open_private)  # noqa: SIM115, it is not opened
    assert raised.value.errno == errno.ELOOP
    assert target.read_text() == "mine"


def test_removing_whatever_is_there(tmp_path: Path) -> None:
    target = tmp_path / "target"
    (target / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to(target)
    remove(tmp_path / "link")
    assert (target / "below").is_dir()
    remove(target)
    remove(tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_strangers_are_found_below(tmp_path: Path) -> None:
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


def test_workers_library_is_rebuilt(short_dir: Path) -> None:
    rundir = RuntimeDir(short_dir)
    rundir.create()
    rundir.library.mkdir()
    (rundir.library / "numpy.py").write_text("planted")
    library = lay_out_library(rundir)
    assert [entry.name for entry in library.iterdir()] == ["pytriton"]
    assert stat.S_IMODE(library.stat().st_mode) == 0o700


def test_kept_flags_do_not_go_through_a_link(short_dir: Path) -> None:
    target = short_dir / "target"
    target.write_text("mine")
    (short_dir / "start.json").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        StartFlags({}, None, "/").write(RuntimeDir(short_dir))
    assert target.read_text() == "mine"


def test_state_below_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    Store(tmp_path / "state").close()
    (tmp_path / "state" / "models").chmod(0o777)
    with pytest.raises(StoreError, match=r"users other than its owner may write.*state/models"):
        Store(tmp_path / "state")


def test_log_does_not_go_through_a_link(
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
