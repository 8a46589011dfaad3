"""Access to Triton: the access token of its administrative endpoints, with the real server."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from support.models.inference import PROTOCOLS, Array, infer_once
from support.models.tensors import X, Y
from support.real_daemon import FRONT, RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

from pytriton.daemon import DaemonClient
from pytriton.decorators import batch

REFUSED = "restricted, expecting header"

#: Endpoint -> a harmless question to it, as a method of tritonclient with its arguments.
QUESTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "model-repository": ("get_model_repository_index", {}),
    "shared-memory": ("get_system_shared_memory_status", {}),
    "trace": ("get_trace_settings", {}),
    "logging": ("get_log_settings", {}),
    "statistics": ("get_inference_statistics", {}),
    "health": ("is_server_live", {}),
    "metadata": ("get_server_metadata", {}),
    "model-config": ("get_model_config", {"model_name": "double"}),
}
BY_DEFAULT = ("model-repository", "shared-memory", "trace", "logging", "statistics")


@batch
def _double(x: Array) -> dict[str, Array]:
    return {"y": x * 2}


def _register(daemon: RunningDaemon) -> None:
    daemon.client.register(_double, "double", X, Y, progress=False)


@pytest.fixture(scope="module")
def serving(daemon: RunningDaemon) -> RunningDaemon:
    """The module's daemon, with a model that has served."""
    _register(daemon)
    _infer(daemon, "http")
    return daemon


def _infer(daemon: RunningDaemon, protocol: str, **options: Any) -> Array:
    ones = np.ones((1, 2), np.float32)
    return infer_once(daemon, "double", {"x": ones}, protocol, **options)["y"]


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _ask(daemon: RunningDaemon, protocol: str, endpoint: str, headers: dict[str, str]) -> Any:
    module = tritonclient.http if protocol == "http" else tritonclient.grpc
    name, arguments = QUESTIONS[endpoint]
    with module.InferenceServerClient(getattr(daemon, protocol)) as client:
        return getattr(client, name)(headers=headers, **arguments)


def _headers(client: DaemonClient, protocol: str) -> dict[str, str]:
    return client.access_headers(grpc=protocol == "grpc")


@pytest.mark.parametrize("endpoint", BY_DEFAULT)
def test_administrative_endpoints_require_the_token(
    serving: RunningDaemon, protocol: str, endpoint: str
) -> None:
    wrong = {name: "x" * 43 for name in _headers(serving.client, protocol)}
    for headers in ({}, wrong):
        with pytest.raises(InferenceServerException, match=REFUSED):
            _ask(serving, protocol, endpoint, headers)
    _ask(serving, protocol, endpoint, _headers(serving.client, protocol))


@pytest.mark.parametrize("endpoint", sorted(set(QUESTIONS) - set(BY_DEFAULT)))
def test_inference_endpoints_need_no_token(
    serving: RunningDaemon, protocol: str, endpoint: str
) -> None:
    assert _ask(serving, protocol, endpoint, {})
    assert _infer(serving, protocol).tolist() == [[2, 2]]


def test_each_start_generates_a_new_token_and_each_end_deletes_it(
    serving: RunningDaemon, fresh_daemon: RunningDaemon
) -> None:
    mine, other = serving.client.access_token, fresh_daemon.client.access_token
    assert mine is not None
    assert other is not None
    assert mine != other
    assert len(mine) == len(other) == 43  # 32 random bytes
    file = Path(fresh_daemon.config.runtime_dir) / "access_token"
    assert file.read_text() == other
    fresh_daemon.stop()
    assert not file.exists()


def test_the_token_is_shown_only_to_its_owner(serving: RunningDaemon) -> None:
    """In a file of mode 0600; it is not in the status, the logs, or the command line of any process."""
    rundir = Path(serving.config.runtime_dir)
    token = serving.client.access_token
    assert token is not None
    file = os.stat(rundir / "access_token")
    assert (stat.S_IMODE(file.st_mode), file.st_uid) == (0o600, os.geteuid())
    assert token not in str(serving.client.status())
    for log in (serving.log, *(rundir / "logs").iterdir()):
        assert token not in log.read_text(errors="replace"), log
    family = [serving.process.pid, *(child.pid for child in serving.children())]
    for pid in family:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            assert token.encode() not in command, command
    server = serving.client.status().server.pid
    shown = Path(f"/proc/{server}/cmdline").read_bytes()
    hidden = b"triton-access-token=" + b"*" * len(token) + b"\0"
    # HTTP and gRPC: it was there, and all else still is. The native frontend is told otherwise.
    assert shown.count(hidden) == (2 if FRONT == "triton" else 0)
    assert FRONT == "native" or b"--model-control-mode=explicit\0" in shown


