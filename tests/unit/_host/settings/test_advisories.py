"""When a daemon warns that its tritonserver has published vulnerabilities."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pytriton._host.install.wheel import PINNED
from pytriton._host.settings import advisories
from pytriton._host.settings.declarations import DaemonConfig


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
def test_reachable_ports(settings: dict[str, Any], ports: list[str]) -> None:
    assert advisories.exposed(config(**settings)) == ports


@pytest.mark.parametrize(
    ("version", "faulty"),
    [
        (PINNED.triton_version, True),
        ("2.9.0", True),
        ("2.70.0", True),
        ("2.71.0", False),
        ("2.71.0dev", False),
        ("3.0", False),
        ("", False),  # nothing is reported about a server of unknown version
        (None, False),
    ],
)
def test_affected_versions(version: str | None, faulty: bool) -> None:
    assert advisories.is_faulty(version) is faulty
    reached = config(grpc_address="0.0.0.0")
    assert advisories.warning(reached, version, native=True) is None
    said = advisories.warning(reached, version, native=False)
    assert (said is not None) is faulty
    assert advisories.warning(config(), version, native=False) is None
    if said is not None:
        assert f"tritonserver {version} " in said
        assert advisories.faults(version)[0].id in said
        assert "grpc_address 0.0.0.0" in said


@pytest.mark.parametrize(
    ("version", "mended", "left"),
    [
        ("2.59.0", "CVE-2025-23331", "CVE-2025-23310"),  # 25.06 and 25.07 differ in the last number
        ("2.59.1", "CVE-2025-23310", "CVE-2025-23316"),
        ("2.66.0", "CVE-2026-24173", "CVE-2026-24207"),
    ],
)
def test_a_vulnerability_is_reported_until_the_fixed_release(
    version: str, mended: str, left: str
) -> None:
    ids = [one.id for one in advisories.faults(version)]
    assert left in ids
    assert mended not in ids


def test_the_most_severe_come_first() -> None:
    found = advisories.faults("2.51.0")
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    assert found[0].score == 9.8
    assert advisories.named(found).endswith(f" and {len(found) - 4} others")
    assert advisories.named(found[:2]) == f"{found[0].id}, {found[1].id}"
    assert len(found) == len(advisories.catalogue().advisories)


def test_the_catalogue_is_complete() -> None:
    known = advisories.catalogue()
    assert len({one.id for one in known.advisories}) == len(known.advisories)
    for one in known.advisories:
        assert re.fullmatch(r"CVE-20\d\d-\d{4,}", one.id)
        assert one.mended_in in known.releases, one.id
        assert one.part in known.parts, one.id
        assert 0 < one.score <= 10, one.id
    versions = [tuple(map(int, one.split("."))) for one in known.releases.values()]
    assert versions == sorted(versions)
