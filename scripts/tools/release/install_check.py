"""Install a release in empty environments, for each Python on this machine, without a compiler on PATH, and use it."""

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

from release import smoke_test
from release.builder import TARGETS, Target
from release.tool_runner import ReleaseError, run

SUPPORTED = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
#: The dependencies of a client (docs/reference/dependencies.md).
CLIENT = ("numpy", "tritonclient[grpc,http]")
_SMOKE_TEST = Path(smoke_test.__file__)
_ANSWER = [[3.0, 5.0, 7.0]]
_CLIENT = """
import pytriton, pytriton.client, pytriton.model_config
pytriton.client.ModelClient("grpc://127.0.0.1:1", "m", lazy_init=True).close()
pytriton.client.ModelClient("http://127.0.0.1:1", "m", lazy_init=True).close()
print("the wheel for every system: clients work with only their own dependencies")
"""


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and the variables of programs that run in it."""

    folder: Path
    variables: Mapping[str, str]

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"


def pythons() -> dict[str, Path]:
    """Return the interpreters of supported versions on this machine, by version."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    found = {}
    for version in SUPPORTED:
        candidates = [*map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))]
        candidates += filter(None, [shutil.which(f"python{version}")])
        for one in candidates:
            done = subprocess.run(
                [one, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.stdout.strip() == version:
                found[version] = Path(one)
                break
    return found


def make_environment(python: Path, folder: Path, cache: Path) -> Environment:
    """Create an empty virtual environment whose programs find no compiler and none of this user's settings.

    Args:
        python: the interpreter
        folder: a folder that does not exist yet
        cache: the daemon's cache folder, which may already contain tritonserver
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
    """Install with pip, and check that no dependency is missing."""
    pip = [str(environment.python), "-m", "pip", "--disable-pip-version-check"]
    run("pip install", [*pip, "install", "--quiet", *what])
    run("pip check", [*pip, "check"])


def serve(environment: Environment, folder: Path, what: str = "register") -> dict[str, Any]:
    """Run smoke_test.py in an environment; return its report.

    Raises:
        ReleaseError: the daemon does not start, or the model does not answer correctly
    """
    folder.mkdir(exist_ok=True)
    command = [str(environment.python), str(_SMOKE_TEST), str(folder), what]
    output = run("the smoke test", command, environment.variables, folder)
    report: dict[str, Any] = json.loads(output.splitlines()[-1])
    if report["answers"] != [_ANSWER, _ANSWER]:
        raise ReleaseError(f"the model answered {report['answers']}, not {_ANSWER} twice")
    return report


def fill_cache(cache: Path) -> None:
    """Create a cache folder that contains only this user's tritonserver, if there is one."""
    own = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "pytriton-daemon"
    cache.mkdir()
    if (own / "server").is_dir():
        shutil.copytree(own / "server", cache / "server", symlinks=True, copy_function=_link)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # on another filesystem
        shutil.copy2(source, target)


def compiled_parts(cache: Path) -> list[str]:
    """Return which parts were compiled into a cache folder because those in the wheel did not work."""
    made = ("native-proxy", "native-frontend", "proxy-env")
    return [name for name in made if (cache / name).exists()]


def check_all(wheel: Path, folder: Path) -> Iterator[str]:
    """Install the wheel for each Python on this machine, and serve a model with it; yield a line about each.

    Raises:
        ReleaseError: it failed with one of them, or did not use the wheel's compiled parts
    """
    cache = folder / "cache"
    fill_cache(cache)
    for version, python in pythons().items():
        environment = make_environment(python, folder / f"py{version}", cache)
        install(environment, str(wheel))
        report = serve(environment, folder / f"served-{version}")
        if report["frontend"] != "pytriton-frontend" or compiled_parts(cache):
            raise ReleaseError(
                f"Python {version}: {wheel.name} did not use its compiled parts: {report}"
            )
        yield f"Python {report['python']}: native frontend, compiled proxy, a model answers over HTTP and gRPC"
        shutil.rmtree(environment.folder)


def check_client(wheel: Path, folder: Path) -> str:
    """Install the wheel for other systems with only the dependencies of a client, and import the clients."""
    environment = make_environment(Path(sys.executable), folder / "client", folder / "none")
    pip = [str(environment.python), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    run("pip install", [*pip, "--no-deps", str(wheel)])
    run("pip install", [*pip, *CLIENT])
    # -I: import what was installed, not the current checkout.
    command = [str(environment.python), "-I", "-c", _CLIENT]
    return run("a client", command, environment.variables).strip()


def machine() -> str:
    """Return the architecture of this machine, as in the names of wheels."""
    return platform.machine()


def own_target() -> tuple[Target | None, ...]:
    """Return the target of the wheel for this machine."""
    return tuple(one for one in TARGETS if one.machine == machine()) or (None,)
