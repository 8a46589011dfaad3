"""ONNX models, run by ONNX Runtime."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from pytriton.formats.loaded import Array, FormatError, LoadedFile, TensorInfo, names_of, parameter

#: ONNX Runtime's names of data types (`NodeArg.type`) -> Triton's.
_DATATYPES = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}


def load(path: str, config: Mapping[str, Any]) -> LoadedFile:
    """Load a file, with the parameters intra_op_thread_count and inter_op_thread_count of Triton's backend.

    Raises:
        FormatError: Triton does not support the data type of a tensor
    """
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    for name in ("intra_op", "inter_op"):
        threads = parameter(config, f"{name}_thread_count")
        if threads:
            setattr(options, f"{name}_num_threads", int(threads))
    session = runtime.InferenceSession(path, options, providers=_providers(runtime))
    inputs = [_info(one, path) for one in session.get_inputs()]
    outputs = [_info(one, path) for one in session.get_outputs()]
    wanted = names_of(config, "output") or [one.name for one in outputs]

    def infer(arrays: dict[str, Array]) -> dict[str, Array]:
        return dict(zip(wanted, session.run(wanted, _as_text(arrays))))

    return LoadedFile(inputs, outputs, infer)


def _as_text(arrays: dict[str, Array]) -> dict[str, Array]:
    """Decode arrays of bytes objects, since ONNX Runtime expects str."""
    if all(array.dtype.kind != "O" for array in arrays.values()):
        return arrays
    return {
        name: _decoded(array) if array.dtype.kind == "O" else array
        for name, array in arrays.items()
    }


def _decoded(array: Array) -> Array:
    text = np.empty(array.shape, np.object_)
    for place, item in np.ndenumerate(array):
        text[place] = item.decode("utf-8") if isinstance(item, bytes) else item
    return text


def _providers(runtime: Any) -> list[str]:
    there = runtime.get_available_providers()
    # CUDA_VISIBLE_DEVICES="" means that the worker must not use a GPU.
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES") != ""
    wanted = [*(["CUDAExecutionProvider"] if gpu else []), "CPUExecutionProvider"]
    return [name for name in wanted if name in there]


def _info(node: Any, path: str) -> TensorInfo:
    if node.type not in _DATATYPES:
        raise FormatError(
            f"{path}: tensor {node.name!r} has the type {node.type}, which Triton does not support"
        )
    shape = tuple(size if isinstance(size, int) and size >= 0 else -1 for size in node.shape or ())
    return TensorInfo(node.name, _DATATYPES[node.type], shape)
