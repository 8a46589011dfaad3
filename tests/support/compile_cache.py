"""Compile the tests' C programs, each source once for all programs, processes and later runs.

An object's name is a digest of everything that it depends on: the compiler, its flags, the source, and each header that
the compiler read, including system headers. Paths are relative to the checkout, so checkouts share objects, and none
replaces an object that another is about to link.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import re
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Union

import pytest

from pytriton._host.install.proxy_compiler import compiler
from support.file_cache import cache_folder, remove_unused

_ROOT = Path(__file__).parents[2]
#: Prefixes of flags that the linker does not need.
_COMPILING = ("-I", "-D", "-U", "-W")
#: Maximum length of the compiler's output in errors.
_LINES_SHOWN = 40
#: Number of header lists kept for each source, whose includes may change.
_LISTS_KEPT = 8
_Argument = Union[str, Path]


def compile_program(
    target: Path, flags: Sequence[_Argument], sources: Sequence[Path], link: Sequence[_Argument]
) -> Path:
    """Compile sources, and link them into a program or library.

    Args:
        target: the program
        flags: of the compiler, for each source; `-DNAME=` only for sources that contain the name
        sources: the C files
        link: libraries, and flags of the linker
    """
    command = compiler()
    assert command is not None, "these tests need a C compiler"
    given = [_relative(str(flag)) for flag in flags]
    folder = cache_folder("objects")
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        objects = list(pool.map(lambda source: _object(command, given, source, folder), sources))
    linked = [flag for flag in given if flag.startswith("-Wl,") or flag[:2] not in _COMPILING]
    _run([command, *linked, "-o", target, *objects, *link])
    return target


def _object(command: str, given: list[str], source: Path, folder: Path) -> Path:
    """Return the object of a source, waiting if another test process is compiling it."""
    text = source.read_text()
    flags = [flag for flag in given if not flag.startswith("-D") or _defined(flag) in text]
    name = _relative(str(source))
    made_by = hashlib.sha256("\0".join([_identity(command), *flags, name]).encode()).hexdigest()
    # This file lists the headers of earlier objects.
    known = folder / f"{source.stem}-{made_by[:24]}"
    with open(f"{known}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lists = _read_lists(Path(f"{known}.json"))
        for path in filter(None, (_named(known, files) for files in lists)):
            if path.exists():
                os.utime(path)
                os.utime(f"{known}.json")
                return path
        _remove_unused_once(folder)
        part, reported = f"{known}.part", Path(f"{known}.d")
        mapped = f"-fdebug-prefix-map={_ROOT}=."
        _run([command, *flags, mapped, "-MD", "-MF", reported, "-c", "-o", part, name])
        files = _files(reported)
        made = _named(known, files)
        assert made is not None, "a file is gone that has just been compiled"
        Path(part).rename(made)
        if files not in lists:
            Path(f"{known}.json").write_text(json.dumps([*lists, files][-_LISTS_KEPT:]))
    return made


def _relative(text: str) -> str:
    """Return a path, or a flag that ends with one, relative to the checkout."""
    if text.endswith(str(_ROOT)):
        return f"{text[: -len(str(_ROOT))]}."
    return text.replace(f"{_ROOT}{os.sep}", "")


def _defined(flag: str) -> str:
    """Return the name that a flag defines."""
    return flag[2:].partition("=")[0]


def _named(known: Path, files: list[str]) -> Path | None:
    """Return the path of the object for the current contents of these files; None if one is missing."""
    try:
        digests = "\0".join(f"{file}\0{_digest(str(_ROOT / file))}" for file in files)
    except OSError:
        return None
    return Path(f"{known}-{hashlib.sha256(digests.encode()).hexdigest()[:24]}.o")


def _read_lists(path: Path) -> list[list[str]]:
    try:
        lists: list[list[str]] = json.loads(path.read_text())
    except (OSError, ValueError):  # there is none yet, or the run that wrote it was killed
        return []
    return lists


@functools.cache
def _identity(command: str) -> str:
    """Return what distinguishes two compilers of the same name."""
    said = subprocess.run([command, "--version"], check=True, capture_output=True, text=True)
    return f"{command}\n{said.stdout}"


def _files(reported: Path) -> list[str]:
    """Return the source and its headers from the dependencies that the compiler writes for `make`."""
    names = reported.read_text().replace("\\\n", " ").partition(": ")[2]
    return [name.replace("\\ ", " ") for name in re.findall(r"(?:\\ |\S)+", names)]


@functools.cache
def _remove_unused_once(folder: Path) -> None:
    remove_unused(folder)


@functools.cache
def _digest(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def _run(command: Sequence[_Argument]) -> None:
    """Run the compiler; on failure, raise its first messages rather than its command line."""
    done = subprocess.run(
        list(map(str, command)),
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
        cwd=_ROOT,
    )
    if done.returncode:
        said = "\n".join(done.stderr.splitlines()[:_LINES_SHOWN])
        pytest.fail(f"the C sources do not compile:\n{said}", pytrace=False)
