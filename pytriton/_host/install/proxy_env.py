"""The Python environment of the proxy: numpy 1.x, pyzmq and msgspec, and none of the user's packages.

The stub works with numpy 1.x only, and must not depend on a user's environment. It finds its environment through the
first `python3` on PATH, so this is a virtual environment whose `bin` directory comes first in tritonserver's PATH.

pip installs the packages with the user's settings: index, proxy, certificates, offline directories.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pytriton._host.install.cache import Progress, ServerRuntimeError, publish
from pytriton._host.install.interpreters import Interpreter, library_name
from pytriton._host.install.pip_call import make_environment, run_pip

REQUIREMENTS = ("numpy>=1.24,<2", "pyzmq", "msgspec")

#: Packages that a complete environment has in site-packages.
_IMPORT_NAMES = ("numpy", "zmq", "msgspec")
#: Directory in the environment for LD_LIBRARY_PATH, which contains nothing but libpython3.X.so.1.0. The library's original
#: directory is unsuitable: conda's also has libstdc++ and a hundred others, which must not replace the system's.
LIBRARY_DIR = "libpython"
_MARKER = "pytriton-daemon.json"


@dataclass(frozen=True)
class ProxyEnvironment:
    """The complete environment of a proxy."""

    root: Path

    @property
    def python(self) -> Path:
        return self.root / "bin" / "python3"


def make_proxy_environment(
    interpreter: Interpreter,
    cache: Path,
    progress: Progress,
    wheels: Path | None = None,
) -> ProxyEnvironment:
    """Return the proxy's environment for an interpreter. Create or recreate it if necessary.

    Args:
        interpreter: from `interpreters.find_interpreter`.
        cache: the cache directory.
        progress: gets a line for each slow step.
        wheels: a directory with wheels, which are preferred to the index (for machines without network access).

    Raises:
        ServerRuntimeError: the environment cannot be created; the text contains the end of pip's or virtualenv's output.
    """
    environment = ProxyEnvironment(cache / "proxy-env" / _key(interpreter))

    def build(draft: Path) -> None:
        version = ".".join(map(str, interpreter.version))
        progress(f"creating the proxy's environment (Python {version}: {', '.join(REQUIREMENTS)})")
        _fill(draft, interpreter, progress, wheels)

    publish(environment.root, build, lambda root: _is_whole(root, interpreter.version), progress)
    return environment


def still_serves(root: Path, version: tuple[int, int]) -> bool:
    """Return True if an environment is complete and meets this version's needs. Another version may have created it."""
    try:
        facts = json.loads((root / _MARKER).read_bytes())
    except (OSError, ValueError):
        return False
    return facts.get("requirements") == list(REQUIREMENTS) and _is_whole(root, version)


def _key(interpreter: Interpreter) -> str:
    """Return the environment's name. It is a hash of the content, so two interpreters never share an environment."""
    files = [os.path.realpath(interpreter.executable), os.path.realpath(interpreter.libpython)]
    parts = [*REQUIREMENTS, *files]  # bin/python and bin/python3.11 are the same one
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]
    return f"cp{interpreter.version[0]}{interpreter.version[1]}-{digest}"


def _site_packages(root: Path, version: tuple[int, int]) -> Path:
    major, minor = version
    return root / "lib" / f"python{major}.{minor}" / "site-packages"


def _is_whole(root: Path, version: tuple[int, int]) -> bool:
    """Return True if an environment is still usable: its interpreter and all its packages exist."""
    packages = _site_packages(root, version)
    return (
        (root / _MARKER).is_file()
        and os.access(root / "bin" / "python3", os.X_OK)
        and (root / LIBRARY_DIR / library_name(version)).is_file()
        and all((packages / name / "__init__.py").is_file() for name in _IMPORT_NAMES)
    )


def _fill(root: Path, interpreter: Interpreter, progress: Progress, wheels: Path | None) -> None:
    make_environment(root, interpreter.executable)
    python = root / "bin" / "python3"
    # Only the imported modules are compiled, below; compiling all of numpy would take longer than the rest.
    run_pip(
        python, ["install", "--no-compile", *_wheel_folder_flags(wheels), *REQUIREMENTS], progress
    )
    _check_imports(python)
    # The directory is renamed afterwards, which breaks scripts that contain its current path.
    # None is needed: pip is called as a module.
    for script in (root / "bin").iterdir():
        if not script.name.startswith("python"):
            script.unlink()
    (root / LIBRARY_DIR).mkdir()
    (root / LIBRARY_DIR / library_name(interpreter.version)).symlink_to(interpreter.libpython)
    facts = {"requirements": REQUIREMENTS, "interpreter": str(interpreter.executable)}
    (root / _MARKER).write_text(json.dumps(facts, indent=1))


def _wheel_folder_flags(wheels: Path | None) -> list[str]:
    if wheels is None:
        return []
    flags = ["--find-links", str(wheels.absolute())]
    # If the directory has all of them, do not wait for an index that may be unreachable.
    distributions = ("numpy-1.*.whl", "pyzmq-*.whl", "msgspec-*.whl")
    if all(any(wheels.glob(pattern)) for pattern in distributions):
        flags.append("--no-index")
    return flags


def _check_imports(python: Path) -> None:
    done = subprocess.run(
        [str(python), "-I", "-c", f"import {', '.join(_IMPORT_NAMES)}"],
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise ServerRuntimeError(
            f"the proxy's environment was installed, but its packages cannot be imported with "
            f"{os.path.realpath(python)}: {said[-1500:]}"
        )
