"""A fleet on Ray, where Ray is installed: what a killed and a drained node cost, and Ray's environments."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
#: Ray listens on every address.
_APART = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None,
        reason="needs Ray: pip install 'pytriton-daemon[ray]'",
    ),
]


def _shown(module: str) -> str:
    """Return what a demo prints, in a network namespace of its own."""
    if subprocess.run([*_APART, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("no network namespace of its own can be had here")
    path = os.pathsep.join(
        str(ROOT / part) for part in ("tests", "scripts/tools", "examples/digits")
    )
    own = {"PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0", "RUNS_APART": "1"}
    shown = subprocess.run(
        [*_APART, sys.executable, "-W", "ignore", "-m", module],
        env={**os.environ, **own}, capture_output=True, text=True, check=False, timeout=580,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stdout[-3000:] + shown.stderr[-3000:]
    return shown.stdout


def test_a_killed_node_loses_requests_in_flight_and_a_drained_one_none() -> None:
    assert "drained" in _shown("demos.fleet_demo")


def test_workers_are_in_rays_environments_and_nothing_of_them_is_left_behind() -> None:
    assert "nothing is left behind" in _shown("demos.fleet_environments")
