"""Python environments for workers, created from conda-pack archives or requirements, or completed with missing packages.

Each is created once, in this user's cache folder, and named after a hash of its source::

    environments/archive-<hash>/          an unpacked archive, after conda-unpack has run
    environments/requirements-<hash>/     a virtual environment with the requirements
    environments/worker-<hash>/           packages that a worker needs and an interpreter lacks

The file `.complete` is written last, and a folder without it is recreated. A folder whose creation failed is removed.
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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytriton._host.bounded_run import run_bounded
from pytriton.exceptions import PyTritonBadParameterError, PyTritonValidationError

if TYPE_CHECKING:
    from pytriton._protocol.messages import WorkerEnvironment

#: Packages that a worker needs (worker/boot.py), besides numpy: pip's name -> module.
WORKER_PACKAGES = {"pyzmq": "zmq", "msgspec": "msgspec", "cloudpickle": "cloudpickle"}
#: Environment variable that passes the folder with these packages to boot.py.
PACKAGES_VARIABLE = "PYTRITON_WORKER_PACKAGES"

#: First code to run in an interpreter of unknown version: exits if it is too old. Valid syntax in every Python.
_CHECK_VERSION = """import sys
if sys.version_info < (3, 9):
    sys.exit("it is Python " + sys.version.split()[0] + ", and a worker needs 3.9 or newer")
