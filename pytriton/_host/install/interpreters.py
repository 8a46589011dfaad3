"""Finds the proxy's Python: the interpreter inside tritonserver's stub process.

The stub is a C++ program linked with `libpython3.X.so.1.0`, so the interpreter must be a CPython with this
shared library, of a version for which there is a stub. The stub also needs numpy 1.x, which has wheels for
CPython 3.9 to 3.12. The daemon and the workers may use other versions of Python.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytriton._host.bounded_run import run_bounded
from pytriton._host.install.cache import ServerRuntimeError

#: Versions for which there are a stub and wheels of numpy 1.x, in the order in which they are tried.
PROXY_VERSIONS = ((3, 12), (3, 11), (3, 10), (3, 9))

PROBE_TIMEOUT_S = 30.0

# Runs under any Python 3, hence the plain old syntax. Prints one JSON object.
_PROBE = """
import json, os, platform, struct, sys, sysconfig
var = sysconfig.get_config_var

def base_executable():
    if sys.prefix == sys.base_prefix:
        return sys.executable
    # sys._base_executable is the environment's own python before Python 3.11
    own = getattr(sys, "_base_executable", None) or sys.executable
    name = "python%d.%d" % sys.version_info[:2]
    places = [own, os.path.join(sys.base_prefix, "bin", name), os.path.realpath(own)]
    inside = os.path.join(sys.prefix, "")
    return [place for place in places if os.path.exists(place) and not place.startswith(inside)][0]

print(json.dumps({
    "version": list(sys.version_info[:3]),
    "implementation": platform.python_implementation(),
    "machine": platform.machine(),
    "bits": struct.calcsize("P") * 8,
    "base_prefix": sys.base_prefix,
    "executable": base_executable(),
    "libdir": var("LIBDIR"),
    "multiarch": var("MULTIARCH"),
    "free_threaded": bool(var("Py_GIL_DISABLED")),
}))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python that can run the proxy."""

    executable: Path  #: the base interpreter, never one inside a virtual environment
    version: tuple[int, int]
    libpython: Path  #: its libpython3.X.so.1.0


@dataclass(frozen=True)
class Refusal:
    """A Python that cannot run the proxy, and the reason."""

    executable: Path
    reason: str


def library_name(version: tuple[int, int]) -> str:
    """Return the name of the shared library that the stub of this Python version loads."""
    return f"libpython{version[0]}.{version[1]}.so.1.0"


def find_interpreter(
    explicit: Path | None = None, versions: Collection[tuple[int, int]] = PROXY_VERSIONS
) -> Interpreter:
    """Return the Python that runs the proxy.

    Args:
        explicit: the `proxy_python` setting; if given, no other one is tried.
        versions: the (major, minor) versions with a stub.

    Raises:
        ServerRuntimeError: no Python is suitable; the text lists each one that was tried, with the reason.
    """
    wanted = [version for version in PROXY_VERSIONS if version in versions]
    if explicit is not None:
        result = examine(explicit, wanted)
        if isinstance(result, Refusal):
            raise ServerRuntimeError(
                f"the Python set for the proxy (proxy_python) cannot be used: {result.executable}: "
                f"{result.reason}"
            )
        return result
    refusals: dict[Path, str] = {}
    for candidate in _candidates(wanted):
        result = examine(candidate, wanted)
        if isinstance(result, Interpreter):
            return result
        refusals.setdefault(result.executable, result.reason)
    raise ServerRuntimeError(_none_fits(wanted, refusals))


def examine(executable: Path, versions: Collection[tuple[int, int]]) -> Interpreter | Refusal:
    """Check whether a Python can run the proxy, by having it run a script that prints facts about itself."""
    found = shutil.which(str(executable.expanduser()))
    if found is None:
        return Refusal(executable, "it does not exist, or is not executable")
    try:
        # Run in /, so that no module of the working directory can shadow the standard library.
        answer = run_bounded([found, "-I", "-c", _PROBE], timeout_s=PROBE_TIMEOUT_S, cwd="/")
        answer.check_returncode()
        facts = json.loads(answer.stdout)
    except subprocess.CalledProcessError as error:
        last = error.stderr.strip().splitlines()[-1:]
        return Refusal(Path(found), f"it does not run as Python 3 ({' '.join(last)[:200]})")
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        return Refusal(Path(found), f"it does not run as Python 3 ({error})")
    return _judge(Path(found), facts, versions)


def _judge(
    found: Path, facts: dict[str, Any], versions: Collection[tuple[int, int]]
) -> Interpreter | Refusal:
    major, minor, micro = facts["version"]
    wanted = ", ".join(f"{a}.{b}" for a, b in sorted(versions))
    executable = Path(str(facts["executable"]))
    if facts["implementation"] != "CPython":
        return Refusal(found, f"it is {facts['implementation']}; the stub needs CPython")
    if (major, minor) not in versions:
        return Refusal(found, f"it is Python {major}.{minor}.{micro}; the proxy needs {wanted}")
    if facts["bits"] != 64 or facts["machine"] != "x86_64":
        return Refusal(found, f"it is built for {facts['machine']}, {facts['bits']} bit")
    library = _find_libpython(facts, (major, minor))
    if library is None:
        name = library_name((major, minor))
        return Refusal(
            found,
            f"it has no shared library {name}: on Debian or Ubuntu, run 'apt install "
            f"libpython{major}.{minor}'; to build it from source, use './configure --enable-shared'",
        )
    return Interpreter(executable, (major, minor), library)


def _find_libpython(facts: dict[str, Any], version: tuple[int, int]) -> Path | None:
    name = library_name(version)
    libdir = Path(str(facts["libdir"] or "/nonexistent"))
    prefix = Path(str(facts["base_prefix"]))
    folders = [prefix / "lib", prefix / "lib64", libdir]
    if facts["multiarch"]:
        folders += [folder / str(facts["multiarch"]) for folder in (prefix / "lib", libdir)]
    for folder in folders:
        if os.path.isfile(folder / name):  # unlike Path.is_file(), False without permission
            return folder / name
    # The loader's cache has only the system's libraries. With another build of the same version,
    # they would mostly work and sometimes crash: the standard library belongs to the build.
    return _from_loader_cache(name) if prefix == Path("/usr") else None


def _from_loader_cache(name: str) -> Path | None:
    ldconfig = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
    if ldconfig is None:
        return None
    listing = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False).stdout
    for line in listing.splitlines():
        found, _, path = line.strip().partition(" => ")
        if found.split(" ")[0] == name and "x86-64" in found and Path(path).is_file():
            return Path(path)
    return None


def _candidates(versions: Collection[tuple[int, int]]) -> Iterator[Path]:
    """Yield the interpreters to examine, each file once, the daemon's own first."""
    seen: set[str] = set()
    for candidate in _all_candidates(versions):
        real = os.path.realpath(candidate)
        if real not in seen and os.access(candidate, os.X_OK):
            seen.add(real)
            # pyenv's shims are one file under many names, but different interpreters.
            if "/shims/" in str(candidate):
                seen.discard(real)
            yield candidate


def _all_candidates(versions: Collection[tuple[int, int]]) -> Iterator[Path]:
    own = getattr(sys, "_base_executable", None) or sys.executable
    if own:
        yield Path(own)
    names = [f"python{major}.{minor}" for major, minor in versions]
    folders = [Path(entry) for entry in os.environ.get("PATH", "").split(":") if entry]
    for name in [*names, "python3"]:
        yield from (folder / name for folder in folders)
    for root, pattern in _install_roots():
        for name in names:
            yield from sorted(root.glob(f"{pattern}/bin/{name}"), reverse=True)


def _install_roots() -> list[tuple[Path, str]]:
    """Return where pyenv, uv and conda install interpreters, as (directory, glob pattern of an installation)."""
    environ = os.environ
    home = Path(os.path.expanduser("~"))
    data = Path(environ.get("XDG_DATA_HOME") or home / ".local/share")
    roots = [
        (Path(environ.get("PYENV_ROOT") or home / ".pyenv") / "versions", "3.*"),
        (Path(environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv/python"), "cpython-3.*"),
    ]
    condas = [environ.get("CONDA_PREFIX"), "/opt/conda", *_home_condas(home)]
    for conda in condas:
        if conda:
            roots += [(Path(conda).parent, Path(conda).name), (Path(conda) / "envs", "*")]
    return roots


def _home_condas(home: Path) -> list[str]:
    return [str(home / name) for name in ("miniconda3", "miniforge3", "mambaforge", "anaconda3")]


def _none_fits(versions: Collection[tuple[int, int]], refusals: dict[Path, str]) -> str:
    wanted = ", ".join(f"{a}.{b}" for a, b in sorted(versions)) or "none: no stub is known"
    example = next(iter(sorted(versions)[-2:]), (3, 11))
    short = f"{example[0]}.{example[1]}"
    lines = [
        "no Python for the proxy was found (it runs inside tritonserver and needs CPython "
        f"{wanted} with a shared libpython). Tried:"
    ]
    lines += [f"  {path}: {reason}" for path, reason in refusals.items()] or ["  (nothing)"]
    lines += [
        "One of these fixes it:",
        f"  apt install python{short} libpython{short}     (Debian, Ubuntu)",
        f"  uv python install {short}",
        f"  conda create -n triton-proxy python={short}, then set proxy_python to its bin/python",
    ]
    return "\n".join(lines)
