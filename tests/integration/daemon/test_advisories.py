"""A daemon that other machines can reach reports known vulnerabilities of its tritonserver.

The tests run in their own network namespace.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# In another network namespace, whose 0.0.0.0 no machine can reach.
_APART = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
_SCRIPT = """
import json, subprocess, sys
from support.real_daemon import RunningDaemon

subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
settings = json.loads(sys.argv[1])
with RunningDaemon.start(**settings) as daemon:
    log = daemon.said()
    problems = daemon.client.status().problems
print(json.dumps([log, problems]))
"""


def _said(**settings: str) -> tuple[str, list[str]]:
    """Return the log of a daemon's start, and the problems in its status."""
    done = subprocess.run(
        [*_APART, sys.executable, "-c", _SCRIPT, json.dumps(settings)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    log, problems = json.loads(done.stdout.splitlines()[-1])
    return log, problems


@pytest.fixture(scope="module", autouse=True)
def _networks_can_be_made() -> None:
    try:
        done = subprocess.run(
            [*_APART, "ip", "link", "set", "lo", "up"], check=False, capture_output=True
        )
    except FileNotFoundError as error:
        pytest.skip(f"needs {error.filename}")
    if done.returncode:
        pytest.skip("this user may not make a network namespace")


def test_log_and_status_name_the_vulnerabilities() -> None:
    log, problems = _said(http_address="0.0.0.0", frontend="triton")
    (problem,) = problems
    assert "CVE-2025-23310" in problem
    assert "http_address 0.0.0.0" in problem
    assert "grpc_address" not in problem
    assert "CVE-2025-23310" in log


@pytest.mark.parametrize(
    "settings", [{"frontend": "triton"}, {"http_address": "0.0.0.0", "frontend": "native"}]
)
def test_nothing_is_reported_if_no_other_machine_can_connect(settings: dict[str, str]) -> None:
    log, problems = _said(**settings)
    assert problems == []
    assert "CVE" not in log
