"""The life of a daemon from the shell, as described in the README."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.forks.prefork import command
from support.real_daemon import RunningDaemon, eventually

from pytriton._protocol.exit_codes import ExitCode

PORTS = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
MODULE = """
import numpy as np
from pytriton.declaration import declare
from pytriton.decorators import batch
from pytriton.model_config import Tensor

X = [Tensor(name="x", dtype=np.float32, shape=(-1,))]
Y = [Tensor(name="y", dtype=np.float32, shape=(-1,))]

@declare(inputs=X, outputs=Y)
@batch
def linear(x):
    print("asked about", x.tolist())
    if x[0, 0] < 0:
        raise ValueError("no negative numbers")
    return {"y": 2 * x}
"""

#: These are, or start, a daemon: they run as users have them.
_STARTING = ("start", "restart")


class Shell:
    """Runs pytriton-daemon in a folder, with its own runtime directory."""

    def __init__(self, folder: Path, runtime_dir: Path) -> None:
        self.folder = folder
        self.runtime_dir = runtime_dir
        self.env = {**os.environ, "PYTRITON_DAEMON_RUNTIME_DIR": str(runtime_dir)}

    def popen(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "pytriton._cli", *arguments],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __call__(self, *arguments: str, code: int = ExitCode.OK) -> str:
        """Run a command, check its exit code, and return its output."""
        if arguments[0] in _STARTING:
            with self.popen(*arguments) as process:
                said, _ = process.communicate(timeout=400)
                returned = process.wait()
        else:
            done = command(*arguments, cwd=self.folder, env=self.env)
            said, returned = done.stdout + done.stderr, done.returncode
        assert returned == code, f"{arguments}: {returned}\n{said}"
        return said

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    (tmp_path / "mine.py").write_text(MODULE)
    # Short: a unix socket's path has at most 107 bytes, and pytest's tmp_path is long.
    runtime_dir = Path(tempfile.mkdtemp(prefix="ptd-"))
    shell = Shell(tmp_path, runtime_dir)
    yield shell
    with shell.popen("stop") as process:  # ends with NO_DAEMON when the test has stopped it
        process.communicate(timeout=100)
    shutil.rmtree(runtime_dir)


def _ask(url: str, *numbers: float) -> Any:
    tensor = {"name": "x", "shape": [1, len(numbers)], "datatype": "FP32", "data": numbers}
    request = urllib.request.Request(f"{url}/infer", json.dumps({"inputs": [tensor]}).encode())
    with urllib.request.urlopen(request, timeout=100) as answer:
        return json.load(answer)["outputs"][0]["data"]


@pytest.mark.slow
@pytest.mark.timeout(600)  # twenty commands, each a Python of its own
def test_the_life_of_a_daemon(shell: Shell) -> None:
    """start, register, infer, status, logs --follow, unregister, restart, stop."""
    assert "no daemon is running" in shell("status", code=ExitCode.NO_DAEMON)
    assert "the daemon is ready" in shell("start", "--detach", *PORTS)
    assert "a daemon is already running" in shell(
        "start", "--detach", *PORTS, code=ExitCode.ALREADY_RUNNING
    )
    assert "linear is ready" in shell("register", "mine:linear", "--instances", "2")

    status = shell.json("status")
    (model,) = status["models"]
    assert [instance["state"] for instance in model["instances"]] == ["ready", "ready"]
    assert _ask(model["url"], 1, 2) == [2, 4]
    with pytest.raises(urllib.error.HTTPError) as refused:
        _ask(model["url"], -1)
    with refused.value as answer:
        assert "no negative numbers" in answer.read().decode()
    pids = {instance["pid"] for instance in model["instances"]}
    assert all(str(pid) in shell("status") for pid in pids)

    # Two workers print them, each through a pipe of its own.
    printed = ("asked about [[1.0, 2.0]]", "Traceback (most recent call last)", "no negative")
    eventually(lambda: _has(shell("logs", "linear"), *printed), "the log has come")
    with shell.popen("logs", "linear", "--follow") as following:
        assert following.stdout is not None
        _ask(model["url"], 77)
        seen = next(line for line in following.stdout if "asked about [[77.0]]" in line)
        following.terminate()
    assert "linear" in seen

    assert "unregistered linear" in shell("unregister", "linear")
    assert "no model 'linear'" in shell("unregister", "linear", code=ExitCode.REGISTRATION_FAILED)
    shell("restart")
    assert shell.json("status")["pid"] != status["pid"]
    assert "stopped the daemon" in shell("stop")
    assert "no daemon is running" in shell("stop", code=ExitCode.NO_DAEMON)


def test_a_port_in_use_is_reported_with_its_owner(shell: Shell) -> None:
    """It is reported before anything is started."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        said = shell("start", *PORTS, "--http-port", str(port), code=ExitCode.PORT_IN_USE)
        assert f"port {port}" in said
        assert f"pid {os.getpid()}" in said
        detached = shell(
            "start", "--detach", *PORTS, "--http-port", str(port), code=ExitCode.PORT_IN_USE
        )
    (reported,) = [one for one in detached.splitlines() if f"port {port}" in one]
    by = f"in use by pid {os.getpid()} ("
    wanted = (
        f"pytriton-daemon: the daemon did not start: port {port} (http_port) on 127.0.0.1 is {by}"
    )
    assert reported.startswith(wanted)  # the reason first, and once


def test_a_daemon_starts_over_the_sockets_of_a_killed_one() -> None:
    with RunningDaemon.start() as first:
        first.process.kill()
        first.process.wait()
        runtime_dir = Path(first.config.runtime_dir)
        shell = Shell(runtime_dir, runtime_dir)
        shell("start", "--detach", *PORTS)
        shell("stop")


def _has(text: str, *parts: str) -> bool:
    return all(part in text for part in parts)
