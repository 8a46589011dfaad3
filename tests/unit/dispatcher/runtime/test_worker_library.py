"""The `pytriton` of workers in another interpreter: the daemon's sources with separate bytecode."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.environments import find_interpreter

from pytriton.dispatcher.runtime.worker_library import library_of


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Return a library with a link to a package, as the daemon creates it."""
    package = tmp_path / "site-packages" / "pytriton"
    for name in ("worker/boot", "_protocol/deep/part", "dispatcher/run"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / f"{name}.py").write_text("WORD = 'first'\n")
    (package / "py.typed").touch()
    (tmp_path / "run" / "lib").mkdir(parents=True)
    (tmp_path / "run" / "lib" / "pytriton").symlink_to(package)
    return tmp_path / "run" / "lib"


def test_workers_of_this_interpreter_use_the_library_itself(library: Path, tmp_path: Path) -> None:
    (tmp_path / "venv-python").symlink_to(sys.executable)
    assert library_of(library, sys.executable) == library
    assert library_of(library, str(tmp_path / "venv-python")) == library


@pytest.mark.programs
def test_another_python_leaves_no_bytecode_with_the_package(library: Path, tmp_path: Path) -> None:
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    python = find_interpreter(*(one for one in ("3.12", "3.13", "3.10", "3.9") if one != own))
    if python is None:
        pytest.skip("no other Python on this machine")
    other = library_of(library, python)
    assert other != library
    assert [entry.name for entry in other.iterdir()] == ["pytriton"]
    code = f"import sys; sys.path[0] = {str(other)!r}; from pytriton._protocol.deep import part; print(part.WORD)"

    def run() -> str:
        return subprocess.run(
            [python, "-c", code], capture_output=True, text=True, check=True
        ).stdout

    assert run() == "first\n"
    assert list((tmp_path / "site-packages").rglob("__pycache__")) == []
    assert list(other.rglob("part.*.pyc")), "the next start reads it"
    assert not (other / "pytriton" / "dispatcher").exists(), "workers do not import it"
    # An upgrade changes the files below the library, and running workers continue with those.
    library_of.cache_clear()
    (tmp_path / "site-packages" / "pytriton" / "_protocol" / "deep" / "part.py").write_text(
        "WORD = 'second one'\n"
    )
    (tmp_path / "site-packages" / "pytriton" / "added.py").touch()
    assert library_of(library, python) == other
    assert run() == "second one\n"
    assert (other / "pytriton" / "added.py").exists()
