"""The check tool without a server: its commands, folders, archive and exit codes, and no secrets in its facts."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.forks.prefork import Forking

from pytriton.check.facts import facts
from pytriton.check.report import Report

pytestmark = pytest.mark.programs

_TOOL = Forking("pytriton.check.app", "pytriton.check.facts", "pydantic.type_adapter")


def pytriton(
    *arguments: str, cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the tool as `python -m pytriton`."""
    return _TOOL.run_module("pytriton", arguments, cwd, os.environ if env is None else env)


def fact(wanted: str) -> str:
    """Return the text under a heading, without evaluating later headings."""
    return next(text for heading, text in facts() if heading == wanted)


@pytest.fixture(scope="module")
def known() -> dict[str, str]:
    return dict(facts())


def test_the_facts_say_what_machine_this_is(known: dict[str, str]) -> None:
    assert sys.executable in known["pytriton"]
    assert "GiB available" in known["processor and memory"]
    assert "nofile: " in known["limits"]
    assert "numpy==" in known["Python packages"]
    assert "tritonserver" in known["pytriton-daemon doctor"]
    assert not [heading for heading, text in known.items() if text.startswith("not available:")]


def test_secrets_in_the_environment_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTRITON_ACCESS_TOKEN", "s3cret")
    monkeypatch.setenv("MY_OWN", "s3cret")
    monkeypatch.setenv("NVIDIA_API_KEY", "s3cret")
    monkeypatch.setenv("HTTPS_PROXY", "http://user:s3cret@proxy.example:3128")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    text = fact("environment variables")
    assert "s3cret" not in text
    assert "MY_OWN=(value not shown)" in text
    assert "HTTPS_PROXY=http://***@proxy.example:3128" in text
    assert "OMP_NUM_THREADS=7" in text


def test_an_unavailable_fact_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise PermissionError("not for you")

    monkeypatch.setattr("pytriton.check.facts._cgroups", fail)
    assert fact("control groups") == "not available: PermissionError: not for you"
    assert "numpy==" in fact("Python packages")


def test_an_existing_folder_is_refused(tmp_path: Path) -> None:
    done = pytriton("check", "-w", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 1
    assert f"the folder {tmp_path} already exists" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = pytriton("env", "-w", str(tmp_path / "file" / "folder"), cwd=tmp_path)
    assert done.returncode == 1
    assert "cannot be created" in done.stderr


def test_env_prints_the_facts_and_keeps_them(tmp_path: Path) -> None:
    done = pytriton("env", "-w", "results", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("This report may contain private data")
    kept = (tmp_path / "results" / "env.log").read_text()
    assert "── Python packages" in kept
    assert kept in done.stdout


def test_a_failing_example_sets_the_exit_code_and_is_archived(
    tmp_path: Path, base_env: dict[str, str]
) -> None:
    """The default command is `check`; by default, the archive is in the working directory."""
    env = {**base_env, "PYTRITON_DAEMON_TRITONSERVER": str(tmp_path / "none")}
    done = pytriton("--timeout", "60", cwd=tmp_path, env=env)
    assert done.returncode == 1
    assert "these examples failed: example-add-sub, example-add-sub-script" in done.stderr
    assert done.stdout.count("This report may contain private data") == 2
    (path,) = tmp_path.iterdir()
    with zipfile.ZipFile(path) as archive:
        assert sorted(archive.namelist()) == [
            "env.log",
            "example_add_sub.log",
            "example_add_sub_script.log",
        ]
        log = archive.read("example_add_sub.log").decode()
    assert str(tmp_path / "none") in log


def test_a_hanging_example_is_stopped(tmp_path: Path, base_env: dict[str, str]) -> None:
    done = pytriton("examples", "--timeout", "0.1", "-w", "results", cwd=tmp_path, env=base_env)
    assert done.returncode == 1
    log = (tmp_path / "results" / "example_add_sub.log").read_text()
    assert "was stopped because it was still running after 0.1 s" in log


@pytest.mark.parametrize(
    "command", ["check", "env", "examples", "example-add-sub", "example-add-sub-script"]
)
def test_each_command_explains_itself(command: str, tmp_path: Path) -> None:
    done = pytriton(command, "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert f"pytriton {command}" in done.stdout


def test_the_console_script_is_the_same_tool(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("pytriton")
    done = subprocess.run(
        [str(script), "--help"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert done.stdout == pytriton("--help", cwd=tmp_path).stdout


def test_an_archive_never_overwrites_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda form: "same_time")
    archives = []
    for number in range(2):
        with Report() as report:
            report.file("env.log").write_text(str(number))
            archives.append(report.archive())
        assert not report.folder.exists()
    assert archives[0] != archives[1]
    for number, path in enumerate(archives):
        with zipfile.ZipFile(path) as archive:
            assert archive.read("env.log") == str(number).encode()


@pytest.fixture
def base_env(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    import os

    monkeypatch.setenv("COLUMNS", "100")
    return dict(os.environ)
