"""Environments of workers: a conda-pack archive, a list of requirements, and what a bare environment lacks.

Each is made once, in the cache folder of this user, and named after what it is made of::

    environments/archive-<sha256>/          an archive, unpacked; conda-unpack has run
    environments/requirements-<sha256>/     a virtual environment with these requirements
    environments/worker-<sha256>/           packages that a worker needs, for environments without them

A file `.complete` is written last; without it an entry is made anew. One that cannot be made is removed again;
`pytriton-daemon cache --prune` removes those that are not used any more.
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
    from pytriton._protocol.messages import World

#: What a worker needs in its environment (worker/boot.py); numpy has to be the environment's own.
WORKER_PACKAGES = {"pyzmq": "zmq", "msgspec": "msgspec", "cloudpickle": "cloudpickle"}
#: The variable that names a folder with those to boot.py.
PACKAGES_VARIABLE = "PYTRITON_WORKER_PACKAGES"

#: Begins what runs in an interpreter that may be any: says that it is too old, in the syntax of every Python.
_CHECK_VERSION = """import sys
if sys.version_info < (3, 9):
    sys.exit("it is Python " + sys.version.split()[0] + ", and a worker needs 3.9 or newer")
"""

Say = Callable[[str], None]
_SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar", ".zip")
_COMPLETE = ".complete"
_BLOCK = 1 << 20


def is_archive(path: str | os.PathLike[str]) -> bool:
    """Return whether this is the file of a packed environment, by its name."""
    return os.fspath(path).endswith(_SUFFIXES) and os.path.isfile(path)


def unpacked(archive: str | os.PathLike[str], say: Say = lambda text: None) -> str:
    """Return the interpreter of a conda-pack archive; unpacks it, the first time.

    Raises:
        PyTritonBadParameterError: it cannot be unpacked, or holds no bin/python.
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
                f"python={str(path)!r}: the archive holds no bin/python. Make it with conda-pack, or pack the "
                "contents of a relocatable virtual environment."
            )
        unpack = folder / "bin" / "conda-unpack"  # corrects the paths in it
        if unpack.exists():
            _run([str(folder / "bin" / "python"), str(unpack)], f"conda-unpack of {path.name}")

    _once(folder, make)
    return str(folder / "bin" / "python")


def with_requirements(
    requirements: Sequence[str], python: str, say: Say = lambda text: None
) -> str:
    """Return the interpreter of a virtual environment of `python` that has these requirements.

    numpy and what a worker needs are installed with them. It is made by uv, if that is on PATH,
    else by virtualenv and pip; both follow their own settings (index, proxy).

    Raises:
        PyTritonBadParameterError: no such requirements, or they cannot be installed.
    """
    wanted = _requirement_list(requirements)
    about = json.dumps([sorted(wanted), os.path.realpath(python), _version_of(python)])
    folder = _folder("requirements", hashlib.sha256(about.encode()).hexdigest())
    interpreter = str(folder / "bin" / "python")

    def make() -> None:
        say(f"making an environment with {', '.join(wanted)}")
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

    _once(folder, make)
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
        say(f"fetching {', '.join(lacking)} for {python}")
        folder.mkdir(parents=True)
        _run(
            [*_installer(python), "--target", str(folder), *lacking],
            f"{python} lacks {', '.join(lacking)}, and fetching them for it",
            say,
        )

    _once(folder, make)
    return str(folder)


def provide_worker_packages(world: World, say: Say = lambda text: None) -> World:
    """Return the world of workers in another interpreter, with what they need and that one lacks.

    Raises:
        PyTritonBadParameterError: it lacks numpy, or the rest cannot be installed for it.
    """
    packages = worker_packages(world.python, say)
    if packages is None:
        return world
    import msgspec  # here: who only looks for an environment has no use for it

    return msgspec.structs.replace(world, env={**world.env, PACKAGES_VARIABLE: packages})


def code_with_our_library(code: str, packages: str | None = None) -> str:
    """Return a program for another interpreter that can import this `pytriton`, and nothing else of this environment.

    Args:
        code: imports from pytriton
        packages: a folder with what that interpreter lacks; see `worker_packages`
    """
    library = str(Path(__file__).parents[2])
    more = [packages] if packages else []
    return (
        "import sys, importlib.machinery as m\n"
        "sys.dont_write_bytecode = True\n"  # this environment is no place for another Python's bytecode
        f"find = lambda name, path=None, target=None: m.PathFinder.find_spec(name, [{library!r}]) "
        "if name == 'pytriton' else None\n"
        "sys.meta_path.insert(0, type('Library', (), {'find_spec': staticmethod(find)}))\n"
        f"sys.path.pop(0); sys.path += {more!r}\n"
        f"{code}"
    )


