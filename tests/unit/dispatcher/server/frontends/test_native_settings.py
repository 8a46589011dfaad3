"""The configuration passed to the native frontend, depending on the settings."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.triton.fake_frontend_place import fake_place
from structlog.testing import capture_logs

from pytriton._host.install.compiled_frontend import NativeProgram
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._host.settings.limits import limits_for
from pytriton._protocol import linux
from pytriton.dispatcher.server.frontends import native_settings
from pytriton.dispatcher.server.frontends.native_settings import Listening

_TLS = {"grpc-use-ssl": "true", "grpc-server-cert": "/c.pem", "grpc-server-key": "/k.pem"}
_MUTUAL = {**_TLS, "grpc-use-ssl-mutual": "true", "grpc-root-cert": "/r.pem"}


#: Limits that are always passed because they depend on the machine.
_OF_MEMORY = {"total_body_bytes", "total_unsent_bytes"}


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as one:
        yield one


def _document(folder: Path, listening: list[Listening], **settings: Any) -> dict[str, Any]:
    native = NativeProgram(folder / "frontend", Path("/core.so"), {"z": "libz.so.1"})
    place = fake_place(folder, ["pytriton_native"], frontend=native)
    config = DaemonConfig(frontend="native", access_token="secret-secret-secret", **settings)
    return native_settings.document(
        config, place, native, listening, ["m"], gated=True, waiting=False, ready_fd=9
    )


def test_with_default_settings(tmp_path: Path, listener: socket.socket) -> None:
    tls = {"certificate": "/c.pem", "key": "/k.pem", "root": None, "mutual": False}
    listening = [Listening("http", listener, None, relays=True), Listening("grpc", listener, tls)]
    reported = _document(tmp_path, listening)
    assert reported["core"] == "/core.so"
    assert reported["libraries"] == {"z": "libz.so.1"}
    assert reported["listen"] == [
        {"fd": listener.fileno(), "protocol": "http", "tls": None, "relays": True},
        {"fd": listener.fileno(), "protocol": "grpc", "tls": tls, "relays": False},
    ]
    assert (reported["not_ready"], reported["ready_fd"], set(reported["limits"])) == (
        True,
        9,
        _OF_MEMORY,
    )
    options = {name: value for name, value in reported["options"]}
    assert options["model-repository"] == str(tmp_path / "models")
    assert (options["load-model"], options["exit-on-error"]) == ("m", "false")
    assert not [name for name in options if name.endswith(("-port", "-address", "-api"))]
    restricted = ["model-repository", "shared-memory", "trace", "logging", "statistics"]
    one = [restricted, "triton-access-token", "secret-secret-secret"]
    assert reported["restricted"] == {"http": [one], "grpc": [one]}


@pytest.mark.parametrize(
    ("settings", "limits"),
    [
        ({"allow_client_shm": False}, {"regions": 0}),
        ({"frontend_limit": ("regions=5",)}, {"regions": 5}),
        ({"frontend_limit": ("regions=5",), "allow_client_shm": False}, {"regions": 0}),
        ({"tritonserver_options": {"http-max-input-size": "5000"}}, {"body_bytes": 5000}),
        (
            {
                "tritonserver_options": {"http-max-input-size": "5000"},
                "frontend_limit": ("body_bytes=6000",),
            },
            {"body_bytes": 6000},
        ),
    ],
)
def test_limits(tmp_path: Path, settings: dict[str, Any], limits: dict[str, float]) -> None:
    reported = _document(tmp_path, [], **settings)["limits"]
    assert {name: reported[name] for name in limits} == limits


def test_the_response_cache_is_the_frontends_own(tmp_path: Path) -> None:
    reported = _document(tmp_path, [], response_cache_size=4096)
    assert reported["response_cache_bytes"] == 4096
    assert not [name for name, _ in reported["options"] if name.startswith("cache-config")]


@pytest.mark.parametrize(("processors", "loops"), [(2, 1), (4, 2), (64, 2)])
def test_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processors: int, loops: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    assert _document(tmp_path, [])["loops"] == loops


def test_options_of_the_core_are_passed_on_and_those_of_nvidias_frontends_are_not(
    tmp_path: Path,
) -> None:
    given = {
        "log-verbose": "1",
        "backend-config": ["onnxruntime,x=1"],
        "http-thread-count": "8",
        "exit-on-error": "true",
        "model-load-retry-count": "9",
        "http-header-forward-pattern": "x-.*",
    }
    with capture_logs() as logs:
        reported = _document(tmp_path, [], tritonserver_options=given)
    assert ["log-verbose", "1"] in reported["options"]
    backends = [value for name, value in reported["options"] if name == "backend-config"]
    assert backends == ["python,shm-region-prefix-name=pytriton-7-", "onnxruntime,x=1"]
    assert ["exit-on-error", "true"] not in reported["options"]
    assert "model-load-retry-count" not in dict(reported["options"])
    assert not [name for name, _ in reported["options"] if name.startswith("http-")]
    assert reported["forward"] == {"http": "x-.*", "grpc": None}
    assert [one["ignored"] for one in logs if "ignored" in one] == [["http-thread-count"]]
    assert [one["option"] for one in logs if "option" in one] == ["model-load-retry-count"]


def test_limits_are_passed_by_name(tmp_path: Path) -> None:
    given = ("headers=16", "idle_s=1.5", "headers=32", "total_body_bytes=2e6")
    limits = _document(tmp_path, [], frontend_limit=given)["limits"]
    assert (
        limits.pop("total_unsent_bytes") == limits_for(linux.total_memory())["total_unsent_bytes"]
    )
    assert limits == {"headers": 32.0, "idle_s": 1.5, "total_body_bytes": 2e6}


def test_nothing_is_restricted_without_restricted_endpoints(tmp_path: Path) -> None:
    assert _document(tmp_path, [], restricted_endpoints=())["restricted"] == {}


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({}, {}),
        (
            {"tritonserver_options": _TLS},
            {"grpc": {"certificate": "/c.pem", "key": "/k.pem", "root": None, "mutual": False}},
        ),
        (
            {"tritonserver_options": _MUTUAL},
            {"grpc": {"certificate": "/c.pem", "key": "/k.pem", "root": "/r.pem", "mutual": True}},
        ),
        (
            {"frontend": "native", "http_certificate": "/h.pem", "http_key": "/hk.pem"},
            {"http": {"certificate": "/h.pem", "key": "/hk.pem", "root": None, "mutual": False}},
        ),
        (
            {
                "frontend": "native",
                "http_certificate": "/h.pem",
                "http_key": "/hk.pem",
                "http_client_authorities": "/a.pem",
            },
            {"http": {"certificate": "/h.pem", "key": "/hk.pem", "root": "/a.pem", "mutual": True}},
        ),
    ],
)
def test_certificates(settings: dict[str, Any], found: dict[str, Any]) -> None:
    assert native_settings.tls(DaemonConfig(**settings)) == found
