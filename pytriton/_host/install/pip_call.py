"""Creates virtual environments, and runs pip with the user's settings."""

from __future__ import annotations

import collections
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pytriton._host.install.cache import Progress, ServerRuntimeError

# Runs pip in a process that dies with its parent: a killed installation must not keep writing
# while the next one runs. (1 is PR_SET_PDEATHSIG, see prctl(2).)
_PIP = """
import ctypes, os, runpy, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv.pop(1)):
    sys.exit("the process that started pip has exited")
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""

#: Settings that say where or what to install; the user's must not override the daemon's.
_IGNORED = ("TARGET", "PREFIX", "ROOT", "PYTHON", "CONSTRAINT", "REQUIREMENT", "QUIET", "VERBOSE")


def make_environment(root: Path, python: Path) -> None:
    """Create a virtual environment for the interpreter `python`, with pip as its only package.

    virtualenv is used because it needs neither pip nor ensurepip in the daemon's environment, which an environment
    created by `uv venv` lacks.

    Raises:
        ServerRuntimeError: virtualenv failed; the text contains the end of its output.
    """
    # virtualenv also reads VIRTUALENV_* and a user-wide file; neither may have an effect here.
    environ = {key: value for key, value in os.environ.items() if not key.startswith("VIRTUALENV")}
    environ.pop("PYTHONHOME", None)
    environ["VIRTUALENV_CONFIG_FILE"] = os.devnull
    root.mkdir(parents=True, exist_ok=True)
    app_data = root.parent / "app-data"  # deleted with the draft; leaves the user's home untouched
    command = [sys.executable, "-m", "virtualenv", "--quiet", "--no-download"]
    command += ["--no-periodic-update", "--no-setuptools", "--app-data", str(app_data)]
    command += ["--python", str(python), str(root)]
    # -m puts the working directory first on sys.path: an empty one, so that nothing is shadowed.
    done = subprocess.run(
        command, env=environ, cwd=root, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise ServerRuntimeError(
            f"virtualenv cannot create an environment with {python}: "
            f"{said[-1500:] or f'exit status {done.returncode}'}"
        )


#: First pip version with `--progress-bar raw`, which prints numbers instead of drawing.
_RAW_PROGRESS_SINCE = (24, 1)


def run_pip(python: Path, arguments: Sequence[str], progress: Progress) -> None:
    """Run `pip ARGUMENTS` in the environment of `python`.

    On a terminal, pip draws its progress bars on stderr. Otherwise, `progress` gets a line for each quarter
    of a download.

    Raises:
        ServerRuntimeError: pip failed; the text contains its last lines.
    """
    command = [str(python), "-I", "-c", _PIP, str(os.getpid()), *arguments]
    command += ["--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
    if _on_terminal():
        status, said = _run_on_terminal(command), "see its messages above"
    else:
        raw = ["--progress-bar", "raw"] if _pip_version(python) >= _RAW_PROGRESS_SINCE else []
        status, said = _run_quietly([*command, *raw], progress)
    if status != 0:
        raise ServerRuntimeError(
            f"pip {arguments[0]} failed with status {status}: {said}\n"
            "If this machine is offline or uses its own index, configure pip for it "
            "(PIP_INDEX_URL, PIP_PROXY, PIP_NO_INDEX with PIP_FIND_LINKS, or pip.conf). Without any network: "
            "`pytriton-daemon install-server --wheel FILE`."
        )


def _on_terminal() -> bool:
    try:
        return os.isatty(sys.__stderr__.fileno()) if sys.__stderr__ is not None else False
    except (OSError, ValueError):  # closed
        return False


def _environment() -> dict[str, str]:
    dropped = {f"PIP_{name}" for name in _IGNORED}
    environ = {key: value for key, value in os.environ.items() if key not in dropped}
    environ["PIP_USER"] = "0"
    # pip also reads the settings file of its environment, which is not the daemon's. Point it to the
    # one in the daemon's environment.
    site_settings = Path(sys.prefix) / "pip.conf"
    if "PIP_CONFIG_FILE" not in environ and site_settings.is_file():
        environ["PIP_CONFIG_FILE"] = str(site_settings)
    return environ


def _run_on_terminal(command: Sequence[str]) -> int:
    # Redirect pip's stdout to stderr, which keeps this process's stdout (JSON, perhaps) clean.
    return subprocess.run(
        command, env=_environment(), stdin=subprocess.DEVNULL, stdout=sys.__stderr__, check=False
    ).returncode


def _run_quietly(command: Sequence[str], progress: Progress) -> tuple[int, str]:
    last_lines: collections.deque[str] = collections.deque(maxlen=12)
    quarter = 0
    with subprocess.Popen(
        command,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            done, total = _parse_progress(line)
            if not total:
                last_lines.append(line.rstrip())
            elif total >= 10_000_000 and done * 4 // total != quarter:
                quarter = done * 4 // total
                progress(f"downloaded {done // 1_000_000} of {total // 1_000_000} MB")
    return process.returncode, "\n".join(last_lines)


def _parse_progress(line: str) -> tuple[int, int]:
    """Parse pip's raw progress line, `Progress 1024 of 4096` (bytes); return (0, 0) for any other."""
    match = re.fullmatch(r"Progress (\d+) of (\d+)\s*", line)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _pip_version(python: Path) -> tuple[int, int]:
    for info in python.parent.parent.glob("lib/python3.*/site-packages/pip-*.dist-info"):
        match = re.match(r"pip-(\d+)\.(\d+)", info.name)
        if match:
            return int(match[1]), int(match[2])
    return (0, 0)
