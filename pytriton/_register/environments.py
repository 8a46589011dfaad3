"""Environments of workers: conda-pack archives, lists of requirements, and packages that a bare environment lacks.

Each is created once, in this user's cache folder, and named after its source::

    environments/archive-<sha256>/          an archive, unpacked; conda-unpack has run
    environments/requirements-<sha256>/     a virtual environment with these requirements
    environments/worker-<sha256>/           packages that a worker needs, for environments without them

A file `.complete` is written last; an entry without it is recreated. An entry whose creation fails is removed;
`pytriton-daemon cache --prune` removes unused ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytriton.exceptions import PyTritonBadParameterError

if TYPE_CHECKING:
    from pytriton._protocol.messages import WorkerEnvironment

#: Packages that a worker needs in its environment (worker/boot.py); numpy must be the environment's own.
WORKER_PACKAGES = {"pyzmq": "zmq", "msgspec": "msgspec", "cloudpickle": "cloudpickle"}
#: The variable that passes a folder with these packages to boot.py.
PACKAGES_VARIABLE = "PYTRITON_WORKER_PACKAGES"

#: Runs first in an interpreter of unknown version: reports that it is too old, in syntax valid for every Python.
_CHECK_VERSION = """import sys
if sys.version_info < (3, 9):
    sys.exit("it is Python " + sys.version.split()[0] + ", and a worker needs 3.9 or newer")
