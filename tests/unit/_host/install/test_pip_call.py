"""How pip is called: with the user's settings except those that would break our installs, and with progress lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytriton._host.install import pip_call
from pytriton._host.install.cache import ServerRuntimeError
from pytriton._host.install.pip_call import make_environment, run_pip

pytestmark = pytest.mark.programs

#: Replaces an environment's Python: records its arguments, prints `says`, exits with `status`.
_PYTHON = """#!{python} -S
import json, os, sys
here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "called"), "w") as file:
    json.dump({{"argv": sys.argv[1:], "env": dict(os.environ)}}, file)
print(open(os.path.join(here, "says")).read(), end="")
sys.exit(int(open(os.path.join(here, "status")).read()))
"""


class Environment:
    """An environment with a fake Python that records how it was called."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.python = root / "bin" / "python"
        self.python.parent.mkdir(parents=True)
        self.python.write_text(_PYTHON.format(python=sys.executable))
        self.python.chmod(0o755)
        self.says("")

    def says(self, text: str, status: int = 0) -> None:
        (self.root / "bin" / "says").write_text(text)
        (self.root / "bin" / "status").write_text(str(status))

    def has_pip(self, version: str) -> None:
        (self.root / "lib" / "python3.11" / "site-packages" / f"pip-{version}.dist-info").mkdir(
            parents=True
        )

    def called(self) -> tuple[list[str], dict[str, str]]:
        called = json.loads((self.root / "bin" / "called").read_text())
        return called["argv"], called["env"]


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    monkeypatch.setattr(pip_call, "_on_terminal", lambda: False)
    return Environment(tmp_path / "environment")


def test_pip_uses_the_users_index_but_not_their_install_location(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"INDEX_URL": "http://127.0.0.1/simple", "TARGET": "/elsewhere", "USER": "1"}
    for name, value in settings.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    run_pip(environment.python, ["install", "numpy<2"], print)
    argv, env = environment.called()
    assert argv[:2] == ["-I", "-c"]
    assert argv[3:] == [
        str(os.getpid()),
        "install",
        "numpy<2",
        "--only-binary=:all:",
        "--no-input",
        "--disable-pip-version-check",
    ]
    assert env["PIP_INDEX_URL"] == "http://127.0.0.1/simple"
    assert env["PIP_USER"] == "0"
    assert "PIP_TARGET" not in env


@pytest.mark.parametrize(
    ("version", "raw"), [("24.1", True), ("25.0.1", True), ("24.0", False), ("23.3", False)]
)
def test_raw_progress_is_requested_if_pip_supports_it(
    environment: Environment, version: str, raw: bool
) -> None:
    environment.has_pip(version)
    run_pip(environment.python, ["install"], print)
    assert ("--progress-bar" in environment.called()[0]) is raw


def test_large_downloads_report_each_quarter(environment: Environment) -> None:
    steps = [f"Progress {done} of 200000000" for done in range(0, 200_000_001, 10_000_000)]
    small = [f"Progress {done} of 9000000" for done in range(0, 9_000_001, 1_000_000)]
    environment.says("\n".join(["Collecting x", *steps, *small, "Progress", "Progress x of y"]))
    reported: list[str] = []
    run_pip(environment.python, ["install"], reported.append)
    assert reported == [f"downloaded {done} of 200 MB" for done in (50, 100, 150, 200)]


def test_a_failing_pip_is_reported_with_its_last_lines_and_the_fix(
    environment: Environment,
) -> None:
    lines = [f"line {number}" for number in range(30)]
    environment.says(
        "\n".join([*lines, "Progress 1 of 2", "ERROR: no such package \udce9"[:-1]]), 3
    )
    with pytest.raises(ServerRuntimeError) as caught:
        run_pip(environment.python, ["download", "x"], print)
    text = str(caught.value)
    assert text.startswith("pip download failed with status 3: line 19\nline 20\n")
    assert "ERROR: no such package" in text
    assert "Progress" not in text
    assert "PIP_INDEX_URL" in text
    assert "pytriton-daemon install-server --wheel FILE" in text


def test_pip_exits_with_the_process_that_started_it(environment: Environment) -> None:
    """The launcher refuses to run if its parent has already exited."""
    run_pip(environment.python, ["install"], print)
    program = environment.called()[0][2]
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, str(os.getpid() + 1), "--version"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "the process that started pip has exited" in done.stderr


def test_a_failed_environment_is_reported(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no such instruction' >&2\nexit 132\n")
    broken.chmod(0o755)
    with pytest.raises(
        ServerRuntimeError, match=f"virtualenv cannot create an environment with {broken}"
    ):
        make_environment(tmp_path / "environment", broken)


def test_an_environment_has_pip_and_no_user_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIRTUALENV_PROMPT", "mine")
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    root = tmp_path / "environment"
    make_environment(root, Path(sys.executable))
    (packages,) = root.glob("lib/python3.*/site-packages")
    names = {path.name.partition("-")[0] for path in packages.iterdir()}
    assert "pip" in names
    assert "setuptools" not in names
    assert "mine" not in (root / "pyvenv.cfg").read_text()