"""

Say = Callable[[str], None]
_SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar", ".zip")
_COMPLETE = ".complete"
_BLOCK = 1 << 20


def is_archive(path: str | os.PathLike[str]) -> bool:
    """Return True if a path is an existing archive, judging by its file name."""
    return os.fspath(path).endswith(_SUFFIXES) and os.path.isfile(path)


def unpack(archive: str | os.PathLike[str], say: Say = lambda text: None) -> str:
    """Return the interpreter of a conda-pack archive, which is unpacked on first use.

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
    """Return the interpreter of a virtual environment with these requirements, which is created on first use.

    The environment also gets numpy and the packages that a worker needs. It is created by uv if that is on PATH, else by
    virtualenv and pip; both follow their own settings (index, proxy).

    Args:
        requirements: as for pip, such as "torch>=2"
        python: the interpreter on which the environment is based
        say: called with progress messages

    Raises:
        PyTritonBadParameterError: the requirements are invalid or cannot be installed
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
    """Return a folder with the packages that a worker needs and `python` lacks; None if nothing is missing.

    The packages are installed into the folder on first use; the interpreter's own environment is not changed.

    Raises:
        PyTritonBadParameterError: `python` lacks numpy, or the packages cannot be installed
    """
    missing = _missing_packages(python)
    if "numpy" in missing:
        raise PyTritonBadParameterError(
            f"python={python!r} has no numpy, which every model needs. Install it into that environment: "
            f"{python} -m pip install numpy"
        )
    if not missing:
        return None
    about = json.dumps([sorted(missing), _version_of(python)])
    folder = _folder("worker", hashlib.sha256(about.encode()).hexdigest())

    def make() -> None:
        say(f"installing {', '.join(missing)} for {python}")
        folder.mkdir(parents=True)
        _run(
            [*_installer(python), "--target", str(folder), *missing],
            f"installing {', '.join(missing)}, which {python} lacks,",
            say,
        )

    _create_once(folder, make)
    return str(folder)


def provide_worker_packages(
    world: WorkerEnvironment, say: Say = lambda text: None
) -> WorkerEnvironment:
    """Return an environment, extended with the packages that a worker needs and its interpreter lacks.

    Raises:
        PyTritonBadParameterError: the interpreter lacks numpy, or the packages cannot be installed
    """
    packages = worker_packages(world.python, say)
    if packages is None:
        return world
    import msgspec  # not needed by processes that only look up an environment

    return msgspec.structs.replace(world, env={**world.env, PACKAGES_VARIABLE: packages})


def code_with_our_library(code: str, packages: str | None = None) -> str:
    """Return code that lets another interpreter import `pytriton`, but nothing else from this environment.

    Args:
        code: the code to run, which may import from pytriton
        packages: a folder with packages that the interpreter lacks; see `worker_packages`
    """
    library = str(Path(__file__).parents[2])
    more = [packages] if packages else []
    return (
        "import sys, importlib.machinery as m\n"
        "sys.dont_write_bytecode = True\n"  # no bytecode of another Python version in this environment
        f"find = lambda name, path=None, target=None: m.PathFinder.find_spec(name, [{library!r}]) "
        "if name == 'pytriton' else None\n"
        "sys.meta_path.insert(0, type('Library', (), {'find_spec': staticmethod(find)}))\n"
        f"sys.path.pop(0); sys.path += {more!r}\n"
        f"{code}"
    )


def ask_interpreter(
    world: WorkerEnvironment,
    module: str,
    question: Mapping[str, Any],
    what: str,
    limit_s: float | None,
) -> dict[str, Any]:
    """Make the workers' interpreter load a model file, without GPUs, and return what it reports.

    Args:
        world: the workers' environment
        module: module of ours whose `main` reads the question from standard input and prints the answer, both in JSON
        question: what to load
        what: the file or model, for error messages
        limit_s: maximum time in seconds; None: no limit

    Raises:
        PyTritonValidationError: it cannot be loaded, or takes too long
    """
    code = code_with_our_library(
        f"from {module} import main; main()", world.env.get(PACKAGES_VARIABLE)
    )
    try:
        done = run_bounded(
            [world.python, "-c", code],
            timeout_s=limit_s,
            text=json.dumps(question),
            cwd=world.cwd,
            env={**world.env, "CUDA_VISIBLE_DEVICES": ""},
        )
    except subprocess.TimeoutExpired:
        raise PyTritonValidationError(
            f"{what} was not loaded within {limit_s:g} s (load_timeout_s)."
        ) from None
    try:
        answer = dict(json.loads(done.stdout.strip().splitlines()[-1]))
    except (IndexError, TypeError, ValueError):
        said = done.stderr.strip()[-2000:]
        raise PyTritonValidationError(
            f"{what} cannot be loaded: the process that loads it exited with status {done.returncode}: {said}"
        ) from None
    if "error" in answer:
        raise PyTritonValidationError(str(answer["error"]))
    return answer


def missing_modules(python: str, modules: Sequence[str]) -> list[str]:
    """Return the modules that an interpreter cannot find.

    Raises:
        PyTritonBadParameterError: the interpreter does not work
    """
    code = (
        "import importlib.util, json, sys\n"
        "print(json.dumps([n for n in sys.argv[1:] if importlib.util.find_spec(n) is None]))"
    )
    found: list[str] = json.loads(_run_python(python, code, *modules))
    return found


def _missing_packages(python: str) -> list[str]:
    modules = {"numpy": "numpy", **WORKER_PACKAGES}
    absent = missing_modules(python, list(modules.values()))
    return [name for name, module in modules.items() if module in absent]


def check_version(python: str) -> None:
    """Check that an interpreter works and is recent enough for workers.

    Raises:
        PyTritonBadParameterError: it is not; the text contains its version or its output
    """
    _run_python(python, "")


def _version_of(python: str) -> str:
    return _run_python(
        python, "import sys, sysconfig; print(sys.version, sysconfig.get_config_var('SOABI'))"
    )


def _run_python(python: str, code: str, *arguments: str) -> str:
    # The code removes the working directory, which -c puts first, from the search path.
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
    """Return this process's environment variables, except those specific to its own interpreter."""
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
            f"requirements={requirements!r}: pass a list of strings, such as ['torch>=2', 'transformers']."
        )
    if not requirements:
        raise PyTritonBadParameterError("requirements=[] is empty; omit it.")
    for one in requirements:
        if one.startswith("-") or not one.strip():
            raise PyTritonBadParameterError(
                f"requirements: {one!r} is not a requirement. Set pip's options in its own settings (pip.conf, "
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
        if hasattr(
            tarfile, "tar_filter"
        ):  # rejects members that would be extracted outside of the folder
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
    # The same rules as in pytriton/_host/install/cache.py: this folder is part of that cache.
    root = os.environ.get("PYTRITON_DAEMON_CACHE_DIR", "")
    if not root:
        xdg = os.environ.get("XDG_CACHE_HOME", "")
        base = Path(xdg) if xdg.startswith("/") else Path.home() / ".cache"
        root = str(base / "pytriton-daemon")
    return Path(root).expanduser().absolute() / "environments" / f"{kind}-{key[:24]}"


def _create_once(folder: Path, make: Callable[[], None]) -> None:
    """Call `make` to create a folder, unless it exists and is complete. A file lock admits one process at a time."""
    if (folder / _COMPLETE).exists():
        with contextlib.suppress(OSError):
            os.utime(folder)  # marks the last use, for `pytriton-daemon cache`
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
                shutil.rmtree(folder, ignore_errors=True)
                raise
            (folder / _COMPLETE).touch()
    except OSError as error:
        raise PyTritonBadParameterError(
            f"cannot create an environment in {folder}: {error}. Set PYTRITON_DAEMON_CACHE_DIR to a folder with "
            "free space that this user can write to."
        ) from error