"""

Say = Callable[[str], None]
_SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar", ".zip")
_COMPLETE = ".complete"
_BLOCK = 1 << 20


def is_archive(path: str | os.PathLike[str]) -> bool:
    """Return True if the file name is that of a packed environment."""
    return os.fspath(path).endswith(_SUFFIXES) and os.path.isfile(path)


def unpacked(archive: str | os.PathLike[str], say: Say = lambda text: None) -> str:
    """Return the interpreter of a conda-pack archive. Unpacks the archive on first use.

    Raises:
        PyTritonBadParameterError: the archive cannot be unpacked, or contains no bin/python.
    """
    path = Path(archive)
    folder = _folder("archive", _hash_of_file(path))

    def make() -> None:
        say(f"unpacking {path.name}")
        try:
            _extract(path, folder)
        except (OSError, tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
            raise PyTritonBadParameterError(
                f"python={str(path)!r}: the archive cannot be unpacked into {folder}: {error}"
            ) from error
        if not (folder / "bin" / "python").exists():
            raise PyTritonBadParameterError(
                f"python={str(path)!r}: the archive contains no bin/python. Create it with conda-pack, or pack the "
                "contents of a relocatable virtual environment."
            )
        unpack = folder / "bin" / "conda-unpack"  # fixes the paths in the environment
        if unpack.exists():
            _run([str(folder / "bin" / "python"), str(unpack)], f"conda-unpack of {path.name}")

    _create_once(folder, make)
    return str(folder / "bin" / "python")


def with_requirements(
    requirements: Sequence[str], python: str, say: Say = lambda text: None
) -> str:
    """Return the interpreter of a virtual environment of `python` that has these requirements.

    Also installs numpy and the worker's packages. Uses uv if it is on PATH,
    else virtualenv and pip; both follow their own settings (index, proxy).

    Raises:
        PyTritonBadParameterError: the requirements are invalid or cannot be installed.
    """
    wanted = _requirement_list(requirements)
    about = json.dumps([sorted(wanted), os.path.realpath(python), _version_of(python)])
    folder = _folder("requirements", hashlib.sha256(about.encode()).hexdigest())
    interpreter = str(folder / "bin" / "python")

    def make() -> None:
        say(f"creating an environment with {', '.join(wanted)}")
        packages = ["numpy", *WORKER_PACKAGES, *wanted]
        uv = shutil.which("uv")
        if uv is not None:
            _run([uv, "venv", "--quiet", "--python", python, str(folder)], "uv venv")
            command = [uv, "pip", "install", "--python", interpreter, *packages]
        else:
            _run(
                [sys.executable, "-m", "virtualenv", "-q", "-p", python, str(folder)], "virtualenv"
            )
            command = [
                interpreter,
                "-m",
                "pip",
                "install",
                "--disable-pip-version-check",
                *packages,
            ]
        _run(command, f"installing {', '.join(wanted)}", say)

    _create_once(folder, make)
    return interpreter


def worker_packages(python: str, say: Say = lambda text: None) -> str | None:
    """Return a folder with the packages that a worker needs and `python` lacks; None if it lacks none.

    Raises:
        PyTritonBadParameterError: it lacks numpy, or the rest cannot be installed for it.
    """
    lacking = _lacking(python)
    if "numpy" in lacking:
        raise PyTritonBadParameterError(
            f"python={python!r} has no numpy, which every model needs. Install it into that environment: "
            f"{python} -m pip install numpy"
        )
    if not lacking:
        return None
    about = json.dumps([sorted(lacking), _version_of(python)])
    folder = _folder("worker", hashlib.sha256(about.encode()).hexdigest())

    def make() -> None:
        say(f"installing {', '.join(lacking)} for {python}")
        folder.mkdir(parents=True)
        _run(
            [*_installer(python), "--target", str(folder), *lacking],
            f"{python} lacks {', '.join(lacking)}, and installing them for it",
            say,
        )

    _create_once(folder, make)
    return str(folder)


def provide_worker_packages(
    world: WorkerEnvironment, say: Say = lambda text: None
) -> WorkerEnvironment:
    """Return the environment of workers in another interpreter, with the packages they need and it lacks.

    Raises:
        PyTritonBadParameterError: it lacks numpy, or the rest cannot be installed for it.
    """
    packages = worker_packages(world.python, say)
    if packages is None:
        return world
    import msgspec  # here: a process that only looks up an environment does not need it

    return msgspec.structs.replace(world, env={**world.env, PACKAGES_VARIABLE: packages})


def code_with_our_library(code: str, packages: str | None = None) -> str:
    """Return a program for another interpreter that can import this `pytriton`, and nothing else of this environment.

    Args:
        code: imports from pytriton
        packages: a folder with packages that the interpreter lacks; see `worker_packages`
    """
    library = str(Path(__file__).parents[2])
    more = [packages] if packages else []
    return (
        "import sys, importlib.machinery as m\n"
        "sys.dont_write_bytecode = True\n"  # keep another Python's bytecode out of this environment
        f"find = lambda name, path=None, target=None: m.PathFinder.find_spec(name, [{library!r}]) "
        "if name == 'pytriton' else None\n"
        "sys.meta_path.insert(0, type('Library', (), {'find_spec': staticmethod(find)}))\n"
        f"sys.path.pop(0); sys.path += {more!r}\n"
        f"{code}"
    )


def lacking(python: str, modules: Sequence[str]) -> list[str]:
    """Return the modules that an interpreter does not find.

    Raises:
        PyTritonBadParameterError: the interpreter does not work.
    """
    code = (
        "import importlib.util, json, sys\n"
        "print(json.dumps([n for n in sys.argv[1:] if importlib.util.find_spec(n) is None]))"
    )
    found: list[str] = json.loads(_run_python(python, code, *modules))
    return found


def _lacking(python: str) -> list[str]:
    modules = {"numpy": "numpy", **WORKER_PACKAGES}
    absent = lacking(python, list(modules.values()))
    return [name for name, module in modules.items() if module in absent]


def check_version(python: str) -> None:
    """Refuse an interpreter that is too old for workers or does not work.

    Raises:
        PyTritonBadParameterError: states its version, or its output.
    """
    _run_python(python, "")


def _version_of(python: str) -> str:
    return _run_python(
        python, "import sys, sysconfig; print(sys.version, sysconfig.get_config_var('SOABI'))"
    )


def _run_python(python: str, code: str, *arguments: str) -> str:
    # -c puts the working directory on the search path, where packages must not be found
    try:
        done = subprocess.run(
            [python, "-c", f"{_CHECK_VERSION}sys.path.pop(0)\n{code}", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="backslashreplace",
            check=False,
            env=plain_environment(),
        )
    except OSError as error:  # for another CPU architecture, for example
        raise PyTritonBadParameterError(
            f"python={python!r} does not work as a worker's interpreter: {error.strerror}"
        ) from error
    if done.returncode != 0:
        said = done.stderr.strip()[-400:] or f"it exited with status {done.returncode}"
        raise PyTritonBadParameterError(
            f"python={python!r} does not work as a worker's interpreter: {said}"
        )
    return done.stdout.strip()


def plain_environment() -> dict[str, str]:
    """Return this process's variables without those specific to its own interpreter."""
    own = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
    return {name: value for name, value in os.environ.items() if name not in own}


