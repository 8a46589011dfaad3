"""The command line of tritonserver, depending on the settings."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest
from fakes.triton.fake_frontend_place import fake_place

from pytriton._host.settings.declarations import DaemonConfig
from pytriton.dispatcher.server.endpoints import Endpoints
from pytriton.dispatcher.server.frontends import triton_frontend

_OURS = ("pytriton", "pytriton_native", "python")
_VERTEX = {"allow-vertex-ai": "true", "vertex-ai-default-model": "m", "vertex-ai-port": "8080"}


class Ask(Protocol):
    """Returns the arguments; see `ask`."""

    def __call__(
        self,
        preload: Sequence[str] = (),
        *,
        backend_names: Collection[str] = _OURS,
        caches: Path | None = None,
        vertex: bool = False,
        has: Collection[str] = (),
        **settings: Any,
    ) -> list[str]: ...


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """Return a function from settings to the arguments, with the folders in `tmp_path`."""

    def arguments(
        preload: Sequence[str] = (),
        *,
        backend_names: Collection[str] = _OURS,
        caches: Path | None = None,
        vertex: bool = False,
        has: Collection[str] = (),
        **settings: Any,
    ) -> list[str]:
        config = DaemonConfig(access_token="secret-secret-secret", **settings)
        place = fake_place(tmp_path, backend_names, caches=caches, options=has)
        endpoints = Endpoints(config).served
        given = triton_frontend.tritonserver_arguments(
            config, place, endpoints, preload, vertex=vertex
        )
        return [one.replace(str(tmp_path), "/run") for one in given]

    return arguments


def test_with_default_settings(ask: Ask) -> None:
    restricted = "model-repository,shared-memory,trace,logging,statistics"
    token = "triton-access-token=secret-secret-secret"
    assert sorted(ask()) == [
        "--allow-grpc=true",
        "--allow-http=true",
        "--allow-metrics=true",
        "--backend-config=python,shm-region-prefix-name=pytriton-7-",
        "--backend-directory=/run/backends",
        "--disable-auto-complete-config",
        "--exit-timeout-secs=30",
        "--grpc-address=127.0.0.1",
        "--grpc-port=8001",
        f"--grpc-restricted-protocol={restricted}:{token}",
        "--http-address=127.0.0.1",
        "--http-port=8000",
        f"--http-restricted-api={restricted}:{token}",
        "--metrics-address=127.0.0.1",
        "--metrics-port=8002",
        "--model-control-mode=explicit",
        "--model-repository=/run/models",
    ]


@pytest.mark.parametrize(
    ("settings", "there", "missing"),
    [
        ({"allow_grpc": False}, ["--allow-grpc=false"], ["--grpc-port", "--grpc-restricted"]),
        ({"allow_metrics": False}, ["--allow-metrics=false"], ["--metrics-port"]),
        ({"restricted_endpoints": ()}, [], ["restricted"]),
        ({"response_cache_size": 4096}, [], ["--cache-config"]),
        ({"caches": Path("/triton/caches")}, ["--cache-directory=/triton/caches"], []),
        ({"grace_period_s": 0.2}, ["--exit-timeout-secs=1"], []),
        # Later versions disable clients' shared memory by default.
        ({"has": ["allow-client-shm"]}, ["--allow-client-shm=true"], []),
        (
            {"has": ["allow-client-shm"], "allow_client_shm": False},
            ["--allow-client-shm=false"],
            [],
        ),
        ({}, [], ["client-shm"]),
        (
            {"preload": ["m", "gate"]},
            ["--load-model=m", "--load-model=gate", "--exit-on-error=false"],
            [],
        ),
        ({}, [], ["--load-model", "--exit-on-error", "--cache-"]),
        # A model of the user's, of another backend, may need its configuration completed.
        (
            {"model_repository": ("/mine",), "backend_names": (*_OURS, "onnxruntime")},
            ["--model-repository=/run/models"],
            ["--disable-auto-complete-config", "/mine"],
        ),
        ({"model_repository": ("/mine",)}, ["--disable-auto-complete-config"], []),
        ({"backend_names": (*_OURS, "onnxruntime")}, ["--disable-auto-complete-config"], []),
        (
            {"model_repository": ("s3://bucket/models",)},
            ["--model-repository=/run/models", "--model-repository=s3://bucket/models"],
            [],
        ),
    ],
)
def test_settings_that_change_the_command_line(
    ask: Ask, settings: dict[str, Any], there: list[str], missing: list[str]
) -> None:
    given = ask(**settings)
    assert [one for one in there if one not in given] == []
    assert [one for one in given if any(text in one for text in missing)] == []


@pytest.mark.parametrize(
    ("options", "there", "missing"),
    [
        ({"log-verbose": "1"}, ["--log-verbose=1"], []),
        # Repeatable options are added to ours.
        (
            {"backend-config": ["onnxruntime,x=1", "default-max-batch-size=4"]},
            [
                "--backend-config=python,shm-region-prefix-name=pytriton-7-",
                "--backend-config=onnxruntime,x=1",
                "--backend-config=default-max-batch-size=4",
            ],
            [],
        ),
        # Ours is required: with the gate, tritonserver would exit otherwise.
        ({"exit-on-error": "true"}, ["--exit-on-error=false"], ["--exit-on-error=true"]),
        # The core would retry a failing load without a pause, and could not be stopped.
        ({"model-load-retry-count": "9"}, [], ["--model-load-retry-count=9"]),
    ],
)
def test_the_users_options(
    ask: Ask, options: dict[str, Any], there: list[str], missing: list[str]
) -> None:
    given = ask(["gate"], tritonserver_options=options)
    assert [one for one in given if one in there] == there
    assert [one for one in missing if one in given] == []


@pytest.mark.parametrize("vertex", [False, True])
def test_vertex_ai_s_frontend_starts_only_with_its_model(ask: Ask, vertex: bool) -> None:
    given = [one for one in ask(vertex=vertex, tritonserver_options=_VERTEX) if "vertex" in one]
    if vertex:
        assert sorted(given) == sorted(f"--{name}={value}" for name, value in _VERTEX.items())
    else:
        assert given == ["--allow-vertex-ai=false"]
