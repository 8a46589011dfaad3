"""What is built and installed: every module of ours, under `pytriton`, and nothing else."""

from __future__ import annotations

import json
import os
import re
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from release import install_check
from support.caching_compiler import caching_compiler
from support.packages import PROCESSES, ROOT, build, copy_sources

from pytriton._host.install.proxy_compiler import FRONTEND, INTERPOSER, PROXY, compiler

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.programs


def python_files() -> set[PurePosixPath]:
    """Return the Python files of the checkout that belong to the distribution, relative to ROOT."""
    found: set[Path] = set()
    for top in ("pytriton", *PROCESSES):
        for folder, _, names in os.walk(ROOT / top):  # does not follow the symlinks
            found.update(Path(folder, name) for name in names if name.endswith(".py"))
    return {PurePosixPath(path.relative_to(ROOT)) for path in found}


def installed_as(path: PurePosixPath) -> PurePosixPath:
    """Return where in site-packages a file of the checkout belongs."""
    return PurePosixPath("pytriton", path) if path.parts[0] in PROCESSES else path


def setuptools_table() -> dict[str, Any]:
    with open(ROOT / "pyproject.toml", "rb") as file:
        table: dict[str, Any] = tomllib.load(file)["tool"]["setuptools"]
    return table


def test_every_folder_with_modules_is_a_listed_package() -> None:
    folders = {".".join(installed_as(path).parent.parts) for path in python_files()}
    listed = setuptools_table()["packages"]
    assert sorted(listed) == sorted(folders), (
        "[tool.setuptools] packages in pyproject.toml and the folders that hold .py files differ: "
        "add the package there, or remove it"
    )


def test_every_package_has_an_init_file() -> None:
    files = python_files()
    assert {path.parent for path in files} == {
        path.parent for path in files if path.name == "__init__.py"
    }


