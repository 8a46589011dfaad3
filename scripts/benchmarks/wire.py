"""The bytes of one request per system and protocol, and whether an answer to it is right.

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
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2

from benchmarks.workloads import Model, Payload, Workload

Array = npt.NDArray[Any]
Check = Callable[[bytes, Mapping[str, str]], None]
GRPC_SERVICE = "/inference.GRPCInferenceService/"


class WrongAnswer(Exception):
    """A system answered, and not what it should have."""


@dataclass(frozen=True)
class Request:
    """What every client sends again and again.

    Args:
        url: of HTTP, or of the method for gRPC
        body: the whole body; for gRPC with its five bytes of framing
        headers: besides those that the client makes itself
        check: is called with a response's body and headers (lower case), raises WrongAnswer
        grpc: it goes over HTTP/2
    """

    url: str
    body: bytes
    check: Check
    headers: Mapping[str, str] = field(default_factory=dict)
    grpc: bool = False


def values(model: Model, payload: Payload) -> Array:
    """Return what is sent, without a batch axis."""
    if payload.strings:
        return np.array([b"%0100d" % index for index in range(payload.strings)], dtype=object)
    return (np.arange(payload.floats) % 1024).astype(np.float32)


def raw(array: Array) -> bytes:
    """Return an array's bytes as Triton wants them; strings with their length before each."""
    if array.dtype != object:
        return array.tobytes()
    return b"".join(struct.pack("<I", len(item)) + item for item in array.tolist())


def answer(workload: Workload) -> bytes:
    """Return the bytes of the right answer; those of one of its responses, when there are several."""
    sent = values(workload.model, workload.payload)
    if workload.payload.answer is None or workload.payload.responses > 1:
        return raw(sent)
    if workload.model.work == "table":
        return raw((np.arange(workload.payload.answer) % 1024).astype(np.float32))
    return raw(sent[: workload.payload.answer])


def expect(found: bytes, wanted: bytes, where: str) -> None:
    """Raise WrongAnswer, with the beginning of both, unless the bytes are the same."""
    if found != wanted:
        raise WrongAnswer(
            f"{where}: {len(found)} bytes beginning with {found[:60]!r}, "
            f"expected {len(wanted)} beginning with {wanted[:60]!r}"
        )


def raw_http(workload: Workload, url: str) -> Request:
    """Return the request of systems that take and return bytes as they are."""
    wanted = b"".join(stream_answers(workload)) if streams(workload) else answer(workload)
    body = raw(values(workload.model, workload.payload))
    headers = {"content-type": "application/octet-stream"}
    return Request(url, body, partial(_check_raw, wanted), headers)


def _check_raw(wanted: bytes, found: bytes, _: Mapping[str, str]) -> None:
    expect(found, wanted, "body")


def streams(workload: Workload) -> bool:
    """Whether a request has several responses."""
    return workload.payload.responses > 1


def stream_answers(workload: Workload) -> list[bytes]:
    """Return the bytes of each response of a stream."""
    return [struct.pack("<f", index) for index in range(workload.payload.responses)]


def triton_http(workload: Workload, base: str) -> Request:
    """Return the request of Triton's HTTP endpoint, with binary tensors both ways."""
    model = workload.model
    if streams(workload):
        return _generate_stream(workload, base)
    sent = values(model, workload.payload)
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "x",
                    "shape": _shape(model, sent),
                    "datatype": model.dtype,
                    "parameters": {"binary_data_size": len(raw(sent))},
                }
            ],
            "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
        },
        separators=(",", ":"),
    ).encode()
    headers = {
        "content-type": "application/octet-stream",
        "inference-header-content-length": str(len(head)),
    }
    check = partial(_check_http, answer(workload))
    return Request(f"{base}/v2/models/{model.name}/infer", head + raw(sent), check, headers)


def _check_http(wanted: bytes, found: bytes, headers: Mapping[str, str]) -> None:
    length = int(headers.get("inference-header-content-length", len(found)))
    expect(found[length:], wanted, f"output y after {found[:length]!r}")


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
    """Return the request of a method that takes `x` as a JSON list, batch axis first, and returns one."""
    sent = values(workload.model, workload.payload)
    body = json.dumps({"x": [sent.tolist()]}, separators=(",", ":")).encode()
    check = partial(_check_list, answer(workload))
    return Request(url, body, check, {"content-type": "application/json"})


def _check_list(wanted: bytes, found: bytes, _: Mapping[str, str]) -> None:
    expect(np.array(json.loads(found), np.float32).tobytes(), wanted, "answer")


def json_http(workload: Workload, base: str) -> Request:
    """Return the request of the V2 protocol in JSON alone."""
    model = workload.model
    sent = values(model, workload.payload)
    data = [item.decode() for item in sent.tolist()] if model.dtype == "BYTES" else sent.tolist()
    tensor = {"name": "x", "shape": _shape(model, sent), "datatype": model.dtype, "data": data}
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
    """Return the request of the gRPC service, framed."""
    model = workload.model
    sent = values(model, workload.payload)
    request = service_pb2.ModelInferRequest(model_name=model.name)
    tensor = request.inputs.add(name="x", datatype=model.dtype)
    tensor.shape.extend(_shape(model, sent))
    request.raw_input_contents.append(raw(sent))
    method = "ModelStreamInfer" if streams(workload) else "ModelInfer"
    message = request.SerializeToString()
    headers = {"content-type": "application/grpc", "te": "trailers"}
    return Request(
        base + GRPC_SERVICE + method,
        b"\0" + struct.pack(">I", len(message)) + message,
        partial(_check_grpc_stream, b"".join(stream_answers(workload)))
        if streams(workload)
        else partial(_check_grpc, answer(workload)),
        headers,
        grpc=True,
    )


def _check_grpc(wanted: bytes, found: bytes, _: Mapping[str, str]) -> None:
    messages = split_messages(found)
    if len(messages) != 1:
        raise WrongAnswer(f"{len(messages)} messages in the answer instead of one")
    response = service_pb2.ModelInferResponse.FromString(messages[0])
    contents = list(response.raw_output_contents)
    if not contents and response.outputs:
        contents = [np.array(response.outputs[0].contents.fp32_contents, "<f4").tobytes()]
    expect(b"".join(contents), wanted, "output y")


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


def _shape(model: Model, array: Array) -> list[int]:
    return [1, len(array)] if model.max_batch_size else [len(array)]
