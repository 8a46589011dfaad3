"""ONNX files without the onnx package: protobuf bytes written by hand (onnx.proto, onnx.ai).

It supports only what the tests' small models need: a graph of nodes with float weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

#: TensorProto.DataType
FLOAT, STRING = 1, 8
Shape = Sequence["int | str"]


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def node(operator: str, inputs: Sequence[str], outputs: Sequence[str], **axes: int) -> bytes:
    """Return a NodeProto; `axes` are its integer attributes."""
    attributes = [
        _field(5, _field(1, name) + _field(3, value & (1 << 64) - 1) + _field(20, 2))
        for name, value in axes.items()
    ]
    named = [_field(1, one) for one in inputs] + [_field(2, one) for one in outputs]
    return b"".join([*named, _field(4, operator), *attributes])


def _value(name: str, datatype: int, shape: Shape) -> bytes:
    sizes = [_field(1, _field(2 if isinstance(one, str) else 1, one)) for one in shape]
    tensor = _field(1, datatype) + _field(2, b"".join(sizes))
    return _field(1, name) + _field(2, _field(1, tensor))


def _weights(name: str, array: Any) -> bytes:
    values = np.asarray(array, np.float32)
    sizes = b"".join(_field(1, size) for size in values.shape)
    return sizes + _field(2, FLOAT) + _field(8, name) + _field(9, values.astype("<f4").tobytes())


def model(
    nodes: Sequence[bytes],
    inputs: Mapping[str, tuple[int, Shape]],
    outputs: Mapping[str, tuple[int, Shape]],
    weights: Mapping[str, Any] | None = None,
) -> bytes:
    """Return a ModelProto (opset 13).

    Args:
        nodes: of the graph, in execution order
        inputs: name -> data type and shape, where text names a variable size
        outputs: the same
        weights: constants by name
    """
    graph = [_field(1, one) for one in nodes] + [_field(2, "graph")]
    graph += [_field(5, _weights(name, array)) for name, array in (weights or {}).items()]
    graph += [_field(11, _value(name, *kind)) for name, kind in inputs.items()]
    graph += [_field(12, _value(name, *kind)) for name, kind in outputs.items()]
    opset = _field(1, "") + _field(2, 13)
    return _field(1, 8) + _field(7, b"".join(graph)) + _field(8, opset)


def affine(factor: float, shape: Shape = ("n", 4), offset: float = 0.0) -> bytes:
    """Return a model that computes y = x * factor + offset."""
    return model(
        [node("Mul", ["x", "factor"], ["scaled"]), node("Add", ["scaled", "offset"], ["y"])],
        {"x": (FLOAT, shape)},
        {"y": (FLOAT, shape)},
        {"factor": [factor], "offset": [offset]},
    )


def perceptron(weights: Sequence[Any], biases: Sequence[Any], features: int) -> bytes:
    """Return scikit-learn's MLPClassifier (relu) as a model from INPUT__0 [n, 1, h, w] to probabilities OUTPUT__0."""
    side = round(features**0.5)
    nodes = [node("Flatten", ["INPUT__0"], ["a0"], axis=1)]
    constants: dict[str, Any] = {}
    for index, (weight, bias) in enumerate(zip(weights, biases)):
        constants.update({f"w{index}": weight, f"b{index}": bias})
        nodes.append(node("Gemm", [f"a{index}", f"w{index}", f"b{index}"], [f"z{index}"]))
        last = index == len(weights) - 1
        out = "OUTPUT__0" if last else f"a{index + 1}"
        nodes.append(node("Softmax" if last else "Relu", [f"z{index}"], [out]))
    classes = np.shape(biases[-1])[0]
    return model(
        nodes,
        {"INPUT__0": (FLOAT, ("n", 1, side, side))},
        {"OUTPUT__0": (FLOAT, ("n", classes))},
        constants,
    )
