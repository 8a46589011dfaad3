"""C programs of tests: each source is compiled once, whichever program, process or later run of the tests needs it.

An object is used as long as nothing has changed of what it was made from: the compiler, its flags, the source, and each
header that the compiler has read, those of the system among them.
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

from pytriton.dispatcher.install.proxy_compiler import compiler
from support.kept import kept_folder, remove_unused

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
        target: the program
        flags: of the compiler, for each source
        sources: what it consists of
        link: libraries, and flags of the linker
    """
    command = compiler()
    assert command is not None, "these tests need a C compiler"
    given = [str(flag) for flag in flags]
    folder = kept_folder("objects")
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        objects = list(pool.map(lambda source: _object(command, given, source, folder), sources))
    linked = [flag for flag in given if flag.startswith("-Wl,") or flag[:2] not in _COMPILING]
    _run([command, *linked, "-o", target, *objects, *link])
    return target


def _object(command: str, flags: list[str], source: Path, folder: Path) -> Path:
    """Return the object of a source, which another process of the tests may be compiling."""
    digest = hashlib.sha256()
    for text in (_identity(command), *flags, str(source)):
        digest.update(text.encode() + b"\0")
    path = folder / f"{source.stem}-{digest.hexdigest()[:24]}.o"
    made_of = path.with_suffix(".json")
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists() and _is_unchanged(made_of):
            os.utime(path)
            os.utime(made_of)
        else:
            remove_unused(folder)
            part, told = path.with_suffix(".part"), path.with_suffix(".d")
            _run([command, *flags, "-MD", "-MF", told, "-c", "-o", part, source])
            made_of.write_text(json.dumps({file: _digest(file) for file in _files(told)}))
            part.rename(path)
    return path


@functools.cache
def _identity(command: str) -> str:
    """Return what differs between two compilers of one name."""
    said = subprocess.run([command, "--version"], check=True, capture_output=True, text=True)
    return f"{command}\n{said.stdout}"


def _files(told: Path) -> list[str]:
    """Return the source and its headers, of what the compiler writes for `make`."""
    names = told.read_text().replace("\\\n", " ").partition(": ")[2]
    return [name.replace("\\ ", " ") for name in re.findall(r"(?:\\ |\S)+", names)]


def _is_unchanged(made_of: Path) -> bool:
    """Whether each file is what it was when the object was made."""
    try:
        digests: dict[str, str] = json.loads(made_of.read_text())
        return all(_digest(file) == digest for file, digest in digests.items())
    except (OSError, ValueError):  # a file is gone, or the run that wrote this was killed
        return False


@functools.cache
def _digest(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def _run(command: Sequence[_Argument]) -> None:
    """Run the compiler; a failure is what it said first, not its command line."""
    done = subprocess.run(
        list(map(str, command)), check=False, capture_output=True, text=True, errors="replace"
    )
    if done.returncode:
        said = "\n".join(done.stderr.splitlines()[:_LINES_SHOWN])
        pytest.fail(f"the C sources do not compile:\n{said}", pytrace=False)
