"""Daemons of test runs, demos and benchmarks end with their owner, even if it is killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.forks.prefork import command
from support.real_daemon import RunningDaemon, eventually
from support.scripts import local_environment

from pytriton._host import exit_record
from pytriton._host.settings.declarations import ENV_OWNER
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.files.rundir import ENV_RUNTIME_DIR, RuntimeDir

ROOT = Path(__file__).parents[3]
_PORTS = "--http-port 0 --grpc-port 0 --metrics-port 0"
_CLI = f"{sys.executable} -m pytriton._cli"
#: Says so when it serves; the variables of `local_environment` say where.
_SCRIPT = """
from pytriton.triton import Triton

with Triton() as triton:
    triton.run()
    print("running", flush=True)
    triton.serve()
"""
#: A test that hangs, with a daemon of a fixture, one of a shell, and a script with one of its own.
_TEST = f"""
import subprocess, sys, threading

def test_that_hangs(daemon):
    subprocess.run("{_CLI} start --detach {_PORTS}", shell=True, check=True)
    script = subprocess.Popen([sys.executable, "script.py"], stdout=subprocess.PIPE)
    for line in script.stdout:
        if b"running" in line:
            break
    print("they run", flush=True)
    threading.Event().wait()
"""


@pytest.fixture
def runtime_dir() -> Iterator[Path]:
    """A folder with a short path, since it contains sockets."""
    path = Path(tempfile.mkdtemp(prefix="pto-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


temporary_dir = runtime_dir


def _family(owner: int) -> list[psutil.Process]:
    """Return the processes that an owner started: a detached daemon is no longer its child."""
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if one.environ().get(ENV_OWNER) == str(owner) and one.pid != owner:
                found.append(one)
    return found


def _end(family: list[psutil.Process]) -> None:
    for one in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()


@pytest.mark.parametrize("signals", [[signal.SIGKILL], [signal.SIGINT, signal.SIGTERM]])
def test_the_daemon_of_a_killed_test_run_ends(
    signals: list[int], runtime_dir: Path, temporary_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "test_it.py").write_text(_TEST)
    (tmp_path / "script.py").write_text(_SCRIPT)
    family: list[psutil.Process] = []
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", str(tmp_path)],
        env={
            **local_environment(tmp_path / "home"),
            "PYTHONPATH": str(ROOT / "tests"),
            ENV_RUNTIME_DIR: str(runtime_dir),
            "TMPDIR": str(temporary_dir),  # what a killed run leaves there goes with it
        },
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as run:
        try:
            assert run.stdout is not None
            said = ""
            while "they run" not in said:
                line = run.stdout.readline()
                assert line, said
                said += line

            def all_run() -> bool:
                """Return whether these are the daemons: between fork and exec, a child has its parent's command line."""
                family[:] = _family(run.pid)
                with contextlib.suppress(psutil.NoSuchProcess):
                    commands = [one.cmdline() for one in family]
                    return sum("pytriton.dispatcher" in one for one in commands) == 3
                return False

            eventually(all_run, lambda: f"three daemons run: {family}")
            for number in signals:
                run.send_signal(number)
            run.stdout.close()  # what still writes there shall not wait
            run.wait(100)
            _, left = psutil.wait_procs(family, timeout=100)
            assert left == []
        finally:
            run.kill()
            _end(family)


def test_the_daemon_of_a_killed_demo_ends(runtime_dir: Path) -> None:
    """As in scripts/demo: the shell declares itself the owner and starts a detached daemon."""
    assert f"export {ENV_OWNER}=$$" in (ROOT / "scripts" / "demo").read_text()
    script = f"export {ENV_OWNER}=$$; {_CLI} start --detach {_PORTS}; read line"
    with subprocess.Popen(
        ["bash", "-c", script],
        env={**os.environ, ENV_RUNTIME_DIR: str(runtime_dir)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as shell:
        assert shell.stdout is not None
        assert "the daemon is ready" in shell.stdout.readline()
        family = _family(shell.pid)
        assert family
        shell.kill()
        shell.wait()
    try:
        _, left = psutil.wait_procs(family, timeout=100)
        assert left == []
    finally:
        _end(family)
    end = exit_record.read(RuntimeDir(runtime_dir))
    assert end is not None
    assert end.exit_code == ExitCode.INTERRUPTED
    assert end.reason == f"its owner, process {shell.pid}, has exited"


@pytest.mark.parametrize(
    ("named", "code", "said"),
    [
        ("me", ExitCode.USAGE, "'me' is not a process id"),
        ("0", ExitCode.USAGE, "'0' is not a process id"),
        ("999999999", ExitCode.INTERRUPTED, "process 999999999, the owner of this daemon, has"),
        (None, ExitCode.INTERRUPTED, "or is not its ancestor"),
    ],
)
def test_an_invalid_owner_is_refused(
    named: str | None, code: ExitCode, said: str, runtime_dir: Path
) -> None:
    with subprocess.Popen(["sleep", "1000"]) as stranger:
        env = {
            **os.environ,
            ENV_OWNER: str(stranger.pid) if named is None else named,
            ENV_RUNTIME_DIR: str(runtime_dir),
        }
        done = command("start", *_PORTS.split(), env=env)
        stranger.kill()
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr


def test_daemons_of_tests_have_an_owner(daemon: RunningDaemon) -> None:
    assert psutil.Process(daemon.process.pid).environ()[ENV_OWNER] == str(os.getpid())
