"""A model's inputs and outputs as its configuration declares them, and matching example data."""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytriton._protocol.datatypes import of_config

#: Types that JSON cannot represent (KServe v2), so curl can neither send nor receive them.
HALVES = ("FP16", "BF16")
#: Size used in examples for dimensions of any size.
_ANY = 1
#: Tensors with more elements are too large for an example to copy.
_MAX_EXAMPLE_ELEMENTS = 64


@dataclass(frozen=True)
class DeclaredTensor:
    """A declared input or output.

    Attributes:
        datatype: the protocol's type name: FP32, BYTES, …
        shape: including the batch axis; -1 where any size is allowed.
        optional: whether the input may be omitted.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False

    @property
    def example_shape(self) -> tuple[int, ...]:
        """A valid concrete shape."""
        return tuple(_ANY if size < 0 else size for size in self.shape)

    def example_data(self) -> list[Any] | None:
        """Return zeros (or texts) for that shape as a flat list; None if there would be too many to read."""
        count = 1
        for size in self.example_shape:
            count *= size
        if count > _MAX_EXAMPLE_ELEMENTS:
            return None
        value: Any = {"BYTES": "text", "BOOL": False}.get(self.datatype, 0)
        if self.datatype.startswith(("FP", "BF")):
            value = 0.0
        return [value] * count

    def example_value(self) -> Any:
        """Return the same data in the form that `generate` expects: a single element without a list."""
        data = self.example_data() or []
        return data[0] if len(data) == 1 else data


def inputs(config: Mapping[str, Any]) -> list[DeclaredTensor]:
    """Return the inputs of a model configuration in JSON form."""
    return _tensors(config, "input")


def outputs(config: Mapping[str, Any]) -> list[DeclaredTensor]:
    """Return the outputs of a model configuration in JSON form."""
    return _tensors(config, "output")


def is_decoupled(config: Mapping[str, Any]) -> bool:
    """Return whether a request can have any number of responses."""
    return bool(config.get("model_transaction_policy", {}).get("decoupled"))


def _tensors(config: Mapping[str, Any], kind: str) -> list[DeclaredTensor]:
    batched = int(config.get("max_batch_size") or 0) > 0
    return [
        DeclaredTensor(
            name=str(one.get("name", "")),
            datatype=of_config(str(one.get("data_type", ""))),
            shape=((-1,) if batched else ()) + tuple(int(size) for size in one.get("dims", [])),
            optional=bool(one.get("optional")),
        )
        for one in config.get(kind, [])
    ]


def has_halves(config: Mapping[str, Any]) -> bool:
    """Return whether any input or output cannot be sent as JSON."""
    return any(one.datatype in HALVES for one in (*inputs(config), *outputs(config)))


def example_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body for `generate_stream`: a value for each required input."""
    return {one.name: one.example_value() for one in inputs(config) if not one.optional}


def example_request(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a valid request in the protocol's JSON; inputs too large to read are empty lists."""
    return {
        "inputs": [
            {
                "name": one.name,
                "shape": list(one.example_shape),
                "datatype": one.datatype,
                "data": one.example_data() or [],
            }
            for one in inputs(config)
            if not one.optional
        ]
    }


# ── Converts half-precision numbers and bytes, which JSON cannot carry, to and from the protocol's binary data ──

_BYTES = "BYTES"
#: Header with the length of the JSON part, before the binary data.
LENGTH = "inference-header-content-length"
#: struct formats of the fixed-size types, except BF16.
_FORMATS = {
    "BOOL": "?",
    **{"INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q"},
    **{"UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q"},
    **{"FP16": "e", "FP32": "f", "FP64": "d"},
}


class UnusableRequestError(ValueError):
    """A typed request that cannot be sent; the text says where and why."""


def packed(body: bytes, config: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
    """Return a request in the form that the server accepts, and its headers. It is unchanged if JSON can carry all of
    it.

    Args:
        body: JSON as typed by a person; invalid requests are left to the server to reject
        config: configuration of the model

    Raises:
        UnusableRequestError: a half-precision input has data other than numbers.
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
    """Return an answer as JSON. `length` is the size of its JSON part if binary data follows."""
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
    """Return the data of an input as bytes, and set its size in the request."""
    encode = _fp16 if given["datatype"] == "FP16" else _bf16
    try:
        blob = b"".join(map(encode, _flat(given.pop("data"))))
    except (TypeError, ValueError, OverflowError, struct.error) as error:
        name = str(given.get("name"))[:100]
        raise UnusableRequestError(
            f"input {name}: its data must be numbers that fit {given['datatype']}: {error}"
        ) from None
    parameters = given.get("parameters")
    known = parameters if isinstance(parameters, dict) else {}
    given["parameters"] = {**known, "binary_data_size": len(blob)}
    return blob


def _flat(data: Any) -> Iterator[Any]:
    """Yield the elements of nested lists in order."""
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
    """Return the upper half of a float32, rounded to nearest, ties to even."""
    (bits,) = struct.unpack("<I", struct.pack("<f", float(value)))
    if not math.isnan(value):  # rounding a NaN could turn it into an infinity
        bits += 0x7FFF + (bits >> 16 & 1)
    return struct.pack("<H", bits >> 16)


def _values(datatype: str, data: bytes) -> Iterable[Any]:
    """Return the elements of an output. Data of an unknown type becomes one element in base64."""
    if datatype in _FORMATS:
        return (value for (value,) in struct.iter_unpack(f"<{_FORMATS[datatype]}", data))
    if datatype == "BF16":
        words = (word for (word,) in struct.iter_unpack("<H", data))
        return (struct.unpack("<f", struct.pack("<I", word << 16))[0] for word in words)
    return _strings(data) if datatype == _BYTES else [_in_base64(data)]


def _strings(data: bytes) -> Iterator[Any]:
    """Yield the elements of a BYTES tensor: as text if valid UTF-8, otherwise in base64."""
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
