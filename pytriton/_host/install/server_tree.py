"""The files of a tritonserver installation, and where they are in each layout.

```
NVIDIA's containers (/opt/tritonserver)      the wheel, unpacked (our cache)
  bin/tritonserver                             pytriton/tritonserver/bin/tritonserver
  lib/                                         nvidia_pytriton.libs/
  backends/python/libtriton_python.so          pytriton/tritonserver/python_backend_stubs/3.X/...
  backends/python/triton_python_backend_stub   pytriton/tritonserver/python_backend_stubs/3.X/...
  caches/local/                                pytriton/tritonserver/caches/local/
```
The native frontend needs only `lib/`. NVIDIA's executable needs `bin/`; the Python proxy and models of Triton's python
backend need `backends/python` or the stubs.

`backends/python` has a stub for one version of Python. In the wheel, it has no stub, but each directory in
`python_backend_stubs` has one; unpacking turns these directories into complete Python backends.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

LIBRARY_NAME = "libtriton_python.so"
STUB_NAME = "triton_python_backend_stub"
#: The wheel's stub for 3.13 links to the library bundled with it, libpython3-<hash>.13.so.1.0.
_PYTHON = b"libpython3"
_LINKED = re.compile(rb"libpython(3)(?:-[0-9a-f]+)?\.(\d+)\.so\.1\.0")


@dataclass(frozen=True)
class ServerTree:
    """The files of a tritonserver installation, without a Python for its stub."""

    binary: Path | None  #: NVIDIA's executable
    backends: Path  #: the directory of all its backends, which may not exist
    caches: Path | None  #: for --cache-directory
    libraries: tuple[Path, ...]  #: for LD_LIBRARY_PATH
    #: Directories with the Python backend and its stub, by the stub's Python: ((3, 11), folder), ...
    python_backends: tuple[tuple[tuple[int, int], Path], ...]
    version: str | None  #: Triton's version, such as "2.51.0", if a file contains it

    @property
    def root(self) -> Path:
        """The installation's directory."""
        return self.backends.parent

    @property
    def program(self) -> Path:
        """NVIDIA's executable; the core's library if there is none."""
        return self.binary or next(_cores(self.libraries), self.root)

    @property
    def lacks(self) -> str | None:
        """The part of a complete installation that this tree lacks; None if it is complete."""
        if self.binary is None:
            return f"{self.root} has no bin/tritonserver"
        return self.lacks_python

    @property
    def lacks_python(self) -> str | None:
        """The missing part of Triton's python backend; None if it is complete."""
        if self.python_backends:
            return None
        return (
            f"{self.program} has no Python backend: {self.backends}/python has no {LIBRARY_NAME} with "
            f"a usable {STUB_NAME}"
        )

    @property
    def python_versions(self) -> list[tuple[int, int]]:
        """The versions of Python for which there is a stub."""
        return [version for version, _ in self.python_backends]


@dataclass(frozen=True)
class NoServer:
    """The reason why there is no usable tritonserver at a path."""

    flaw: str


def read_tree(path: Path) -> ServerTree | NoServer:
    """Find the files of the installation at a path: its directory, or its tritonserver binary."""
    try:
        return _read_tree(path.expanduser().absolute())
    except OSError as error:  # for example a directory that this user may not enter
        return NoServer(f"{error.filename or path} cannot be read ({error.strerror})")


def _read_tree(path: Path) -> ServerTree | NoServer:
    # From Python 3.14 on, the methods below return False for what this user may not read, instead of raising OSError.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        path.stat()
    binary = _find_binary(path)
    if isinstance(binary, NoServer):
        if next(_cores([path / "lib"]), None) is None:
            return binary
        root = path
    else:
        root = binary.parent.parent
    libraries = [root / "lib", root.parent.parent / "nvidia_pytriton.libs"]
    return ServerTree(
        binary=binary if isinstance(binary, Path) else None,
        backends=root / "backends",
        caches=root / "caches" if (root / "caches" / "local").is_dir() else None,
        libraries=tuple(folder for folder in libraries if folder.is_dir()),
        python_backends=tuple(sorted(_find_python_backends(root).items())),
        version=_read_version(root),
    )


def _cores(libraries: Iterable[Path]) -> Iterator[Path]:
    """Yield the paths of Triton's core library in these directories."""
    for folder in libraries:
        yield from sorted(folder.glob("libtritonserver*.so"))


def find_core(tree: ServerTree) -> Path | None:
    """Return the path of Triton's core library; None if there is none."""
    return next(_cores(tree.libraries), None)


def _find_binary(path: Path) -> Path | NoServer:
    if path.is_dir():
        places = ("bin/tritonserver", "pytriton/tritonserver/bin/tritonserver")
        found = [path / place for place in places if (path / place).is_file()]
        if not found:
            return NoServer(f"{path} has no {', no '.join(places)} and no lib/libtritonserver.so")
        path = found[0]
    elif not path.exists():
        return NoServer(f"{path} does not exist")
    if not os.access(path, os.X_OK):
        return NoServer(f"this user cannot execute {path}")
    return path.resolve()


def _find_python_backends(root: Path) -> dict[tuple[int, int], Path]:
    found: dict[tuple[int, int], Path] = {}
    for folder in (*root.glob("python_backend_stubs/3.*"), root / "backends" / "python"):
        stub = folder / STUB_NAME
        if stub.is_file() and (folder / LIBRARY_NAME).is_file():
            version = _stub_version(stub)
            if version is not None:
                found[version] = folder
    return found


def _stub_version(stub: Path) -> tuple[int, int] | None:
    """Return the Python version of a stub, from the names of the libraries that it is linked with."""
    if stub.stat().st_size == 0:  # an empty file cannot be mapped
        return None
    # In the wheel's stubs, these names are at the end of a megabyte, so that only the last pages are read.
    with (
        open(stub, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        at = content.rfind(_PYTHON)
        while at >= 0:
            match = _LINKED.match(content, at)
            if match:
                return int(match[1]), int(match[2])
            at = content.rfind(_PYTHON, 0, at)
    return None


def _read_version(root: Path) -> str | None:
    try:
        return (root / "TRITON_VERSION").read_text().strip() or None
    except OSError:
        return None
