"""Half-precision numbers and bytes for people, which JSON cannot carry: by the protocol's binary data.

A person writes numbers; those of FP16 and BF16 inputs go to the server as bytes. Outputs of these types, and strings,
which need not be text, come as bytes, and so does every output that the person asks for as binary data. All of them are
shown as numbers and text.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pytriton.dispatcher.telemetry.dashboard.tensors import HALVES, outputs

_BYTES = "BYTES"
#: Where the JSON of a request or an answer ends, and its binary data begins.
LENGTH = "inference-header-content-length"
#: How struct reads an element of each type of a fixed size, but BF16.
_FORMATS = {
    "BOOL": "?",
    **{"INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q"},
    **{"UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q"},
    **{"FP16": "e", "FP32": "f", "FP64": "d"},
}


class UnusableRequestError(ValueError):
    """A text of somebody's that cannot be sent; says where, and why."""


def packed(body: bytes, config: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
    """Return a request as the server takes it, and its headers; it stays as it is where JSON can carry all of it.

    Args:
        body: JSON, as a person wrote it; what is no request is left to the server to refuse
        config: of the model

    Raises:
        UnusableRequestError: an input of half precision has other data than numbers.
    """
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return body, {}
    if not isinstance(request, dict) or not isinstance(request.get("inputs"), list):
        return body, {}
    blobs = [_to_bytes(one) for one in request["inputs"] if _is_half(one)]
    binary = [one.name for one in outputs(config) if one.datatype in (*HALVES, _BYTES)]
    asks = bool(binary) and "outputs" not in request
    if not blobs and not asks:
        return body, {}
    if asks:
        request["outputs"] = [
            {"name": one.name, "parameters": {"binary_data": one.name in binary}}
            for one in outputs(config)
        ]
    head = json.dumps(request).encode()
    return head + b"".join(blobs), {LENGTH: str(len(head))}


def unpacked(answer: bytes, length: str | None) -> bytes:
    """Return an answer as JSON; `length`: of its JSON, where binary data follows."""
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


def _is_half(given: Any) -> bool:
    return isinstance(given, dict) and given.get("datatype") in HALVES and "data" in given


def _to_bytes(given: dict[str, Any]) -> bytes:
    """Return the data of an input as bytes, and write into the request how many they are."""
    encode = _fp16 if given["datatype"] == "FP16" else _bf16
    try:
        blob = b"".join(map(encode, _flat(given.pop("data"))))
    except (TypeError, ValueError, OverflowError, struct.error) as error:
        name = str(given.get("name"))[:100]
        raise UnusableRequestError(
            f"input {name}: its data has to be numbers that {given['datatype']} holds: {error}"
        ) from None
    parameters = given.get("parameters")
    known = parameters if isinstance(parameters, dict) else {}
    given["parameters"] = {**known, "binary_data_size": len(blob)}
    return blob


def _flat(data: Any) -> Iterator[Any]:
    """Yield the elements of lists in lists."""
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
    """Return the upper half of a float32, rounded to the nearest, of two as near to the even one."""
    (bits,) = struct.unpack("<I", struct.pack("<f", float(value)))
    if not math.isnan(value):  # rounded, it would be an infinity
        bits += 0x7FFF + (bits >> 16 & 1)
    return struct.pack("<H", bits >> 16)


def _values(datatype: str, data: bytes) -> Iterable[Any]:
    """Return the elements of an output; those of a type that is not known here are one, in base64."""
    if datatype in _FORMATS:
        return (value for (value,) in struct.iter_unpack(f"<{_FORMATS[datatype]}", data))
    if datatype == "BF16":
        words = (word for (word,) in struct.iter_unpack("<H", data))
        return (struct.unpack("<f", struct.pack("<I", word << 16))[0] for word in words)
    return _strings(data) if datatype == _BYTES else [_in_base64(data)]


def _strings(data: bytes) -> Iterator[Any]:
    """Yield the elements of BYTES: text where it is some, else what they are in base64."""
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
