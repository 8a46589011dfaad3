"""What is looked for in the files of a release."""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from releasing import artifacts

_COMMITTED = {
    "pytriton/__init__.py": "",
    "dispatcher/daemon.py": "",
    "proxy_backend/native/lane.c": "",
    "tests/test_a.py": "",
    "docs/a.md": "",
}
_LIBRARY = "pytriton/proxy_backend/native/libtriton_pytriton_native.so"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with a file of each kind."""
    folder = tmp_path / "root"
    for name, text in _COMMITTED.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git = ["git", "-C", str(folder), "-c", "user.name=tests", "-c", "user.email=tests@localhost"]
    for arguments in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "first"]):
        subprocess.run([*git, *arguments], check=True, capture_output=True)
    return folder


def _files(
    folder: Path, *, without: str = "", platform: str = "manylinux_2_34_x86_64"
) -> list[Path]:
    """An sdist and a wheel with all that belongs in them, but for one name."""
    sdist, wheel = folder / "p-1.0.tar.gz", folder / f"p-1.0-py3-none-{platform}.whl"
    with tarfile.open(sdist, "w:gz") as tar:
        for name in _COMMITTED:
            if name != without:
                tar.add(folder / "root" / name, f"p-1.0/{name}")
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in (*artifacts.installed_names(list(_COMMITTED)), _LIBRARY):
            if name != without:
                archive.writestr(name, "")
    return [sdist, wheel]


def test_complete_files_have_no_fault(root: Path) -> None:
    assert artifacts.faults(root, _files(root.parent)) == []


def test_what_is_installed_is_sources_at_their_places() -> None:
    assert artifacts.installed_names(list(_COMMITTED)) == [
        "pytriton/__init__.py",
        "pytriton/dispatcher/daemon.py",
        "pytriton/proxy_backend/native/lane.c",
    ]


def test_a_module_that_the_wheel_lacks_is_named(root: Path) -> None:
    (fault,) = artifacts.faults(root, _files(root.parent, without="pytriton/dispatcher/daemon.py"))
    assert fault.endswith(".whl lacks pytriton/dispatcher/daemon.py")


def test_a_file_that_the_sdist_lacks_is_named(root: Path) -> None:
    (fault,) = artifacts.faults(root, _files(root.parent, without="proxy_backend/native/lane.c"))
    assert fault == "p-1.0.tar.gz lacks proxy_backend/native/lane.c"


def test_a_wheel_without_the_compiled_proxy_is_told(root: Path) -> None:
    (fault,) = artifacts.faults(root, _files(root.parent, without=_LIBRARY))
    assert "has no compiled proxy" in fault


def test_a_wheel_that_an_index_refuses_is_told(root: Path) -> None:
    (fault,) = artifacts.faults(root, _files(root.parent, platform="linux_x86_64"))
    assert "an index takes no wheel for 'linux'" in fault


def test_a_tool_that_fails_is_told_with_what_it_printed(tmp_path: Path) -> None:
    with pytest.raises(artifacts.ReleaseError, match="twine check failed"):
        artifacts.check_metadata([tmp_path / "is-not-there.whl"])
