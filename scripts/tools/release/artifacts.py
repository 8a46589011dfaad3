"""Check the files of a release: their contents, the platform tags, and whether an index would accept them."""

from __future__ import annotations

import hashlib
import re
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import IO

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

from release.builder import GLIBC, Built
from release.tool_runner import ReleaseError, run

#: Folders that are installed below `pytriton` (pyproject.toml, package-dir).
_PROCESSES = ("dispatcher", "worker", "proxy_backend")
_INSTALLED = (".py", ".c", ".h", ".typed")
#: Data files that are also installed.
_DATA = ("dispatcher/telemetry/dashboard/static/", "pytriton/_host/settings/advisories.json")
_LIBRARY = "pytriton/proxy_backend/backend/libtriton_pytriton_native.so"
_FRONT = "pytriton/proxy_backend/frontend/pytriton-frontend"
_COMPILED = {_LIBRARY: "compiled proxy", _FRONT: "native frontend"}
#: Libraries of every Linux with glibc. The compiled parts load all others when they start.
_SYSTEM_LIBRARIES = (
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "ld-linux",
)
#: auditwheel's output for a valid wheel.
_ALLOWED = re.compile(r'consistent with the following platform tag: "([^"]+)"')
_MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}


def faults(root: Path, built: Built, commit: str = "HEAD") -> list[str]:
    """Return the problems of the files built from a commit, one sentence each."""
    committed = _committed(root, commit)
    found = _faults_of_sdist(built.sdist, committed)
    for wheel in built.wheels:
        found += _faults_of_wheel(wheel, committed)
    return found


def _faults_of_sdist(sdist: Path, committed: list[str]) -> list[str]:
    with tarfile.open(sdist) as tar:
        packed = {str(PurePosixPath(*PurePosixPath(name).parts[1:])) for name in tar.getnames()}
    wanted = [name for name in committed if _of_package(name)]
    return [f"{sdist.name} lacks {name}" for name in wanted if name not in packed]


def _faults_of_wheel(wheel: Path, committed: list[str]) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        found = [
            f"{wheel.name} lacks {name}" for name in installed_names(committed) if name not in names
        ]
        for name, what in _COMPILED.items():
            if wheel.name.endswith("-any.whl"):
                if name in names:
                    found.append(f"{wheel.name} is for every system, but contains a {what}")
            elif name not in names:
                found.append(f"{wheel.name} has no {what}: it was not compiled")
            else:
                with archive.open(name) as file:
                    found += [f"{wheel.name}: the {what} {flaw}" for flaw in _flaws(wheel, file)]
    return found


def _flaws(wheel: Path, file: IO[bytes]) -> list[str]:
    """Return what prevents a compiled part from running on the platform of the wheel's tag."""
    elf = ELFFile(file)
    machine = _MACHINES.get(elf["e_machine"], elf["e_machine"])
    flaws = [] if machine in wheel.name else [f"is for {machine}"]
    sections = (one for one in elf.iter_sections() if isinstance(one, DynamicSection))
    tags = (one for dynamic in sections for one in dynamic.iter_tags("DT_NEEDED"))
    needed: list[str] = [vars(one)["needed"] for one in tags]
    flaws += [f"needs {name}" for name in needed if not name.startswith(_SYSTEM_LIBRARIES)]
    newest = max(_glibc_versions(elf), default=(0,))
    if newest > GLIBC:
        flaws.append(f"needs glibc {'.'.join(map(str, newest))}")
    return flaws


def _glibc_versions(elf: ELFFile) -> list[tuple[int, ...]]:
    """Return the glibc versions of the functions that a program calls."""
    sections = (one for one in elf.iter_sections() if isinstance(one, GNUVerNeedSection))
    names = [
        needed.name
        for section in sections
        for _, versions in section.iter_versions()
        for needed in versions
    ]
    return [
        tuple(map(int, name[len("GLIBC_") :].split(".")))
        for name in names
        if name.startswith("GLIBC_") and name[len("GLIBC_") :][0].isdigit()
    ]


def check_for_index(built: Built) -> None:
    """Check the files with twine, and the platform tags with auditwheel, as an index would.

    Raises:
        ReleaseError: an index would reject one of them
    """
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built.files)]
    run("twine check", command)
    for wheel in built.wheels:
        if wheel.name.endswith("-any.whl"):
            continue
        output = run("auditwheel", [sys.executable, "-m", "auditwheel", "show", str(wheel)])
        allowed = _ALLOWED.search(" ".join(output.split()))
        if allowed is None or not wheel.name.endswith(f"-{allowed[1]}.whl"):
            raise ReleaseError(f"auditwheel disagrees with the tag of {wheel.name}:\n{output}")


def digest(file: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def write_sums(files: Sequence[Path], sums: Path) -> None:
    """Write the SHA-256 of files in the format of `sha256sum --check`."""
    sums.write_text("".join(f"{digest(file)}  {file.name}\n" for file in files))


def installed_names(committed: list[str]) -> list[str]:
    """Return the paths in a wheel of those committed files that belong into it."""
    names = [name for name in committed if _of_package(name)]
    return [name if name.startswith("pytriton/") else f"pytriton/{name}" for name in names]


def _of_package(name: str) -> bool:
    if name.split("/")[0] not in ("pytriton", *_PROCESSES):
        return False
    return name.endswith(_INSTALLED) or name.startswith(_DATA)


def _committed(root: Path, commit: str) -> list[str]:
    listed = run("git", ["git", "-C", str(root), "ls-tree", "-r", "--name-only", commit])
    return listed.splitlines()
