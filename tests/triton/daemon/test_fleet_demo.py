"""A fleet on Ray, where Ray is installed: `scripts/fleet-demo` counts what a killed and a drained node cost."""

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


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs Ray: pip install 'pytriton-daemon[ray]'"
)
def test_a_killed_node_costs_what_was_inside_and_a_drained_one_nothing() -> None:
    if subprocess.run([*_APART, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("no network namespace of its own can be had here")
    path = os.pathsep.join(str(ROOT / part) for part in ("tests", "examples/digits"))
    shown = subprocess.run(
        [*_APART, sys.executable, "-W", "ignore", "-m", "support.demos.fleet_demo"],
        env={**os.environ, "PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stdout[-3000:] + shown.stderr[-3000:]
    assert "drained" in shown.stdout
