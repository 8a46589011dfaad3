"""An interpreter that does not run is reported, with the reason, when a model is registered with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.environments import find_interpreter

import pytriton
from pytriton._register import environments
from pytriton._register.environment import capture_environment
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.worker import boot


@pytest.mark.programs
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x7fELF, of another kind of machine", r"Exec format error$"),
        (b"#!/no/such/program\n", r"No such file or directory$"),
        (b"#!/bin/sh\nexit 7\n", r"it exited with status 7$"),
        (b"#!/bin/sh\nprintf 'caf\\351' >&2; exit 1\n", r"caf\\xe9$"),
    ],
)
def test_an_interpreter_that_does_not_run_is_reported_with_the_reason(
    tmp_path: Path, content: bytes, said: str
) -> None:
    python = tmp_path / "python"
    python.write_bytes(content)
    python.chmod(0o755)
    with pytest.raises(PyTritonBadParameterError, match=said):
        environments.missing_modules(str(python), ["numpy"])


@pytest.mark.programs
@pytest.mark.parametrize("version", ["2.7", "3.6", "3.7", "3.8"])
def test_a_too_old_interpreter_is_named_with_its_version(tmp_path: Path, version: str) -> None:
    """Whichever of our files it runs first: most are syntax errors to it."""
    python = find_interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    said = rf"is Python {version}\.\d+\S*,? .*worker needs 3\.9 or newer"
    with pytest.raises(PyTritonBadParameterError, match=said):
        environments.missing_modules(python, ["numpy"])
    if version < "3.7":  # others run the probe
        with pytest.raises(PyTritonBadParameterError, match=said):
            capture_environment(python=python, sys_path=[tmp_path])
    done = subprocess.run(
        [python, boot.__file__, str(tmp_path), "ipc:///nowhere", "w1", "1", "1"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == f"{python} is Python {_version_of(python)}: a worker needs 3.9 or newer\n"


@pytest.mark.programs
def test_importing_our_library_leaves_no_bytecode_of_another_python(tmp_path: Path) -> None:
    code = "import pytriton; print(pytriton.__file__, sys.dont_write_bytecode)"
    command = [sys.executable, "-S", "-c", environments.code_with_our_library(code)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == f"{pytriton.__file__} True\n"


def _version_of(python: str) -> str:
    code = "import sys; print(sys.version.split()[0])"
    return subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
