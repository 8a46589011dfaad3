"""The proxy's private Python environment: numpy 1.x, pyzmq and msgspec, and nothing of the user's.

It is private because the stub works with numpy 1.x only, and it must not matter what a user's environment
holds. The stub finds an environment through the first `python3` on
PATH, so this is a virtual environment whose `bin` tritonserver gets first on its PATH.

The pip inside fills it, which reads the user's own settings: index, proxy, certificates, offline folders.
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

#: What must lie in site-packages for the environment to be whole.
_IMPORT_NAMES = ("numpy", "zmq", "msgspec")
#: The folder of an environment for LD_LIBRARY_PATH, which holds libpython3.X.so.1.0 and nothing else. Not the one where
#: that lies: in conda's it is the neighbour of a libstdc++ and a hundred more that must not replace the system's.
LIBRARY_DIR = "libpython"
_MARKER = "pytriton-daemon.json"


@dataclass(frozen=True)
class ProxyEnvironment:
    """A ready environment, and the interpreter that it stands on."""

    root: Path
    interpreter: Interpreter

    @property
    def python(self) -> Path:
        return self.root / "bin" / "python3"


def make_proxy_environment(
    interpreter: Interpreter,
    cache: Path,
    progress: Progress,
    wheels: Path | None = None,
) -> ProxyEnvironment:
    """Return the proxy's environment for this interpreter; make it, or make it anew, if need be.

    Args:
        interpreter: from `interpreters.find_interpreter`.
        cache: the cache folder.
        progress: gets one line for each step that takes a while.
        wheels: a folder with wheels, used before the index (machines without network).

    Raises:
        ServerRuntimeError: it cannot be made; the text holds the last words of pip or virtualenv.
    """
    environment = ProxyEnvironment(cache / "proxy-env" / _key(interpreter), interpreter)

    def build(draft: Path) -> None:
        version = ".".join(map(str, interpreter.version))
        progress(f"making the proxy's environment (Python {version}: {', '.join(REQUIREMENTS)})")
        _fill(draft, interpreter, progress, wheels)

    publish(environment.root, build, lambda root: _is_whole(root, interpreter.version), progress)
    return environment


def still_serves(root: Path, version: tuple[int, int]) -> bool:
    """Whether an environment which some version of the daemon has made is whole, and what this version asks for."""
    try:
        facts = json.loads((root / _MARKER).read_bytes())
    except (OSError, ValueError):
        return False
    return facts.get("requirements") == list(REQUIREMENTS) and _is_whole(root, version)


def _key(interpreter: Interpreter) -> str:
    """Name the environment after all that it depends on, so that two Pythons never share one."""
    files = [os.path.realpath(interpreter.executable), os.path.realpath(interpreter.libpython)]
    parts = [*REQUIREMENTS, *files]  # bin/python and bin/python3.11 are the same one
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]
    return f"cp{interpreter.version[0]}{interpreter.version[1]}-{digest}"


def _site_packages(root: Path, version: tuple[int, int]) -> Path:
    major, minor = version
    return root / "lib" / f"python{major}.{minor}" / "site-packages"


def _is_whole(root: Path, version: tuple[int, int]) -> bool:
    """Tell in microseconds whether a former start's environment still serves.

    It does not when its interpreter was removed or something deleted files from the cache.
    """
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
    # What is imported is compiled below; all of numpy would take longer than the rest.
    run_pip(
        python, ["install", "--no-compile", *_wheel_folder_flags(wheels), *REQUIREMENTS], progress
    )
    _check_imports(python)
    # The folder is renamed into place. Scripts that hold its present path would not survive that;
    # nobody needs them, pip is called as a module.
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
    # When the folder has all of them, do not wait for an index that may be out of reach.
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
            f"the proxy's environment was installed but does not import its packages with "
            f"{os.path.realpath(python)}: {said[-1500:]}"
        )