@pytest.fixture(scope="module")
def closed() -> Iterator[RunningDaemon]:
    """A daemon with a configured token whose Triton requires it everywhere, with verbose logging."""
    with RunningDaemon.start(
        restricted_endpoints=("inference", *QUESTIONS),
        access_token="fixed-token-of-this-test",
        tritonserver_options={"log-verbose": "2"},
    ) as daemon:
        _register(daemon)
        yield daemon


@pytest.mark.parametrize("endpoint", QUESTIONS)
def test_everything_can_be_restricted(closed: RunningDaemon, protocol: str, endpoint: str) -> None:
    """The daemon itself sends the token to probe the server and to load models."""
    headers = _headers(closed.client, protocol)
    assert list(headers.values()) == ["fixed-token-of-this-test"]
    if endpoint == "health" and protocol == "http":  # tritonclient takes any refusal for a "no"
        assert _ask(closed, protocol, endpoint, {}) is False
    else:
        with pytest.raises(InferenceServerException, match=REFUSED):
            _ask(closed, protocol, endpoint, {})
    assert _ask(closed, protocol, endpoint, headers) is not False


def test_inference_can_be_restricted(closed: RunningDaemon, protocol: str) -> None:
    with pytest.raises(InferenceServerException, match=REFUSED):
        _infer(closed, protocol)
    answer = _infer(closed, protocol, headers=_headers(closed.client, protocol))
    assert answer.tolist() == [[2, 2]]


def test_a_verbose_log_does_not_show_the_token(closed: RunningDaemon) -> None:
    for protocol in PROTOCOLS:
        _infer(closed, protocol, headers=_headers(closed.client, protocol))
    # NVIDIA's frontend does log requests; what it says goes through a pipe, so it may come after the answer
    if FRONT == "triton":
        eventually(lambda: re.search(r"HTTP request", closed.said()), "requests are logged")
    said = closed.said()
    assert "fixed-token-of-this-test" not in said


def test_a_token_can_be_a_flag() -> None:
    """`start` removes it from its command line quickly, and `token` prints it."""
    rundir, token = Path(tempfile.mkdtemp(prefix="ptd-")), "token-among-the-flags"
    command = [sys.executable, "-m", "pytriton._cli"]
    place = ("--runtime-dir", str(rundir))
    ports = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
    with subprocess.Popen([*command, "start", *place, *ports, f"--access-token={token}"]) as start:
        try:
            eventually((rundir / "start.json").exists, "the daemon is ready", 400)
            reported = subprocess.run(
                [*command, "access-token", *place], check=True, stdout=subprocess.PIPE
            )
            assert reported.stdout.decode() == f"{token}\n"
            shown = Path(f"/proc/{start.pid}/cmdline").read_bytes()
            assert b"--access-token=****" in shown
            assert token.encode() not in shown
            assert stat.S_IMODE((rundir / "start.json").stat().st_mode) == 0o600
        finally:
            start.terminate()
    assert start.returncode == 0
    shutil.rmtree(rundir)


def test_restrictions_can_be_disabled() -> None:
    with RunningDaemon.start(restricted_endpoints=()) as daemon:
        _register(daemon)
        assert daemon.client.access_token is None
        assert daemon.client.access_headers() == daemon.client.access_headers(grpc=True) == {}
        for protocol in PROTOCOLS:
            for endpoint in QUESTIONS:
                assert _ask(daemon, protocol, endpoint, {}) is not None


def test_the_daemon_works_with_grpc_only() -> None:
    """The daemon itself then uses gRPC to reach tritonserver."""
    with RunningDaemon.start(allow_http=False, restricted_endpoints=tuple(QUESTIONS)) as daemon:
        _register(daemon)
        with pytest.raises(InferenceServerException, match=REFUSED):
            _ask(daemon, "grpc", "health", {})
        assert _infer(daemon, "grpc").tolist() == [[2, 2]]
        daemon.client.unregister("double")
        headers = daemon.client.access_headers(grpc=True)

        def states() -> list[str]:
            index = _ask(daemon, "grpc", "model-repository", headers)
            return [model.state for model in index.models]

        # Its proxies have ended; for a moment, tritonserver may still be about to forget it.
        eventually(lambda: states() in ([], ["UNAVAILABLE"]), lambda: str(states()))
