"""Virtual environments with pytriton-daemon for other Python and numpy versions, created once and cached."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from filelock import FileLock

from support.file_cache import cache_folder

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]


def find_interpreter(*versions: str) -> str | None:
    """Return a Python of one of these versions ("3.9") from PATH, pyenv or uv; None if there is none."""
    for version in versions:
        pyenv = sorted(glob.glob(os.path.expanduser(f"~/.pyenv/versions/{version}.*/bin/python")))
        uv = sorted(
            glob.glob(
                os.path.expanduser(f"~/.local/share/uv/python/cpython-{version}.*/bin/python3")
            )
        )
        on_path = shutil.which(f"python{version}")
        for candidate in [*pyenv, *uv, *([on_path] if on_path else [])]:
            if _is(candidate, version):
                return candidate
    return None


def _is(candidate: str, version: str) -> bool:
    # pyenv has shims even for inactive versions, so run it.
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() == version


#: A file of a complete environment that names its checkout.
_READY = "ready"
#: pip's report about the installation, in the environment's folder.
_REPORT = "report.json"


def make_environment(python: str, *requirements: str) -> str:
    """Return the interpreter of an environment with this checkout, coverage tracing, and `requirements`."""
    wanted = "\n".join([python, str(ROOT), "a wheel with tracing", *requirements, _declared()])
    key = hashlib.sha256(wanted.encode()).hexdigest()[:16]
    folder = cache_folder() / key
    with FileLock(f"{folder}.lock"):
        if not (folder / _READY).exists():
            shutil.rmtree(folder, ignore_errors=True)
            _remove_environments_of_deleted_checkouts(folder.parent)
            _run(sys.executable, "-m", "virtualenv", "--quiet", "--python", python, str(folder))
            # pip compiles nothing: only a twentieth of it is ever imported.
            pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
            pip += ["--no-compile", "--no-warn-conflicts", "--report", str(folder / _REPORT)]
            _run(*pip, f"{_make_editable(folder)}[tracing]", *requirements)
            (folder / _READY).write_text(str(ROOT))
    return str(folder / "bin" / "python")


#: Builds the wheel and prints its name. pip would install setuptools and start Python four times per environment.
_MAKE_EDITABLE = (
    "import contextlib, sys; from setuptools import build_meta\n"
    "with contextlib.redirect_stdout(sys.stderr): name = build_meta.build_editable(sys.argv[1])\n"
    "print(name)"
)


def _make_editable(folder: Path) -> Path:
    """Build the wheel that `pip install -e` would build of this checkout; it fits every Python."""
    return folder / _run(sys.executable, "-c", _MAKE_EDITABLE, str(folder)).strip()


def _remove_environments_of_deleted_checkouts(kept: Path) -> None:
    """Remove the environments of deleted checkouts: each takes 200 MB."""
    for ready in kept.glob(f"*/{_READY}"):
        if not Path(ready.read_text()).exists():
            shutil.rmtree(ready.parent, ignore_errors=True)


def installed_files(python: str) -> list[str]:
    """Return the URLs that pip chose for an environment of `make_environment`, without the checkout's."""
    report = json.loads((Path(python).parents[1] / _REPORT).read_text())
    urls: list[str] = [one["download_info"]["url"] for one in report["install"]]
    return [url for url in urls if not url.startswith(Path(python).parents[1].as_uri())]


def _declared() -> str:
    """Return the settings that affect an installation, without those of linters and tests, which change more often."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    tools = project["tool"]["setuptools"]
    return json.dumps([project["build-system"], project["project"], tools], sort_keys=True)


def _run(*command: str) -> str:
    """Run a command in the checkout, and return its output."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout
