"""`pytriton-daemon tune` on a real daemon: what it measures and proposes, and that nothing of it remains."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme
from support.forks.prefork import command
from support.real_daemon import FRONT, RunningDaemon, eventually

from pytriton import Tensor
from pytriton._protocol.exit_codes import ExitCode
from pytriton.client import ApiClient
from pytriton.decorators import batch

pytestmark = [
    pytest.mark.skipif(FRONT == "triton", reason="NVIDIA's frontend has no routes"),
    pytest.mark.timeout(600),
]


def shout(text: str, times: int = 1) -> str:
    """Answer in capitals."""
    return text.upper() * times


def strict(n: int) -> int:
    """Refuse what an example of its schema contains."""
    if n < 100:
        raise ValueError("too small")
    return n


@batch
def double(x: np.ndarray) -> list[np.ndarray]:
    """Double scalars."""
    return [2 * x]


_SCALAR = [Tensor(name="x", dtype=np.float32, shape=())]


def _env(daemon: RunningDaemon) -> dict[str, str]:
    return {**os.environ, "PYTRITON_DAEMON_RUNTIME_DIR": daemon.config.runtime_dir}


@contextmanager
def _served(daemon: RunningDaemon, *function: Any, **options: Any) -> Iterator[str]:
    model = daemon.client.register(*function, progress=False, **options)
    try:
        yield model.name
    finally:
        model.unregister()


def test_it_measures_a_copy_while_clients_use_the_model(daemon: RunningDaemon) -> None:
    with _served(daemon, shout) as name:
        before = daemon.client.model(name).instances[0].pid
        stop, answers = threading.Event(), []

        def use() -> None:
            with ApiClient(daemon.http, name) as model:
                while not stop.is_set():
                    answers.append(model(text="x"))

        user = threading.Thread(target=use)
        user.start()
        try:
            done = command("tune", name, "--json", "--clients", "2", env=_env(daemon))
        finally:
            stop.set()
            user.join()
        assert done.returncode == ExitCode.OK, done.stderr
        found = json.loads(done.stdout)
        first = found["measurements"][0]
        assert first["is_current"]
        assert first["instances"] == 1
        assert first["requests_s"] > 0
        assert first["p50_ms"] <= first["p99_ms"]
        assert first["memory"] > 0
        assert sum(one["is_best"] for one in found["measurements"]) == 1
        assert found["code"].startswith("client.register(..., instances=")
        assert set(answers) == {"X"}
        assert [one.name for one in daemon.client.models()] == [name]
        assert daemon.client.model(name).instances[0].pid == before


def test_a_request_that_the_function_refuses(daemon: RunningDaemon) -> None:
    with _served(daemon, strict) as name:
        done = command("tune", name, env=_env(daemon))
        assert done.returncode == ExitCode.REGISTRATION_FAILED
        assert "Give a request: pytriton-daemon tune strict NAME=VALUE" in done.stderr
        done = command("tune", name, "n=200", "--clients", "2", env=_env(daemon))
        assert done.returncode == ExitCode.OK, done.stderr
        assert "current" in done.stdout
        done = command("tune", name, "m=200", env=_env(daemon))
        assert done.returncode == ExitCode.USAGE
        assert "there is no parameter m" in done.stderr
        assert [one.name for one in daemon.client.models()] == [name]


def test_a_list_of_callables_for_scalars_that_was_scaled_down(daemon: RunningDaemon) -> None:
    with _served(daemon, [double] * 3, "scalars", _SCALAR, _SCALAR):
        daemon.client.scale("scalars", 2)
        done = command("tune", "scalars", "--json", "--clients", "2", env=_env(daemon))
        assert done.returncode == ExitCode.OK, done.stderr
        assert {one["instances"] for one in json.loads(done.stdout)["measurements"]} == {2}


def test_a_model_of_threads_has_no_copy(daemon: RunningDaemon) -> None:
    with _served(daemon, double, "threads", _SCALAR, _SCALAR, isolation="thread"):
        done = command("tune", "threads", env=_env(daemon))
        assert done.returncode == ExitCode.USAGE
        assert "threads of the process that registered it" in done.stderr


@pytest.mark.parametrize("needs_certificate", [False, True])
def test_a_daemon_with_https(tmp_path: Path, needs_certificate: bool) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("serving.example")  # not the address that tune connects to
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert"))
    issued.private_key_pem.write_to_path(str(tmp_path / "key"))
    authority.cert_pem.write_to_path(str(tmp_path / "root"))
    settings = {"http_certificate": str(tmp_path / "cert"), "http_key": str(tmp_path / "key")}
    if needs_certificate:
        settings["http_client_authorities"] = str(tmp_path / "root")
    with (
        RunningDaemon.start(frontend="native", **settings) as daemon,
        _served(daemon, shout) as name,
    ):
        done = command("tune", name, env=_env(daemon))
        if needs_certificate:
            assert done.returncode == ExitCode.USAGE
            assert "tune has no client certificate" in done.stderr
        else:
            assert done.returncode == ExitCode.OK, done.stderr
            assert "current" in done.stdout


def test_an_ephemeral_model_has_no_copy(daemon: RunningDaemon) -> None:
    with _served(daemon, shout, "fleeting", ephemeral=True):
        done = command("tune", "fleeting", env=_env(daemon))
        assert done.returncode == ExitCode.USAGE
        assert "fleeting cannot be tuned: the daemon does not persist it" in done.stderr


def test_an_interrupted_run_leaves_nothing(daemon: RunningDaemon) -> None:
    with _served(daemon, shout) as name:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytriton._cli", "tune", name],
            env=_env(daemon),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        copy = f"{name}-tune-{process.pid}"
        eventually(
            lambda: copy in [one.name for one in daemon.client.models()], "the copy is served"
        )
        process.send_signal(signal.SIGINT)
        process.communicate()
        assert process.returncode == ExitCode.INTERRUPTED
        # If the copy's registration was not answered yet, the daemon removes it after the exit.
        eventually(
            lambda: [one.name for one in daemon.client.models()] == [name], "the copy is removed"
        )
