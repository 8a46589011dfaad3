"""Check that incomplete or wrongly tagged files of a release are found."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from release import artifacts
from release.builder import TARGETS, Built
from release.tool_runner import ReleaseError

_COMMITTED = {
    "pytriton/__init__.py": "",
    "dispatcher/daemon.py": "",
    "dispatcher/telemetry/dashboard/static/page.js": "",
    "pytriton/_host/settings/advisories.json": "",
    "proxy_backend/backend/lane.c": "",
    "tests/test_a.py": "",
    "docs/a.md": "",
}
_LIBRARY = "pytriton/proxy_backend/backend/libtriton_pytriton_native.so"
_FRONT = "pytriton/proxy_backend/frontend/pytriton-frontend"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A library that every x86-64 Linux with glibc can load."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "one.c").write_text("int one(void) { return 1; }\n")
    command = ["cc", "-shared", "-fPIC", "-o", str(folder / "one.so"), str(folder / "one.c")]
    subprocess.run(command, check=True)
    return (folder / "one.so").read_bytes()


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
    folder: Path, program: bytes, *, without: str = "", platform: str = TARGETS[0].platform
) -> Built:
    """Create an sdist and a wheel that are complete, except for one file."""
    sdist, wheel = folder / "p-1.0.tar.gz", folder / f"p-1.0-py3-none-{platform}.whl"
    with tarfile.open(sdist, "w:gz") as tar:
        for name in _COMMITTED:
            if name != without:
                tar.add(folder / "root" / name, f"p-1.0/{name}")
    contents = {name: b"" for name in artifacts.installed_names(list(_COMMITTED))}
    contents |= {} if platform == "any" else {_LIBRARY: program, _FRONT: program}
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in contents.items():
            if name != without:
                archive.writestr(name, content)
    return Built(sdist, (wheel,))


@pytest.mark.parametrize("platform", [TARGETS[0].platform, "any"])
def test_complete_files_have_no_fault(root: Path, program: bytes, platform: str) -> None:
    assert artifacts.faults(root, _files(root.parent, program, platform=platform)) == []


def test_installed_files_are_sources_and_data() -> None:
    assert artifacts.installed_names(list(_COMMITTED)) == [
        "pytriton/__init__.py",
        "pytriton/dispatcher/daemon.py",
        "pytriton/dispatcher/telemetry/dashboard/static/page.js",
        "pytriton/_host/settings/advisories.json",
        "pytriton/proxy_backend/backend/lane.c",
    ]


@pytest.mark.parametrize(
    "name",
    ["pytriton/dispatcher/daemon.py", "pytriton/dispatcher/telemetry/dashboard/static/page.js"],
)
def test_a_file_that_the_wheel_lacks_is_named(root: Path, program: bytes, name: str) -> None:
    (fault,) = artifacts.faults(root, _files(root.parent, program, without=name))
    assert fault.endswith(f".whl lacks {name}")


def test_a_file_that_the_sdist_lacks_is_named(root: Path, program: bytes) -> None:
    built = _files(root.parent, program, without="proxy_backend/backend/lane.c")
    (fault,) = artifacts.faults(root, built)
    assert fault == "p-1.0.tar.gz lacks proxy_backend/backend/lane.c"


@pytest.mark.parametrize(
    ("name", "what"), [(_LIBRARY, "compiled proxy"), (_FRONT, "native frontend")]
)
def test_a_wheel_without_a_compiled_part_is_reported(
    root: Path, program: bytes, name: str, what: str
) -> None:
    (fault,) = artifacts.faults(root, _files(root.parent, program, without=name))
    assert f"has no {what}: it was not compiled" in fault


def test_a_part_for_another_machine_is_reported(root: Path, program: bytes) -> None:
    faults = artifacts.faults(root, _files(root.parent, program, platform=TARGETS[1].platform))
    assert len(faults) == 2
    assert all(one.endswith("is for x86_64") for one in faults)


def test_a_part_for_a_newer_glibc_is_reported(root: Path) -> None:
    """The interpreter of these tests was compiled for this machine's glibc."""
    faults = artifacts.faults(root, _files(root.parent, Path(sys.executable).read_bytes()))
    assert any("needs glibc 2." in one for one in faults)


def test_a_wheel_for_every_system_has_no_compiled_part(root: Path, program: bytes) -> None:
    built = _files(root.parent, program)
    renamed = built.wheels[0].rename(root.parent / "p-1.0-py3-none-any.whl")
    faults = artifacts.faults(root, Built(built.sdist, (renamed,)))
    assert [one.partition(", but ")[2] for one in faults] == [
        "contains a compiled proxy",
        "contains a native frontend",
    ]


def test_a_tool_that_fails_is_reported_with_what_it_printed(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="twine check failed"):
        artifacts.check_for_index(Built(tmp_path / "is-not-there.tar.gz", ()))
