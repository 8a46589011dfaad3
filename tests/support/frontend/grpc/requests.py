"""The notation of the calls in corpus.py."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tritonclient.grpc import service_pb2 as pb

FLOATS = struct.pack("<2f", 1.5, 2.0)
STRINGS = b"\1\0\0\0a\2\0\0\0bc"


@dataclass(frozen=True)
class Call:
    """One call: unary, or ModelStreamInfer with several messages."""

    name: str
    method: str
    requests: Sequence[Any]
    metadata: Sequence[tuple[str, str]] = field(default_factory=tuple)


def parameter(value: Any) -> Any:
    """A parameter of a request."""
    if isinstance(value, bool):
        return pb.InferParameter(bool_param=value)
    if isinstance(value, str):
        return pb.InferParameter(string_param=value)
    if isinstance(value, float):
        return pb.InferParameter(double_param=value)
    if value > 2**63 - 1:
        return pb.InferParameter(uint64_param=value)
    return pb.InferParameter(int64_param=value)


def tensor(
    name: str = "INPUT0",
    datatype: str = "FP32",
    shape: Sequence[int] = (1, 2),
    contents: Any = None,
    **parameters: Any,
) -> Any:
    """An input."""
    given = {key: parameter(value) for key, value in parameters.items()}
    return pb.ModelInferRequest.InferInputTensor(
        name=name, datatype=datatype, shape=shape, contents=contents, parameters=given
    )


def output(name: str = "OUTPUT0", **parameters: Any) -> Any:
    """A requested output."""
    given = {key: parameter(value) for key, value in parameters.items()}
    return pb.ModelInferRequest.InferRequestedOutputTensor(name=name, parameters=given)


def request(
    *inputs: Any,
    model: str = "one",
    version: str = "",
    id: str = "",
    raw: Sequence[bytes] = (FLOATS,),
    outputs: Sequence[Any] = (),
    **parameters: Any,
) -> Any:
    """An inference request."""
    given = {key: parameter(value) for key, value in parameters.items()}
    return pb.ModelInferRequest(
        model_name=model, model_version=version, id=id, inputs=inputs or [tensor()], outputs=outputs,
        raw_input_contents=raw, parameters=given,
    )  # fmt: skip


def echo_request(data: bytes, model: str = "echo") -> Any:
    """A request to a model that returns these bytes."""
    return request(tensor("x", "UINT8", (len(data),)), model=model, raw=[data])


def call(name: str, message: Any) -> Call:
    """Return a call of the method that takes this message."""
    return Call(name, type(message).__name__.removesuffix("Request"), [message])


def infer(name: str, /, *inputs: Any, **options: Any) -> Call:
    """Return a ModelInfer; see `request`."""
    return call(name, request(*inputs, **options))


def stream(name: str, *messages: Any) -> Call:
    """Return a ModelStreamInfer."""
    return Call(name, "ModelStreamInfer", messages)
