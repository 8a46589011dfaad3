"""Builds the native frontend: pytriton-daemon's own program around Triton's core, written in C.

A wheel contains the program; in a checkout, it is built once per machine with a C compiler. At startup, it loads its
libraries: Triton's core, nghttp2 for gRPC, OpenSSL for TLS, zlib for compression.

>>> frontend = make_frontend(tree, cache_dir(), progress=print)                  # doctest: +SKIP
>>> frontend.program
PosixPath('.../native-frontend/3f2a…/pytriton-frontend')
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytriton._host.bounded_run import run_bounded
from pytriton._host.install.cache import Progress, ServerRuntimeError, publish
from pytriton._host.install.compiled_proxy import source_root
from pytriton._host.install.proxy_compiler import (
    FRONTEND,
    BuildError,
    compile_program,
    source_key,
)
from pytriton._host.install.server_tree import ServerTree, find_core

#: Loading Triton's core takes less than a second.
_CHECK_S = 60.0
#: The frontend's name for a library -> the system's file name.
_SONAMES = {
    "nghttp2": "libnghttp2.so.14",
    "ssl": "libssl.so.3",
    "crypto": "libcrypto.so.3",
    "z": "libz.so.1",
}


@dataclass(frozen=True)
class NativeProgram:
    """The native frontend, and the libraries that it loads."""

    program: Path
    core: Path
    libraries: dict[str, str]  #: by their names in the frontend's settings


def make_frontend(tree: ServerTree, cache: Path, progress: Progress) -> NativeProgram:
    """Return the native frontend for a tritonserver. Build it if necessary.

    Raises:
        ServerRuntimeError: the frontend cannot be built, or cannot load a library; the text says why.
    """
    core = _core(tree)
    frontend = NativeProgram(_build(cache, progress), core, _libraries(tree.libraries))
    flaw = _flaw(frontend, tree.libraries)
    if flaw:
        raise ServerRuntimeError(f"the native frontend cannot be used: {flaw}")
    return frontend


def is_built(cache: Path) -> bool:
    """Return True if the program exists and need not be built. This does not check that it can load Triton's core."""
    root = source_root()
    built = cache / "native-frontend" / source_key(FRONTEND, root) / FRONTEND.file
    return built.is_file() or _runs(root / FRONTEND.folders[0] / FRONTEND.file)


def library_environment(libraries: Sequence[Path]) -> dict[str, str]:
    """Return the environment variables with which a program finds Triton's core and its libraries."""
    places = [*map(str, libraries), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {"LD_LIBRARY_PATH": ":".join(places)}


def _core(tree: ServerTree) -> Path:
    found = find_core(tree)
    if found is None:
        raise ServerRuntimeError(f"{tree.root}/lib has no libtritonserver.so")
    return found


def _build(cache: Path, progress: Progress) -> Path:
    root = source_root()
    included = root / FRONTEND.folders[0] / FRONTEND.file
    if _runs(included):
        return included
    target = cache / "native-frontend" / source_key(FRONTEND, root)

    def make(draft: Path) -> None:
        progress("building the native frontend")
        try:
            compile_program(FRONTEND, root, draft / FRONTEND.file)
        except BuildError as error:
            raise ServerRuntimeError(f"the native frontend cannot be built: {error}") from error

    publish(target, make, lambda there: (there / FRONTEND.file).is_file(), progress)
    return target / FRONTEND.file


def _runs(program: Path) -> bool:
    """Return True if this installation contains the program, and it runs on this machine."""
    if not program.is_file():
        return False
    try:
        said = run_bounded([program], timeout_s=_CHECK_S)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "usage:" in said.stderr


def _libraries(places: Sequence[Path]) -> dict[str, str]:
    """Return the file to load for each library: tritonserver's copy if it has one, else the system's."""
    found: dict[str, str] = {}
    for name, soname in _SONAMES.items():
        # Libraries in a wheel have a part of their hash in their names.
        brought = [
            one
            for place in places
            for pattern in (f"lib{name}-*.so*", soname)
            for one in sorted(place.glob(pattern))
        ]
        found[name] = str(brought[0]) if brought else soname
    return found


def _flaw(frontend: NativeProgram, places: Sequence[Path]) -> str | None:
    """Run the frontend in check mode, in which it loads all its libraries. Return its error; None if it succeeds."""
    listen = [{"fd": 0, "protocol": protocol} for protocol in ("http", "grpc")]
    settings = {"core": str(frontend.core), "libraries": frontend.libraries, "listen": listen}
    try:
        done = run_bounded(
            [frontend.program, "--settings=0", "--check"],
            timeout_s=_CHECK_S,
            text=json.dumps(settings),
            env={**os.environ, **library_environment(places)},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else None
