"""Where the files of a tritonserver installation lie, for each of the shapes it comes in.

```
NVIDIA's containers (/opt/tritonserver)      the wheel, unpacked (our cache)
  bin/tritonserver                             pytriton/tritonserver/bin/tritonserver
  lib/                                         nvidia_pytriton.libs/
  backends/python/libtriton_python.so          pytriton/tritonserver/backends/python/...
  backends/python/triton_python_backend_stub   pytriton/tritonserver/python_backend_stubs/3.X/...
  caches/local/                                pytriton/tritonserver/caches/local/
```
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

STUB_NAME = "triton_python_backend_stub"


@dataclass(frozen=True)
class ServerTree:
    """The files of one tritonserver, whether or not a Python for its stub has been found."""

    binary: Path
    backends: Path  #: holds python/libtriton_python.so
    caches: Path | None  #: for --cache-directory
    libraries: tuple[Path, ...]  #: for LD_LIBRARY_PATH
    stubs: tuple[tuple[tuple[int, int], Path], ...]  #: ((3, 11), path of the stub), ...
    version: str | None  #: of Triton, such as "2.51.0", when a file tells it

    def stub_for(self, version: tuple[int, int]) -> Path | None:
        return dict(self.stubs).get(version)


@dataclass(frozen=True)
class NoServer:
    """A path holds no usable tritonserver."""

    flaw: str


def read_tree(path: Path) -> ServerTree | NoServer:
    """Find the files around a tritonserver binary or below an installation's folder."""
    binary = _find_binary(path.expanduser().absolute())
    if isinstance(binary, NoServer):
        return binary
    root = binary.parent.parent
    backends = _first_folder(root / "backends", "python/libtriton_python.so")
    if backends is None:
        return NoServer(
            f"{binary} has no Python backend: {root}/backends/python/libtriton_python.so is missing"
        )
    stubs = _find_stubs(root, backends)
    if not stubs:
        return NoServer(f"{binary} has a Python backend without a usable {STUB_NAME}")
    libraries = [root / "lib", root.parent.parent / "nvidia_pytriton.libs"]
    return ServerTree(
        binary=binary,
        backends=backends,
        caches=_first_folder(root / "caches", "local"),
        libraries=tuple(folder for folder in libraries if folder.is_dir()),
        stubs=tuple(sorted(stubs.items())),
        version=_read_version(root),
    )


def _find_binary(path: Path) -> Path | NoServer:
    if path.is_dir():
        places = ("bin/tritonserver", "pytriton/tritonserver/bin/tritonserver")
        found = [path / place for place in places if (path / place).is_file()]
        if not found:
            return NoServer(f"the folder {path} holds no {' and no '.join(places)}")
        path = found[0]
    elif not path.exists():
        return NoServer(f"{path} does not exist")
    if not os.access(path, os.X_OK):
        return NoServer(f"{path} may not be executed by this user")
    return path.resolve()


def _first_folder(folder: Path, content: str) -> Path | None:
    return folder if (folder / content).exists() else None


def _find_stubs(root: Path, backends: Path) -> dict[tuple[int, int], Path]:
    stubs: dict[tuple[int, int], Path] = {}
    for stub in (root / "python_backend_stubs").glob(f"3.*/{STUB_NAME}"):
        stubs[(3, int(stub.parent.name[2:]))] = stub
    single = backends / "python" / STUB_NAME
    if not stubs and single.is_file():
        version = _stub_version(single)
        if version is not None:
            stubs[version] = single
    return stubs


def _stub_version(stub: Path) -> tuple[int, int] | None:
    """Read from the names of the libraries that it is linked with which Python a stub is for."""
    match = re.search(rb"libpython(3)\.(\d+)\.so\.1\.0", stub.read_bytes())
    return (int(match[1]), int(match[2])) if match else None


def _read_version(root: Path) -> str | None:
    try:
        return (root / "TRITON_VERSION").read_text().strip() or None
    except OSError:
        return None