def test_the_same_pythons_are_promised_and_tested() -> None:
    with open(ROOT / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    classifier = re.compile(r"Programming Language :: Python :: (3\.\d+)")
    promised = [one[1] for one in map(classifier.fullmatch, project["classifiers"]) if one]
    assert project["requires-python"] == f">={promised[0]}"
    assert promised == list(install_check.SUPPORTED)
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert f"python: {json.dumps(promised)}" in workflow


@pytest.mark.parametrize("folder", sorted(PROCESSES))
def test_a_process_folder_is_linked_and_mapped(folder: str) -> None:
    link = ROOT / "pytriton" / folder
    assert link.is_symlink()
    assert os.readlink(link) == f"../{folder}"
    assert setuptools_table()["package-dir"][PROCESSES[folder]] == folder


def _texts() -> list[Path]:
    """Return the texts that users install by: documents, requirements, Dockerfiles, and error messages."""
    found = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    found += [path for path in (ROOT / "examples").rglob("*") if path.is_file()]
    return found + [ROOT / path for path in python_files()]


def test_no_instruction_installs_an_unregistered_name() -> None:
    """It would fail, or install another package once somebody has registered the name."""
    by_name = re.compile(
        r"\bpip3? (install|download)\b(?!.*--no-index)[^&\n]*(?<![\w/.-])pytriton-daemon\b"
    )
    for path in _texts():
        text = path.read_text(errors="replace")
        assert not by_name.search(text), path
        if path.name.startswith("requirements"):
            assert "pytriton-daemon" not in text.split(), path
    assert by_name.search("$ pip install 'pytriton-daemon[tracing]'")
    assert not by_name.search("$ pip install ./pytriton_daemon-0.1.0-py3-none-any.whl")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from that sdist.

    Warnings are errors here: this compiles C as users do, with -O2 and FORTIFY.
    """
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    copy_sources(source, symlinks=True)
    command = compiler()
    assert command is not None, "these tests need a C compiler"
    script = tmp_path_factory.mktemp("compiler") / "cc"
    strict = caching_compiler(script, command, "-Wall", "-Wextra", "-Werror")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", str(strict))
        build(source, out)
    return out


@pytest.fixture(scope="module")
def built_bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel that was built without a compiler, from sources without their symlinks."""
    source, out = tmp_path_factory.mktemp("bare"), tmp_path_factory.mktemp("bare-dist")
    copy_sources(source, symlinks=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", "no-such-compiler")
        build(source, out, "--wheel")
    return out


def wheel_names(folder: Path) -> list[PurePosixPath]:
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return [PurePosixPath(name) for name in archive.namelist()]


def wheel_metadata(folder: Path) -> Message:
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def c_files() -> set[PurePosixPath]:
    """Return the C sources of the checkout, relative to ROOT."""
    found = (ROOT / "proxy_backend").rglob("*.[ch]")
    return {PurePosixPath(path.relative_to(ROOT)) for path in found}


def expected_files() -> list[PurePosixPath]:
    return sorted({installed_as(path) for path in python_files()})


def test_the_wheel_made_from_the_sdist_has_every_module_once(built: Path) -> None:
    names = wheel_names(built)
    assert sorted(name for name in names if name.suffix == ".py") == expected_files()
    assert PurePosixPath("pytriton/py.typed") in names
    assert PurePosixPath("pytriton/_host/settings/advisories.json") in names


def test_the_wheel_has_the_compiled_proxy_for_every_python(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert "-py3-none-linux_" in wheel.name
    assert PurePosixPath("pytriton/proxy_backend/backend", PROXY.file) in wheel_names(built)
    assert PurePosixPath("pytriton/proxy_backend/frontend", FRONTEND.file) in wheel_names(built)
    assert PurePosixPath("pytriton/proxy_backend/interposer", INTERPOSER.file) in wheel_names(built)


def test_both_have_every_c_source_in_its_directory(built: Path) -> None:
    """Machines that the wheel's library does not fit compile the included sources."""
    expected = c_files()
    assert any(len(path.parts) > 3 for path in expected)
    in_wheel = {path for path in wheel_names(built) if path.suffix in (".c", ".h")}
    assert in_wheel == {installed_as(path) for path in expected}
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {PurePosixPath(*PurePosixPath(name).parts[1:]) for name in archive.getnames()}
    assert expected <= names


def test_without_a_compiler_the_wheel_is_for_every_machine(built_bare: Path) -> None:
    (wheel,) = built_bare.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in wheel_names(built_bare) if name.suffix == ".so"]


def test_the_wheel_puts_nothing_but_pytriton_into_site_packages(built: Path) -> None:
    tops = {name.parts[0] for name in wheel_names(built)}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"pytriton"}


def test_the_sdist_has_every_source_file(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    names = {PurePosixPath(*PurePosixPath(member.name).parts[1:]) for member in members}
    assert python_files() | {PurePosixPath("LICENSE"), PurePosixPath("pyproject.toml")} <= names
    assert not [member.name for member in members if member.issym() or member.islnk()]


def test_the_metadata_names_command_licence_and_python(built: Path) -> None:
    metadata = wheel_metadata(built)
    assert metadata["Name"] == "pytriton-daemon"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE", "THIRD_PARTY.md"]
    assert metadata["Requires-Python"] == ">=3.9"
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (entry_points,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "pytriton-daemon = pytriton._cli:main" in archive.read(entry_points).decode()


def test_an_archive_without_the_symlinks_builds_the_same_wheel(
    built: Path, built_bare: Path
) -> None:
    """A zip of the repository may lose symlinks, so the build must not need them."""
    names = [name for name in wheel_names(built_bare) if ".dist-info" not in name.parts[0]]
    same = [name for name in wheel_names(built) if ".dist-info" not in name.parts[0]]
    assert sorted(names) == sorted(
        name for name in same if name.name not in (PROXY.file, FRONTEND.file, INTERPOSER.file)
    )
    assert sorted(name for name in names if name.suffix == ".py") == expected_files()
