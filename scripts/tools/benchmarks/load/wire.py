"""Creates the request for each system and protocol, and checks the response.

Sources: the KServe v2 protocol with Triton's binary tensor extension (HTTP), `ModelInferRequest` of
grpc_service.proto with `raw_input_contents` (gRPC), Triton's generate extension (streams over HTTP), and the
framing of gRPC over HTTP/2: one byte for compression, the length in four, the message.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from tritonclient.grpc import service_pb2

from benchmarks.load.tensors import (
    answer,
    inputs,
    outputs,
    raw,
    shape,
    stream_answers,
    streams,
    values,
)
from benchmarks.workloads import Workload

Check = Callable[[bytes, Mapping[str, str]], None]
GRPC_SERVICE = "/inference.GRPCInferenceService/"


class WrongAnswer(Exception):
    """The response is not the expected one."""


@dataclass(frozen=True)
class Request:
    """The request that every client sends repeatedly.

    Args:
        url: the URL; for gRPC, that of the method
        body: the whole body; for gRPC, with its five bytes of framing
        headers: in addition to those that the client adds itself
        check: gets a response's body and headers (lower case), and raises WrongAnswer if they are wrong
        grpc: whether it is a gRPC request
    """

    url: str
    body: bytes
    check: Check
    headers: Mapping[str, str] = field(default_factory=dict)
    grpc: bool = False


def expect(found: bytes, wanted: bytes, where: str) -> None:
    """Raise WrongAnswer, with the beginning of both, if the bytes differ."""
    if found != wanted:
        raise WrongAnswer(
            f"{where}: {len(found)} bytes beginning with {found[:60]!r}, "
            f"expected {len(wanted)} beginning with {wanted[:60]!r}"
        )


def expect_all(found: Mapping[str, bytes], wanted: Mapping[str, bytes]) -> None:
    """Raise WrongAnswer unless the outputs have the expected names and bytes."""
    if found.keys() != wanted.keys():
        raise WrongAnswer(f"outputs {sorted(found)}, expected {sorted(wanted)}")
    for name, content in found.items():
        expect(content, wanted[name], f"output {name}")


def raw_http(workload: Workload, url: str) -> Request:
    """Return the request for systems that accept and return raw bytes."""
    wanted = b"".join(stream_answers(workload)) if streams(workload) else answer(workload)
    body = raw(values(workload.payload))
    headers = {"content-type": "application/octet-stream"}
    return Request(url, body, partial(_check_raw, wanted), headers)


def _check_raw(wanted: bytes, found: bytes, _: Mapping[str, str]) -> None:
    expect(found, wanted, "body")


def triton_http(workload: Workload, base: str) -> Request:
    """Return the request for Triton's HTTP endpoint, with binary inputs and outputs."""
    model = workload.model
    if streams(workload):
        return _generate_stream(workload, base)
    sent = inputs(workload)
    tensors = [
        {
            "name": name,
            "shape": shape(model, array),
            "datatype": model.dtype,
            "parameters": {"binary_data_size": len(raw(array))},
        }
        for name, array in sent.items()
    ]
    asked = [{"name": name, "parameters": {"binary_data": True}} for name in model.outputs]
    head = json.dumps({"inputs": tensors, "outputs": asked}, separators=(",", ":")).encode()
    headers = {
        "content-type": "application/octet-stream",
        "inference-header-content-length": str(len(head)),
    }
    body = head + b"".join(map(raw, sent.values()))
    check = partial(_check_http, outputs(workload))
    return Request(f"{base}/v2/models/{model.name}/infer", body, check, headers)


def _check_http(wanted: Mapping[str, bytes], found: bytes, headers: Mapping[str, str]) -> None:
    position = int(headers.get("inference-header-content-length", len(found)))
    try:
        answered = json.loads(found[:position])["outputs"]
        sizes = {one["name"]: one["parameters"]["binary_data_size"] for one in answered}
    except (ValueError, KeyError) as error:
        raise WrongAnswer(f"no outputs in {found[:300]!r}") from error
    got = {}
    for name, size in sizes.items():
        got[name] = found[position : position + size]
        position += size
    expect_all(got, wanted)


