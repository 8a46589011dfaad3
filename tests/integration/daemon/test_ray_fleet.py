"""Run a fleet on Ray, if Ray is installed: kill and drain nodes under load, and use Ray's environments."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
#: Ray listens on every address, so it gets its own network namespace.
_UNSHARE = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None,
        reason="needs Ray: pip install 'pytriton-daemon[ray]'",
    ),
]


def _run(*arguments: str) -> str:
    """Run Python in its own network namespace and return the output."""
    if subprocess.run([*_UNSHARE, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("cannot create a network namespace here")
    env = {"PYTHONPATH": str(ROOT / "tests"), "RAY_USAGE_STATS_ENABLED": "0", "RUNS_APART": "1"}
    done = subprocess.run(
        [*_UNSHARE, sys.executable, "-W", "ignore", *arguments],
        env={**os.environ, **env}, capture_output=True, text=True, check=False, timeout=580,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_a_killed_node_loses_requests_in_flight_and_a_drained_one_none() -> None:
    output = _run("-m", "chaos.fleet", "--seconds", "1", "--faults", "kill-node,drain-node")
    assert "kill-node" in output
    assert "drain-node" in output


def test_workers_run_in_rays_environments_which_are_cleaned_up() -> None:
    program = Path(__file__).with_name("ray_environments.py")
    assert "done: nothing is left behind" in _run(str(program))
