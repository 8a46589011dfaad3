"""Model repositories for tests: small models in real formats and Triton's layout."""

from __future__ import annotations

from pathlib import Path

from support.models import onnx_files
from support.models.digits import Digits

#: Multiplies by 5; is slow for a request with -1, and creates a file "slow" in its version's folder then.
PYTHON_MODEL = """
import pathlib
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(one, "x").as_numpy() for one in requests]
        if any(x.flat[0] == -1 for x in tensors):
            pathlib.Path(__file__).with_name("slow").touch()
            time.sleep(3.5)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", 5 * x)]) for x in tensors]
"""
PYTHON_CONFIG = """
backend: "python"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
ONNX_CONFIG = """
name: "onnx_mnist"
backend: "onnxruntime"
dynamic_batching {}
input [ { name: "INPUT__0" data_type: TYPE_FP32 dims: [ -1, 1, 8, 8 ] } ]
output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ -1, 10 ] } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
"""
PAIR_CONFIG = """
max_batch_size: 4
version_policy { specific { versions: [ 1, 3 ] } }
"""


def add(repository: Path, name: str, files: dict[str, bytes], config: str | None = None) -> Path:
    """Write a model from a mapping of paths in its folder, such as "1/model.onnx", to contents."""
    folder = repository / name
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    if config is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.pbtxt").write_text(config)
    return folder


def add_affine(
    repository: Path, name: str, factors: dict[int, float], config: str | None = None
) -> Path:
    """Write an ONNX model that multiplies: version -> factor."""
    files = {
        f"{version}/model.onnx": onnx_files.affine(factor) for version, factor in factors.items()
    }
    return add(repository, name, files, config)


def add_multiplier(
    repository: Path, name: str, factors: dict[int, float], config: str = ""
) -> Path:
    """Write a Python model that multiplies by a factor from its own module: version -> factor."""
    code = PYTHON_MODEL.replace("import pathlib", "import pathlib, factor").replace(
        "5 * x", "factor.FACTOR * x"
    )
    files = {f"{version}/model.py": code.encode() for version in factors}
    files.update({f"{v}/factor.py": f"FACTOR = {f}\n".encode() for v, f in factors.items()})
    return add(repository, name, files, PYTHON_CONFIG + config)


def add_ensemble(repository: Path, name: str, steps: list[str]) -> Path:
    """Write an ensemble that chains models with x and y, and has x and y itself."""
    tensors = ["x", *(f"t{number}" for number in range(1, len(steps))), "y"]
    lines = [
        f'{{ model_name: "{step}" model_version: -1 input_map {{ key: "x" value: "{tensors[i]}" }} '
        f'output_map {{ key: "y" value: "{tensors[i + 1]}" }} }}'
        for i, step in enumerate(steps)
    ]
    config = PYTHON_CONFIG.replace('backend: "python"', 'platform: "ensemble"')
    config += f"ensemble_scheduling {{ step [ {', '.join(lines)} ] }}"
    return add(repository, name, {"1/.keep": b""}, config)


def add_five(folder: Path, digits: Digits) -> Path:
    """Write a classifier in two formats, a model with several versions, an unservable model, and a Python model."""
    add(folder, "onnx_mnist", {"1/model.onnx": digits.onnx}, ONNX_CONFIG)
    add(folder, "sklearn-digits", {"1/model.joblib": digits.pickled})
    add_affine(folder, "scaled", {1: 2.0, 2: 3.0, 3: 4.0}, PAIR_CONFIG)
    add_affine(folder, "spoilt", {1: 1.0}, 'input [ { name: "z" } ]')
    add(
        folder,
        "native",
        {"1/model.py": PYTHON_MODEL.encode()},
        PYTHON_CONFIG,
    )
    return folder
