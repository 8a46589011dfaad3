"""Build the sdist and the wheels from committed files: the same commit gives the same bytes.

```
last commit ──export──▶ source ──▶ sdist ──unpack──▶ wheel manylinux x86_64    compiled by zig for an old glibc
                                                     wheel manylinux aarch64   cross-compiled by zig
                                                     wheel py3-none-any        nothing compiled: clients, other systems
```

zig is a C compiler that includes the headers of each glibc (the wheel `ziglang`), so the wheels do not depend on the
machine that they are built on.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import shutil
import stat
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from release.tool_runner import ReleaseError, run

#: Minimum version for the compiled parts. Ubuntu 20.04 and Debian 11 have it. The frontend needs
#: pthread_cond_clockwait (2.30).
GLIBC = (2, 31)
_VERSION_LINE = re.compile(r'^version = "[^"]*"$', re.MULTILINE)


@dataclass(frozen=True)
class Target:
    """An architecture that has a wheel with compiled parts."""

    machine: str

    @property
    def platform(self) -> str:
        """The wheel's platform tag."""
        return f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{self.machine}"

    @property
    def zig(self) -> str:
        """The target's name in zig."""
        return f"{self.machine}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"


TARGETS = (Target("x86_64"), Target("aarch64"))
#: The wheels of a release. None is the wheel without compiled parts.
EVERYWHERE: tuple[Target | None, ...] = (*TARGETS, None)


@dataclass(frozen=True)
class Built:
    """The files of a release."""

    sdist: Path
    wheels: tuple[Path, ...]  #: in the order of their targets

    @property
    def files(self) -> tuple[Path, ...]:
        """The sdist and the wheels."""
        return (self.sdist, *self.wheels)

    def wheel_for(self, machine: str) -> Path:
        """Return the wheel that pip selects on Linux on this architecture."""
        return next((one for one in self.wheels if machine in one.name), self.wheels[-1])


@dataclass(frozen=True)
class Commit:
    """The sources of a release."""

    root: Path  #: the checkout
    id: str  #: the full hash, because a branch may move while a release is built
    version: str  #: version of the release
    epoch: int  #: time of the commit, and of every file, in seconds since the epoch


def commit_of(root: Path, ref: str, version: str) -> Commit:
    """Return the current commit of a tag or branch, to be released as `version`."""
    git = ["git", "-C", str(root)]
    found = run("git", [*git, "rev-parse", f"{ref}^{{commit}}"]).strip()
    return Commit(root, found, version, int(run("git", [*git, "log", "-1", "--format=%ct", found])))


def export(commit: Commit, folder: Path) -> None:
    """Write the files of a commit into an empty folder, and the release's version into pyproject.toml."""
    archive = folder.with_suffix(".tar")
    git = [
        "git",
        "-C",
        str(commit.root),
        "-c",
        "tar.umask=0022",
    ]  # independent of this user's setting
    run("git archive", [*git, "archive", "-o", str(archive), commit.id])
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="fully_trusted")
    archive.unlink()
    project = folder / "pyproject.toml"
    line = f'version = "{commit.version}"'
    text, count = _VERSION_LINE.subn(line, project.read_text("utf-8"), count=1)
    if not count:
        raise ReleaseError(f"{project} has no line version = ...")
    project.write_text(text, "utf-8")


def build_commit(
    commit: Commit, out: Path, scratch: Path, targets: Sequence[Target | None] = EVERYWHERE
) -> Built:
    """Create `scratch`, export a commit into its folder `source`, and build it into `out`."""
    scratch.mkdir()
    export(commit, scratch / "source")
    return build(scratch / "source", out, scratch, commit.epoch, targets)


def build(
    source: Path,
    out: Path,
    scratch: Path,
    epoch: int,
    targets: Sequence[Target | None] = EVERYWHERE,
) -> Built:
    """Build the sdist, and from it each wheel, into the folder `out`.

    Args:
        source: the exported files
        out: existing folder for the files
        scratch: an empty folder for temporary files, such as the compiler's cache
        epoch: time of the files, in seconds since the epoch
        targets: targets of the wheels; None is every system

    Raises:
        ReleaseError: a tool failed
    """
    os.umask(0o022)  # the build contains the files' modes
    stage = scratch / "sdist"
    _build(source, stage, "--sdist", [], {"SOURCE_DATE_EPOCH": str(epoch)})
    (draft,) = stage.glob("*.tar.gz")
    sdist = out / draft.name
    repack_sdist(draft, sdist, epoch)
    wheels = [_wheel(sdist, out, scratch, target, epoch) for target in targets]
    return Built(sdist, tuple(wheels))


def _wheel(sdist: Path, out: Path, scratch: Path, target: Target | None, epoch: int) -> Path:
    """Build the wheel for a target, or for None the wheel without compiled parts."""
    work = scratch / (target.machine if target else "any")
    work.mkdir()
    with tarfile.open(sdist) as tar:
        tar.extractall(work, filter="data")
    (source,) = work.iterdir()
    environment = {"SOURCE_DATE_EPOCH": str(epoch), "CC": "no-compiler"}
    options: list[str] = []
    if target is not None:
        environment |= {
            "CC": str(_compiler(work, target)),
            "ZIG_GLOBAL_CACHE_DIR": str(work / "cache"),
            "ZIG_LOCAL_CACHE_DIR": str(work / "cache"),
        }
        options = [f"--config-setting=--build-option=--plat-name={target.platform}"]
    _build(source, work / "wheel", "--wheel", options, environment)
    (wheel,) = (work / "wheel").glob("*.whl")
    expected = target.platform if target else "any"
    if not wheel.name.endswith(f"-py3-none-{expected}.whl"):
        raise ReleaseError(f"the wheel for {expected} was built as {wheel.name}")
    return Path(shutil.move(str(wheel), str(out)))


def _build(
    source: Path, out: Path, kind: str, options: list[str], environment: dict[str, str]
) -> None:
    # Without isolation: another version of setuptools would give other bytes. provenance.json records the version.
    command = [sys.executable, "-m", "build", "--no-isolation", kind, "--outdir", str(out)]
    run(f"build {kind}", [*command, *options, str(source)], environment)


def _compiler(folder: Path, target: Target) -> Path:
    """Write a wrapper of zig that setup.py uses as the C compiler.

    Strips debug information, because that of zig's run-time library contains the path of this build.
    """
    path = folder / "cc"
    path.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -m ziglang cc -target {target.zig} -g0 -Wl,--strip-debug "$@"\n'
    )
    path.chmod(0o755)
    return path


def repack_sdist(draft: Path, result: Path, epoch: int) -> None:
    """Rewrite an sdist without what differs between builds: times, owners, the order of files."""
    packed = io.BytesIO()
    with tarfile.open(draft) as source, tarfile.open(fileobj=packed, mode="w") as target:
        for member in sorted(source.getmembers(), key=lambda one: one.name):
            executable = member.isdir() or bool(member.mode & stat.S_IXUSR)
            clean = tarfile.TarInfo(member.name)
            clean.type, clean.size, clean.linkname = member.type, member.size, member.linkname
            clean.mtime, clean.mode = epoch, 0o755 if executable else 0o644
            target.addfile(clean, source.extractfile(member) if member.isfile() else None)
    with result.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=epoch) as zipped:
        zipped.write(packed.getvalue())


def differing(first: Built, second: Built) -> list[str]:
    """Return the names of files that differ between two builds."""
    return [
        one.name
        for one, other in zip(first.files, second.files)
        if one.name != other.name or one.read_bytes() != other.read_bytes()
    ]
