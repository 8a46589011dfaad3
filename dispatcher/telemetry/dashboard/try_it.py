"""Encodes requests that users type in the dashboard, forwards them to tritonserver, and decodes the responses."""

from __future__ import annotations

import base64
import http.client
import json
import math
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from pytriton._host.ports import connection_to
from pytriton.dispatcher.telemetry.dashboard.examples import HALVES, is_decoupled, outputs

#: Maximum size of a response to show, in bytes.
_MAX_ANSWER_BYTES = 4 << 20
_INFER_TIMEOUT_S = 60.0
#: How long to read a stream, in seconds.
_STREAM_LIMIT_S = 20.0
#: Header with the length of the JSON part before the binary data.
_JSON_LENGTH = "inference-header-content-length"
_TRUNCATED = "… the stream continues; the rest is not shown\n"

Answer = tuple[int, bytes, str]
_JSON, _TEXT = "application/json", "text/plain; charset=utf-8"


class UnusableRequestError(ValueError):
    """Raised for a request that cannot be sent. The message says where and why."""


def forward(
    url: str, name: str, body: bytes, config: Mapping[str, Any], headers: Mapping[str, str]
) -> Answer:
    """Send a request to a model; return the status, body and content type of the response. Blocks.

    Args:
        url: URL of tritonserver
        name: name of the model
        body: JSON as typed by a user; for a decoupled model, a body for `generate_stream`
        config: configuration of the model
        headers: headers that authorize the daemon at tritonserver

    Raises:
        OSError: tritonserver could not be reached
    """
    stream = is_decoupled(config)
    path = f"/v2/models/{quote(name, safe='')}/{'generate_stream' if stream else 'infer'}"
    more: dict[str, str] = {}
    try:
        if not stream:
            body, more = encode_request(body, config)
    except UnusableRequestError as error:
        return _error(400, str(error))
    connection = connection_to(url, _INFER_TIMEOUT_S)
    try:
        connection.request("POST", path, body, {**headers, **more, "content-type": _JSON})
        answer = connection.getresponse()
        if stream and answer.status == 200:
            return answer.status, _read_stream(answer), _TEXT
        content = answer.read(_MAX_ANSWER_BYTES + 1)
        if len(content) > _MAX_ANSWER_BYTES:
            text = f"the answer is larger than {_MAX_ANSWER_BYTES:,} bytes: use a client to read it"
            return _error(413, text)
        return answer.status, decode_answer(content, answer.getheader(_JSON_LENGTH)), _JSON
    except http.client.HTTPException as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
    finally:
        connection.close()


def _read_stream(answer: http.client.HTTPResponse) -> bytes:
    """Read a stream until it ends or exceeds the limit of time or size."""
    deadline = time.monotonic() + _STREAM_LIMIT_S
    found = bytearray()
    while piece := answer.read1(1 << 16):
        found += piece
        if len(found) > _MAX_ANSWER_BYTES or time.monotonic() > deadline:
            return bytes(found[:_MAX_ANSWER_BYTES]) + _TRUNCATED.encode()
    return bytes(found)


def _error(code: int, text: str) -> Answer:
    return code, json.dumps({"error": text}).encode(), _JSON


# ── half-precision numbers and bytes, which JSON cannot carry, as the protocol's binary data ─────

_BYTES = "BYTES"
#: `struct` formats of the data types of fixed size, except BF16.
_FORMATS = {
    "BOOL": "?",
    **{"INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q"},
    **{"UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q"},
    **{"FP16": "e", "FP32": "f", "FP64": "d"},
}


