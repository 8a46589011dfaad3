"""Who is told that the tritonserver that runs has published faults."""

from __future__ import annotations

from typing import Any

import pytest

from pytriton.dispatcher.install.wheel import PINNED
from pytriton.dispatcher.settings import advisories
from pytriton.dispatcher.settings.declarations import DaemonConfig


def config(**settings: Any) -> DaemonConfig:
    return DaemonConfig(runtime_dir="/nowhere", **settings)


@pytest.mark.parametrize(
    ("settings", "ports"),
    [
        ({}, []),
        ({"http_address": "127.0.0.2", "grpc_address": "::1", "metrics_address": "localhost"}, []),
        ({"http_address": "0.0.0.0"}, ["http_address 0.0.0.0"]),
        ({"grpc_address": "::", "metrics_address": "192.0.2.7"},
         ["grpc_address ::", "metrics_address 192.0.2.7"]),
        ({"http_address": "0.0.0.0", "allow_http": False}, []),
        ({"tritonserver_options": {"allow-sagemaker": "true"}}, ["sagemaker on every interface"]),
        ({"tritonserver_options": {"allow-vertex-ai": "false"}}, []),
    ],
)  # fmt: skip
def test_ports_that_others_reach(settings: dict[str, Any], ports: list[str]) -> None:
    assert advisories.exposed(config(**settings)) == ports


@pytest.mark.parametrize(
    ("version", "faulty"),
    [
        (PINNED.triton_version, True),
        ("2.9.0", True),
        ("2.59.1", True),
        ("2.60.0", False),
        ("2.60.0dev", False),
        ("3.0", False),
        ("", False),  # of a server whose version nobody knows, nothing is said
        (None, False),
    ],
)
def test_versions(version: str | None, faulty: bool) -> None:
    assert advisories.is_faulty(version) is faulty
    reached = config(grpc_address="0.0.0.0")
    assert advisories.warning(reached, version, native=True) is None
    said = advisories.warning(reached, version, native=False)
    assert (said is not None) is faulty
    assert advisories.warning(config(), version, native=False) is None
    if said is not None:
        assert f"tritonserver {version} " in said
        assert "CVE-2025-23310" in said
        assert "grpc_address 0.0.0.0" in said
