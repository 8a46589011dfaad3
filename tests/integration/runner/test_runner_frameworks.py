"""Models of PyTorch and TensorFlow in workers whose interpreter has the framework.

These packages take gigabytes, so CI does not install them. PYTRITON_TEST_TORCH and PYTRITON_TEST_TENSORFLOW name an
interpreter with the package (and pyzmq, msgspec, cloudpickle); by default, the tests' own interpreter is tried.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pytriton.exceptions import ModelNotFoundError
from pytriton.runner import Runner

#: The configuration in BentoML's guide.
CONFIG = """
platform: "pytorch_libtorch"
dynamic_batching {}
input { name: "INPUT__0" data_type: TYPE_FP32 dims: -1 dims: 1 dims: 28 dims: 28 }
input { name: "INPUT__1" data_type: TYPE_FP32 dims: -1 dims: 1 dims: 28 dims: 28 }
output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: -1 dims: 10 }
output { name: "OUTPUT__1" data_type: TYPE_FP32 dims: -1 dims: 10 }
"""
MAKE_TORCH = """
import sys
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(784, 10)

    def forward(self, first, second):
        return self.linear(first.flatten(1)), 2 * self.linear(second.flatten(1))

net, zeros = Net().eval(), torch.zeros(2, 1, 28, 28)
torch.jit.trace(net, (zeros, zeros)).save(sys.argv[1])
rows = torch.export.Dim("rows", min=1, max=64)
shapes = ({0: rows}, {0: rows})
torch.export.save(torch.export.export(net, (zeros, zeros), dynamic_shapes=shapes), sys.argv[2])
"""
MAKE_TENSORFLOW = """
import sys
import tensorflow as tf

class Net(tf.Module):
    def __init__(self):
        self.factor = tf.Variable(2.0)

    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32, name="x")])
    def __call__(self, x):
        return {"y": x * self.factor}

net = Net()
tf.saved_model.save(net, sys.argv[1], signatures={"serving_default": net.__call__})
"""


def interpreter(variable: str, module: str) -> str:
    """Return a Python that has a framework; skip the test if there is none."""
    if os.environ.get(variable):
        return os.environ[variable]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed, and ${variable} names no interpreter that has it")
    return sys.executable


def make(python: str, code: str, folder: Path, *paths: Path) -> None:
    """Run the script that creates a model's files."""
    script = folder / "make.py"
    script.write_text(code)
    for path in paths:
        path.parent.mkdir(parents=True)
    subprocess.run([python, "-W", "ignore", str(script), *map(str, paths)], check=True)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_torchscript_and_torch_export(tmp_path: Path) -> None:
    python = interpreter("PYTRITON_TEST_TORCH", "torch")
    models = tmp_path / "models"
    names = ("torchscript_mnist", "exported")
    files = [models / names[0] / "1" / "model.pt", models / names[1] / "1" / "model.pt2"]
    make(python, MAKE_TORCH, tmp_path, *files)
    for name in names:
        (models / name / "config.pbtxt").write_text(CONFIG)
    (models / "bare" / "1").mkdir(parents=True)
    (models / "bare" / "1" / "model.pt").write_bytes(files[0].read_bytes())
    with Runner("torch", models, settings={"model_python": python}) as runner:
        one = np.zeros((1, 28, 28))
        by_script = runner.torchscript_mnist.run(one, one)
        by_export = runner.exported.run(INPUT__1=one, INPUT__0=one)
        for name, factor in (("OUTPUT__0", 1), ("OUTPUT__1", 2)):
            answer = by_script.as_numpy(name)
            assert answer.shape == (1, 10)
            assert np.allclose(answer, factor * by_script.as_numpy("OUTPUT__0"), atol=1e-5)
            assert np.allclose(answer, by_export.as_numpy(name), atol=1e-5)
        with pytest.raises(ModelNotFoundError, match=r"Declare them in config\.pbtxt"):
            runner.bare.run(one)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_saved_model(tmp_path: Path) -> None:
    python = interpreter("PYTRITON_TEST_TENSORFLOW", "tensorflow")
    make(
        python, MAKE_TENSORFLOW, tmp_path, tmp_path / "models" / "scaled" / "1" / "model.savedmodel"
    )
    with Runner("tensorflow", tmp_path / "models", settings={"model_python": python}) as runner:
        assert runner.scaled.run(np.ones((3, 4))).as_numpy("y").tolist() == [[2.0] * 4] * 3