def encode_request(body: bytes, config: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
    """Encode a request for tritonserver; return its body and headers.

    Half-precision inputs, which JSON cannot represent, become binary data. Other requests are unchanged.

    Args:
        body: JSON as typed by a user; if it is invalid, tritonserver will reject it
        config: configuration of the model

    Raises:
        UnusableRequestError: the data of a half-precision input is not numbers
    """
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return body, {}
    if not isinstance(request, dict) or not isinstance(request.get("inputs"), list):
        return body, {}
    blobs = [_to_bytes(one) for one in request["inputs"] if _is_half(one)]
    binary = [one.name for one in outputs(config) if one.datatype in (*HALVES, _BYTES)]
    wants_binary = bool(binary) and "outputs" not in request
    if not blobs and not wants_binary:
        return body, {}
    if wants_binary:
        request["outputs"] = [
            {"name": one.name, "parameters": {"binary_data": one.name in binary}}
            for one in outputs(config)
        ]
    head = json.dumps(request).encode()
    return head + b"".join(blobs), {_JSON_LENGTH: str(len(head))}


def decode_answer(answer: bytes, length: str | None) -> bytes:
    """Decode a response to JSON. `length` is the length of the response's JSON part if binary data follows."""
    if length is None or not length.isdecimal():
        return answer
    head = json.loads(answer[: int(length)])
    at = int(length)
    for one in head.get("outputs", []):
        size = one.get("parameters", {}).pop("binary_data_size", None)
        if size is None:
            continue
        if not one["parameters"]:
            del one["parameters"]
        one["data"] = list(_values(one["datatype"], answer[at : at + size]))
        at += size
    return json.dumps(head).encode()


def _is_half(tensor: Any) -> bool:
    return isinstance(tensor, dict) and tensor.get("datatype") in HALVES and "data" in tensor


def _to_bytes(tensor: dict[str, Any]) -> bytes:
    """Remove the data of a half-precision input from the request, set its size there, and return the data as bytes."""
    encode = _fp16 if tensor["datatype"] == "FP16" else _bf16
    try:
        blob = b"".join(map(encode, _flat(tensor.pop("data"))))
    except (TypeError, ValueError, OverflowError, struct.error) as error:
        name = str(tensor.get("name"))[:100]
        raise UnusableRequestError(
            f"input {name}: its data must be numbers that fit {tensor['datatype']}: {error}"
        ) from None
    parameters = tensor.get("parameters")
    known = parameters if isinstance(parameters, dict) else {}
    tensor["parameters"] = {**known, "binary_data_size": len(blob)}
    return blob


def _flat(data: Any) -> Iterator[Any]:
    """Yield the elements of nested lists, in order."""
    waiting = [data]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting.extend(reversed(one))
        else:
            yield one


def _fp16(value: Any) -> bytes:
    return struct.pack("<e", float(value))


def _bf16(value: Any) -> bytes:
    """Return a number as BF16: the upper half of a float32, rounded to nearest, ties to even."""
    (bits,) = struct.unpack("<I", struct.pack("<f", float(value)))
    if not math.isnan(value):  # rounding a NaN could turn it into an infinity
        bits += 0x7FFF + (bits >> 16 & 1)
    return struct.pack("<H", bits >> 16)


def _values(datatype: str, data: bytes) -> Iterable[Any]:
    """Return the elements of a binary output. Data of an unknown type becomes a single element in base64."""
    if datatype in _FORMATS:
        return (value for (value,) in struct.iter_unpack(f"<{_FORMATS[datatype]}", data))
    if datatype == "BF16":
        words = (word for (word,) in struct.iter_unpack("<H", data))
        return (struct.unpack("<f", struct.pack("<I", word << 16))[0] for word in words)
    return _strings(data) if datatype == _BYTES else [_in_base64(data)]


def _strings(data: bytes) -> Iterator[Any]:
    """Yield the elements of a BYTES tensor, as text if they are valid UTF-8, otherwise in base64."""
    at = 0
    while at + 4 <= len(data):
        (size,) = struct.unpack_from("<I", data, at)
        one = data[at + 4 : at + 4 + size]
        at += 4 + size
        try:
            yield one.decode()
        except UnicodeDecodeError:
            yield _in_base64(one)


def _in_base64(data: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(data).decode()}
