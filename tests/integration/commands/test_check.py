"""`pytriton check` on this machine: the examples work, and the report is complete."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest


@pytest.mark.timeout(400)  # it starts two daemons, one after the other
def test_the_check_passes_and_writes_a_complete_report(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytriton", "check", "-w", "results"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All examples succeeded." in done.stdout
    with zipfile.ZipFile(tmp_path / "results" / "pytriton_check.zip") as archive:
        kept = {name: archive.read(name).decode() for name in archive.namelist()}
    assert sorted(kept) == ["env.log", "example_add_sub.log", "example_add_sub_script.log"]
    one, two = kept["example_add_sub.log"], kept["example_add_sub_script.log"]
    for log in (one, two):
        assert "AddSub was called over http://" in log
        assert "AddSub was called over grpc://" in log
        assert "Infer function available as model: `/v2/models/AddSub`" in log
    assert "the server has stopped and cleaned up" in one
    assert "server: " in two
    assert "SIGINT received, exiting." in two
    assert "the server was interrupted, and exited cleanly" in two