def _installer(python: str) -> list[str]:
    uv = shutil.which("uv")
    if uv is not None:
        return [uv, "pip", "install", "--python", python]
    if _has_pip(sys.executable):
        return [sys.executable, "-m", "pip", "--python", python, "install"]
    return [python, "-m", "pip", "install"]


def _has_pip(python: str) -> bool:
    with contextlib.suppress(PyTritonBadParameterError):
        _run_python(python, "import pip")
        return True
    return False


def _requirement_list(requirements: Sequence[str]) -> list[str]:
    if isinstance(requirements, str) or not all(isinstance(one, str) for one in requirements):
        raise PyTritonBadParameterError(
            f"requirements={requirements!r}: give a list of texts such as ['torch>=2', 'transformers']."
        )
    if not requirements:
        raise PyTritonBadParameterError("requirements=[] is empty; omit it.")
    for one in requirements:
        if one.startswith("-") or not one.strip():
            raise PyTritonBadParameterError(
                f"requirements: {one!r} is not a requirement. Set options of pip in its own settings (pip.conf, "
                "PIP_INDEX_URL)."
            )
    return list(dict.fromkeys(one.strip() for one in requirements))


def _run(command: Sequence[str], what: str, say: Say = lambda text: None) -> None:
    last: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=plain_environment(),
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last = [*last[-11:], line.rstrip()]
            if line.lstrip().startswith(("Downloading", "Collecting", "Installing")):
                say(line.strip()[:120])
    if process.returncode != 0:
        raise PyTritonBadParameterError(
            f"{what} failed ({os.path.basename(command[0])} exited with status {process.returncode}):\n"
            + "\n".join(last)
        )


def _extract(archive: Path, folder: Path) -> None:
    if archive.name.endswith(".zip"):
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder)
        return
    with tarfile.open(archive) as packed:
        if hasattr(tarfile, "tar_filter"):  # refuses members that would be extracted elsewhere
            packed.extractall(folder, filter="tar")
        else:
            packed.extractall(folder)


def _hash_of_file(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _folder(kind: str, key: str) -> Path:
    # Same order as in pytriton/_host/install/cache.py; this folder is a part of that cache.
    root = os.environ.get("PYTRITON_DAEMON_CACHE_DIR", "")
    if not root:
        xdg = os.environ.get("XDG_CACHE_HOME", "")
        base = Path(xdg) if xdg.startswith("/") else Path.home() / ".cache"
        root = str(base / "pytriton-daemon")
    return Path(root).expanduser().absolute() / "environments" / f"{kind}-{key[:24]}"


def _create_once(folder: Path, make: Callable[[], None]) -> None:
    """Create a folder unless it exists and is complete; one process at a time."""
    if (folder / _COMPLETE).exists():
        with contextlib.suppress(OSError):
            os.utime(folder)  # the time of last use, for `pytriton-daemon cache`
        return
    from filelock import FileLock

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if (folder / _COMPLETE).exists():
                return
            shutil.rmtree(folder, ignore_errors=True)
            try:
                make()
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)  # an incomplete environment is useless
                raise
            (folder / _COMPLETE).touch()
    except OSError as error:
        raise PyTritonBadParameterError(
            f"cannot create an environment in {folder}: {error}. Set PYTRITON_DAEMON_CACHE_DIR to a folder with "
            "free space that this user can write to."
        ) from error
