"""scripts/gpu-check: the folder is built and runs on the CPU, in this Python with numpy, where rows for GPUs are skipped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_check import bundle
from support.caching_compiler import caching_compiler
from support.examples import THOROUGH

_VERSION = "{}.{}".format(*sys.version_info[:2])


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_folder_passes_on_the_cpu_and_skips_what_needs_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", str(caching_compiler(tmp_path / "cc", "cc")))
    size = bundle.build(tmp_path / "folder", _VERSION, compress=THOROUGH)
    assert size <= bundle.MAX_BYTES or not THOROUGH

    # A container may have neither GPUs nor a home that can be written.
    env = {
        **os.environ,
        "PYTHON": sys.executable,
        "CUDA_VISIBLE_DEVICES": "",
        "HOME": "/nonexistent",
    }
    del env["CC"]
    env.pop("PYTHONPATH", None)
    result = tmp_path / "results.json"
    done = subprocess.run(
        [tmp_path / "folder" / "run.sh", "--json", result, "--only", "server,devices,suspend,metrics,cuda_shm,mps"],
        env=env, cwd="/", capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    written = json.loads(result.read_text())
    assert done.returncode == 0, done.stdout + done.stderr + json.dumps(written, indent=1)
    assert {one["row"]: one["result"] for one in written["rows"]} == {
        "setup": "passed",
        "server": "passed",
        "devices": "passed",
        "suspend": "passed",
        "metrics": "skipped",
        "cuda_shm": "skipped",
        "mps": "skipped",
    }
    assert all(one["detail"] for one in written["rows"])
    assert done.stdout.endswith("4 passed, 0 failed, 3 skipped\n")
