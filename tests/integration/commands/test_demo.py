"""The two programs of the demo, and scripts/demo itself where that is cheap: newcomers run them first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.real_daemon import RunningDaemon

DIGITS = Path(__file__).resolve().parents[3] / "examples" / "digits"


def _run(daemon: RunningDaemon, program: str) -> str:
    env = {**os.environ, "PYTRITON_DAEMON_RUNTIME_DIR": daemon.config.runtime_dir}
    done = subprocess.run(
        [sys.executable, str(DIGITS / program)],
        env=env,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(
    600
)  # scikit-learn alone may take half a minute to be imported on a busy machine
def test_digits_are_trained_registered_and_classified(daemon: RunningDaemon) -> None:
    """In three processes: the daemon, one that trains and registers, one that classifies."""
    assert "registered digits at" in _run(daemon, "train_and_register.py")
    said = _run(daemon, "classify.py")
    assert said.count("accuracy 0.9") == 4  # HTTP and gRPC, single and concurrent
    assert "error" not in said
