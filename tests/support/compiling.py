"""C programs of tests: each source is compiled once in a test run, whichever of its processes and programs needs it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Union

import pytest

from pytriton.dispatcher.install.proxy_compiler import compiler

#: What flags begin with that are of no use to the linker.
_COMPILING = ("-I", "-D", "-U", "-W")
#: So much of what the compiler says is shown.
_LINES_SHOWN = 40
_Argument = Union[str, Path]


def compile_program(
    target: Path, flags: Sequence[_Argument], sources: Sequence[Path], link: Sequence[_Argument]
) -> Path:
    """Compile sources, and link them to a program or library.

    Args:
        target: the program; it lies in a folder of pytest's tmp_path_factory
        flags: of the compiler, for each source; `-I` and its folder in one
        sources: what it consists of
        link: libraries, and flags of the linker
    """
    command = compiler()
    assert command is not None, "these tests need a C compiler"
    given = [str(flag) for flag in flags]
    headers = _digest_of_headers([Path(flag[2:]) for flag in given if flag.startswith("-I")])
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        objects = list(
            pool.map(lambda source: _object(command, given, source, headers, target), sources)
        )
    linked = [flag for flag in given if flag.startswith("-Wl,") or flag[:2] not in _COMPILING]
    _run([command, *linked, "-o", target, *objects, *link])
    return target


def _object(command: str, flags: list[str], source: Path, headers: bytes, target: Path) -> Path:
    """Return the object of a source, which another process of the tests may be compiling."""
    digest = hashlib.sha256(headers)
    for text in (command, *flags, str(source)):
        digest.update(text.encode() + b"\0")
    digest.update(source.read_bytes())
    folder = _shared_folder(target)
    path = folder / f"{source.stem}-{digest.hexdigest()[:24]}.o"
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            part = path.with_suffix(".part")
            _run([command, *flags, "-c", "-o", part, source])
            part.rename(path)
    return path


def _shared_folder(target: Path) -> Path:
    """Return a folder of this test run's that all its processes have."""
    run = next((up for up in target.parents if up.name.startswith("pytest-")), target.parent)
    folder = run / "objects"
    folder.mkdir(exist_ok=True)
    return folder


def _digest_of_headers(folders: Sequence[Path]) -> bytes:
    """Return a digest of all that sources may include from those folders."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted((*folder.rglob("*.h"), *folder.glob("*.c"))):
            digest.update(str(path).encode() + b"\0" + path.read_bytes())
    return digest.digest()


def _run(command: Sequence[_Argument]) -> None:
    """Run the compiler; a failure is what it said first, not its command line."""
    done = subprocess.run(
        list(map(str, command)), check=False, capture_output=True, text=True, errors="replace"
    )
    if done.returncode:
        said = "\n".join(done.stderr.splitlines()[:_LINES_SHOWN])
        pytest.fail(f"the C sources do not compile:\n{said}", pytrace=False)
