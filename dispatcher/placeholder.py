"""A model that is there as soon as tritonserver starts, in the place of one that is registered afterwards.

Vertex AI's frontend starts only when its default model is loaded ("Expect the default model 'x' is loaded", Triton
2.51), and a registration needs a server. The registration then takes this one's place.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_VERSION = "1"
_CODE = '''"""Stands in for a model that is not registered yet."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        error = pb_utils.TritonError("this model is still being loaded; try again in a moment")
        return [pb_utils.InferenceResponse(error=error) for _ in requests]
'''
_CONFIG = """name: "{name}"
backend: "python"
max_batch_size: 0
input [{{ name: "INPUT_1" data_type: TYPE_FP32 dims: [ -1 ] }}]
output [{{ name: "OUTPUT_1" data_type: TYPE_FP32 dims: [ -1 ] }}]
instance_group [{{ kind: KIND_CPU count: 1 }}]
"""


def wanted(options: Mapping[str, object]) -> str | None:
    """Return the name that tritonserver's options ask for, None if they ask for none."""
    name = options.get("vertex-ai-default-model")
    return str(name) if name and options.get("allow-vertex-ai") == "true" else None


def lay_out(models: Path, name: str) -> None:
    """Write the files that tritonserver loads it from at its start, whatever version was registered before."""
    folder = models / name / _VERSION
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.py").write_text(_CODE)
    (models / name / "config.pbtxt").write_text(_CONFIG.format(name=name))


def clear(models: Path, name: str) -> None:
    """Once it is loaded, remove its code: the model that takes its place must not find it."""
    for file in (models / name / _VERSION / "model.py", models / name / "config.pbtxt"):
        file.unlink(missing_ok=True)