def _check_events(count: int, found: bytes, _: Mapping[str, str]) -> None:
    events = [line[5:] for line in found.decode().splitlines() if line.startswith("data:")]
    got = [json.loads(event).get("y") for event in events]
    if got != list(range(count)):
        raise WrongAnswer(f"stream of {len(got)} events beginning with {events[:3]}")


def _generate_stream(workload: Workload, base: str) -> Request:
    check = partial(_check_events, workload.payload.responses)
    url = f"{base}/v2/models/{workload.model.name}/generate_stream"
    return Request(url, b'{"x":0.0}', check, {"content-type": "application/json"})


def plain_json(workload: Workload, url: str) -> Request:
    """Return the request for a method that accepts `x` as a JSON list, batch axis first, and returns one."""
    sent = values(workload.payload)
    body = json.dumps({"x": [sent.tolist()]}, separators=(",", ":")).encode()
    check = partial(_check_list, answer(workload))
    return Request(url, body, check, {"content-type": "application/json"})


def _check_list(wanted: bytes, found: bytes, _: Mapping[str, str]) -> None:
    expect(np.array(json.loads(found), np.float32).tobytes(), wanted, "answer")


def json_http(workload: Workload, base: str) -> Request:
    """Return the request for the V2 protocol in JSON only."""
    model = workload.model
    sent = values(workload.payload)
    data = [item.decode() for item in sent.tolist()] if model.dtype == "BYTES" else sent.tolist()
    tensor = {"name": "x", "shape": shape(model, sent), "datatype": model.dtype, "data": data}
    body = json.dumps({"inputs": [tensor]}, separators=(",", ":")).encode()
    url = f"{base}/v2/models/{model.name}/infer"
    check = partial(_check_json, answer(workload), model.dtype)
    return Request(url, body, check, {"content-type": "application/json"})


def _check_json(wanted: bytes, dtype: str, found: bytes, _: Mapping[str, str]) -> None:
    data = json.loads(found)["outputs"][0]["data"]
    array = np.array(data, np.float32)
    if dtype == "BYTES":
        array = np.array([item.encode() for item in data], dtype=object)
    expect(raw(array), wanted, "output y")


def triton_grpc(workload: Workload, base: str) -> Request:
    """Return the framed request for the gRPC service."""
    model = workload.model
    request = service_pb2.ModelInferRequest(model_name=model.name)
    for name, array in inputs(workload).items():
        tensor = request.inputs.add(name=name, datatype=model.dtype)
        tensor.shape.extend(shape(model, array))
        request.raw_input_contents.append(raw(array))
    method = "ModelStreamInfer" if streams(workload) else "ModelInfer"
    message = request.SerializeToString()
    headers = {"content-type": "application/grpc", "te": "trailers"}
    return Request(
        base + GRPC_SERVICE + method,
        b"\0" + struct.pack(">I", len(message)) + message,
        partial(_check_grpc_stream, b"".join(stream_answers(workload)))
        if streams(workload)
        else partial(_check_grpc, outputs(workload)),
        headers,
        grpc=True,
    )


def _check_grpc(wanted: Mapping[str, bytes], found: bytes, _: Mapping[str, str]) -> None:
    messages = split_messages(found)
    if len(messages) != 1:
        raise WrongAnswer(f"{len(messages)} messages in the answer instead of one")
    response = service_pb2.ModelInferResponse.FromString(messages[0])
    contents = list(response.raw_output_contents)
    if not contents and response.outputs:
        contents = [np.array(response.outputs[0].contents.fp32_contents, "<f4").tobytes()]
    expect_all(dict(zip((one.name for one in response.outputs), contents)), wanted)


def _check_grpc_stream(wanted: bytes, found: bytes, _: Mapping[str, str]) -> None:
    messages = [service_pb2.ModelStreamInferResponse.FromString(m) for m in split_messages(found)]
    for one in messages:
        if one.error_message:
            raise WrongAnswer(f"stream: {one.error_message}")
    got = [b"".join(m.infer_response.raw_output_contents) for m in messages]
    expect(b"".join(got), wanted, "stream")


def split_messages(body: bytes) -> list[bytes]:
    """Return the messages of a gRPC response's body."""
    found, position = [], 0
    while position + 5 <= len(body):
        (length,) = struct.unpack_from(">I", body, position + 1)
        found.append(body[position + 5 : position + 5 + length])
        position += 5 + length
    return found
