"""Tries a release in clean environments: each Python that is here, nothing but the wheel, no compiler on PATH."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from release.builder import TARGETS, Target
from release.tool_runner import ReleaseError, run

SUPPORTED = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
#: What a client needs of our dependencies (docs/reference/dependencies.md).
CLIENT = ("numpy", "tritonclient[grpc,http]")
_SERVING = Path(__file__).with_name("serving.py")
_ANSWER = [[3.0, 5.0, 7.0]]
_CLIENT = """
import pytriton, pytriton.client, pytriton.model_config
pytriton.client.ModelClient("grpc://127.0.0.1:1", "m", lazy_init=True).close()
pytriton.client.ModelClient("http://127.0.0.1:1", "m", lazy_init=True).close()
print("the wheel for every system: clients work with their own dependencies alone")
"""


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and the variables of what runs in it."""

    folder: Path
    variables: Mapping[str, str]

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"


def pythons() -> dict[str, Path]:
    """Return the interpreters of supported versions on this machine: version -> path."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    found = {}
    for version in SUPPORTED:
        candidates = [*map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))]
        candidates += filter(None, [shutil.which(f"python{version}")])
        for one in candidates:
            said = subprocess.run(
                [one, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"],
                capture_output=True,
                text=True,
                check=False,
            )
            if said.stdout.strip() == version:
                found[version] = Path(one)
                break
    return found


def make_environment(python: Path, folder: Path, cache: Path) -> Environment:
    """Make an empty virtual environment whose programs see no compiler and no settings of this user.

    Args:
        python: the interpreter
        folder: a folder that is not there yet
        cache: the daemon's cache folder: tritonserver may lie there already
    """
    run("venv", [str(python), "-m", "venv", str(folder)])
    home = folder / "home"
    home.mkdir()
    variables = {
        "PATH": str(folder / "bin"),
        "HOME": str(home),
        "CC": "",
        "PYTRITON_DAEMON_CACHE_DIR": str(cache),
        "PYTHONPATH": "",
        "VIRTUAL_ENV": "",
    }
    return Environment(folder, variables)


def install(environment: Environment, *what: str) -> None:
    """Install with pip, and have pip check that all dependencies are there."""
    pip = [str(environment.python), "-m", "pip", "--disable-pip-version-check"]
    run("pip install", [*pip, "install", "--quiet", *what])
    run("pip check", [*pip, "check"])


def serve(environment: Environment, folder: Path, what: str = "register") -> dict[str, Any]:
    """Start the daemon of an environment, have a model answer, stop it; return what serving.py reports.

    Raises:
        ReleaseError: it does not start or answer, or has not served with the parts that the wheel brings along.
    """
    folder.mkdir(exist_ok=True)
    command = [str(environment.python), str(_SERVING), str(folder), what]
    said = run("serving a model", command, environment.variables, folder)
    report: dict[str, Any] = json.loads(said.splitlines()[-1])
    if report["answers"] != [_ANSWER, _ANSWER]:
        raise ReleaseError(f"the model answered {report['answers']}, not {_ANSWER} twice")
    return report


def fill_cache(cache: Path) -> None:
    """Put the tritonserver that this user has already into an empty cache folder; nothing else."""
    own = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "pytriton-daemon"
    cache.mkdir()
    if (own / "server").is_dir():
        shutil.copytree(own / "server", cache / "server", symlinks=True, copy_function=_link)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # on another filesystem
        shutil.copy2(source, target)


def compiled_meanwhile(cache: Path) -> list[str]:
    """Return what was made in a cache folder since fill_cache(), because the wheel's own did not fit."""
    made = ("native-proxy", "native-frontend", "proxy-env")
    return [name for name in made if (cache / name).exists()]


def try_all(wheel: Path, folder: Path) -> Iterator[str]:
    """Install the wheel for each Python on this machine, and serve a model with it; yield a line about each.

    Raises:
        ReleaseError: it failed with one of them.
    """
    cache = folder / "cache"
    fill_cache(cache)
    for version, python in pythons().items():
        environment = make_environment(python, folder / f"py{version}", cache)
        install(environment, str(wheel))
        report = serve(environment, folder / f"served-{version}")
        if report["frontend"] != "pytriton-frontend" or compiled_meanwhile(cache):
            raise ReleaseError(
                f"Python {version}: {wheel.name} served without its own parts: {report}"
            )
        yield f"Python {report['python']}: native frontend, compiled proxy, a model answers over HTTP and gRPC"
        shutil.rmtree(environment.folder)


def try_client(wheel: Path, folder: Path) -> str:
    """Install the wheel for other systems with what a client needs and nothing else, and import the clients."""
    environment = make_environment(Path(sys.executable), folder / "client", folder / "none")
    pip = [str(environment.python), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    run("pip install", [*pip, "--no-deps", str(wheel)])
    run("pip install", [*pip, *CLIENT])
    # -I: what was installed, and not the checkout that this may run in.
    command = [str(environment.python), "-I", "-c", _CLIENT]
    return run("a client", command, environment.variables).strip()


def machine() -> str:
    """Return the name of this kind of machine, as wheels have it."""
    return platform.machine()


def own_target() -> tuple[Target | None, ...]:
    """Return what the wheel for this machine is built for."""
    return tuple(one for one in TARGETS if one.machine == machine()) or (None,)