def lacking(python: str, modules: Sequence[str]) -> list[str]:
    """Return those of the modules that an interpreter does not find.

    Raises:
        PyTritonBadParameterError: it does not work as one.
    """
    code = (
        "import importlib.util, json, sys\n"
        "print(json.dumps([n for n in sys.argv[1:] if importlib.util.find_spec(n) is None]))"
    )
    found: list[str] = json.loads(_ask(python, code, *modules))
    return found


def _lacking(python: str) -> list[str]:
    modules = {"numpy": "numpy", **WORKER_PACKAGES}
    absent = lacking(python, list(modules.values()))
    return [name for name, module in modules.items() if module in absent]


def check_version(python: str) -> None:
    """Refuse an interpreter that is too old for workers, or none.

    Raises:
        PyTritonBadParameterError: says which version it is, or what it says instead.
    """
    _ask(python, "")


def _version_of(python: str) -> str:
    return _ask(
        python, "import sys, sysconfig; print(sys.version, sysconfig.get_config_var('SOABI'))"
    )


def _ask(python: str, code: str, *arguments: str) -> str:
    # -c puts the working directory on the search path: not a place to find packages in
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
    except OSError as error:  # say, one of another kind of machine
        raise PyTritonBadParameterError(
            f"python={python!r} does not work as a worker's interpreter: {error.strerror}"
        ) from error
    if done.returncode != 0:
        said = done.stderr.strip()[-400:] or f"it ends with {done.returncode}"
        raise PyTritonBadParameterError(
            f"python={python!r} does not work as a worker's interpreter: {said}"
        )
    return done.stdout.strip()


def plain_environment() -> dict[str, str]:
    """Return this process's variables without those that mean its own interpreter."""
    mine = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
    return {name: value for name, value in os.environ.items() if name not in mine}


def _installer(python: str) -> list[str]:
    uv = shutil.which("uv")
    if uv is not None:
        return [uv, "pip", "install", "--python", python]
    if _has_pip(sys.executable):
        return [sys.executable, "-m", "pip", "--python", python, "install"]
    return [python, "-m", "pip", "install"]


def _has_pip(python: str) -> bool:
    with contextlib.suppress(PyTritonBadParameterError):
        _ask(python, "import pip")
        return True
    return False


def _requirement_list(requirements: Sequence[str]) -> list[str]:
    if isinstance(requirements, str) or not all(isinstance(one, str) for one in requirements):
        raise PyTritonBadParameterError(
            f"requirements={requirements!r}: give a list of texts such as ['torch>=2', 'transformers']."
        )
    if not requirements:
        raise PyTritonBadParameterError("requirements=[] asks for nothing; leave it out.")
    for one in requirements:
        if one.startswith("-") or not one.strip():
            raise PyTritonBadParameterError(
                f"requirements: {one!r} is no requirement. Options of pip go into its own settings (pip.conf, "
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
            f"{what} failed ({os.path.basename(command[0])} ended with {process.returncode}):\n"
            + "\n".join(last)
        )


def _extract(archive: Path, folder: Path) -> None:
    if archive.name.endswith(".zip"):
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder)
        return
    with tarfile.open(archive) as packed:
        if hasattr(tarfile, "tar_filter"):  # refuses what would land elsewhere
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
    # The order of pytriton/_host/install/cache.py, whose folder this is a part of.
    root = os.environ.get("PYTRITON_DAEMON_CACHE_DIR", "")
    if not root:
        xdg = os.environ.get("XDG_CACHE_HOME", "")
        base = Path(xdg) if xdg.startswith("/") else Path.home() / ".cache"
        root = str(base / "pytriton-daemon")
    return Path(root).expanduser().absolute() / "environments" / f"{kind}-{key[:24]}"


def _once(folder: Path, make: Callable[[], None]) -> None:
    """Make a folder unless it is there and whole; one process at a time."""
    if (folder / _COMPLETE).exists():
        with contextlib.suppress(OSError):
            os.utime(folder)  # when it was last used: `pytriton-daemon cache` goes by it
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
                shutil.rmtree(folder, ignore_errors=True)  # half of it is of no use to anybody
                raise
            (folder / _COMPLETE).touch()
    except OSError as error:
        raise PyTritonBadParameterError(
            f"an environment cannot be made in {folder}: {error}. Set PYTRITON_DAEMON_CACHE_DIR to a folder with "
            "room that this user can write."
        ) from error
