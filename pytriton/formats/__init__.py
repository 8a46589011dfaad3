"""Model files of frameworks, such as ONNX and PyTorch, which workers serve if tritonserver lacks the backend.

table     the supported formats, and how a model's format is recognized
pbtxt     reads and writes config.pbtxt
recipe    the payload of such a model: its configuration and the paths of its files
model     the callable that a worker serves, which loads one file per version
complete  completion of a configuration with the tensors that a file describes
probe     the program that completes a configuration in the workers' environment

`trees` has the common code of XGBoost and LightGBM. Each of the other modules loads one format: `load(path, config)`
returns a `LoadedFile`. Only workers and the probe import these, so the daemon never loads a framework.
"""

from __future__ import annotations
