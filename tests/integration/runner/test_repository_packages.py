"""Environments created for repository models: for their format, and for their requirements.txt."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.models import repositories
from support.models.inference import Inference
from support.real_daemon import RunningDaemon, eventually

X = np.ones((1, 4), np.float32)


@pytest.mark.timeout(600)
def test_missing_packages_are_installed_if_allowed(tmp_path: Path) -> None:
    """The cached environment is shared by both models, and by all runs of this test on a machine."""
    bare = tmp_path / "bare"
    without = ["--no-pip", "--no-setuptools"]
    subprocess.run([sys.executable, "-m", "virtualenv", "-q", *without, str(bare)], check=True)
    models = tmp_path / "models"
    onnx = repositories.add_affine(models, "onnx", {1: 2.0}, "max_batch_size: 8")
    python = repositories.add_multiplier(models, "python", {1: 3})
    (onnx / "requirements.txt").write_text("colorama>=0.4  # of no use\n")
    (python / "requirements.txt").write_text("# for nothing\n\ncolorama>=0.4\nonnxruntime\n")
    (python / "1" / "factor.py").write_text("import colorama\nFACTOR = 3\n")
    settings = {"model_repository": (str(models),), "model_python": str(bare / "bin" / "python")}
    with RunningDaemon.start(**settings) as daemon:
        found = settled(daemon)
        assert found["onnx"].state == found["python"].state == "failed"
        assert f"{bare}/bin/python -m pip install onnxruntime" in found["onnx"].reason
        assert "install_packages" in found["onnx"].reason
        assert "has no numpy" in found["python"].reason
    with RunningDaemon.start(**settings, install_packages=True) as daemon:
        found = settled(daemon)
        assert found["onnx"].state == found["python"].state == "ready", found
        inference = Inference("http", daemon.http)
        for name, factor in (("onnx", 2), ("python", 3)):
            assert inference.infer(name, {"x": X})["y"].tolist() == [[factor] * 4]
        inference.close()
        interpreters = {model.info().python for model in daemon.client.models()}
        assert len(interpreters) == 1
        assert "environments/requirements-" in interpreters.pop()
        (python / "requirements.txt").write_text("--index-url=https://127.0.0.1/\n")
        with pytest.raises(Exception, match="is not a requirement"):
            daemon.client.load_model("python")
        assert {one.name for one in daemon.client.models()} == {"onnx", "python"}


def settled(daemon: RunningDaemon) -> dict[str, Any]:
    eventually(
        lambda: all(one.state != "loading" for one in daemon.client.repository()), "loaded", 300
    )
    return {one.name: one for one in daemon.client.repository()}
