"""Models from other frameworks and tools, served by workers.

Model files of frameworks, such as ONNX and PyTorch, have tensors; tritonserver serves them itself if it has the backend.
Models of other tools, such as MLflow, become typed functions.

table     the supported formats and tools, and how a model's format is recognized
pbtxt     reads and writes config.pbtxt
recipe    the payload of such a model: its configuration and the paths of its files
model     the callable that a worker serves, which loads one file per version
complete  completion of a configuration with the tensors that a file describes
probe     the program that completes a configuration in the workers' environment
tools     a tool's model as a typed function, and the program that describes it in the workers' environment

`trees` has the common code of XGBoost and LightGBM. Each of the other modules loads one format: `load(path, config)`
returns a `LoadedFile`; of a tool, `open_model(location)` returns a `ToolModel`. Only workers and the two programs import
these, so the daemon never loads a framework.
"""

from __future__ import annotations
