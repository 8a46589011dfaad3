"""The requests of the typed workloads: the same text in JSON, and the same image in a form, for every system.

LitServe and mosec cannot receive a file in a form: LitServe gets the image in base64, and mosec in base64 or msgpack.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from benchmarks.load.wire import Check, Request, WrongAnswer
from benchmarks.workloads import Payload, Workload

_JSON = "application/json"
_BOUNDARY = "7b3c1d5e9f"
_FORM = f"multipart/form-data; boundary={_BOUNDARY}"
_TOP_K = 2


def arguments(payload: Payload) -> dict[str, Any]:
    """Return the arguments of the function."""
    if payload.image_bytes:  # no system looks inside
        return {
            "image": (bytes(range(256)) * (payload.image_bytes // 256 + 1))[: payload.image_bytes]
        }
    if payload.answer is not None:
        return {"text": payload.text}
    return {"text": payload.text, "top_k": _TOP_K}


def _check(payload: Payload, decode: Callable[[bytes], Any]) -> Check:
    """Return a function that raises WrongAnswer unless a response's body contains the right result."""
    if payload.image_bytes or payload.answer is not None:
        return partial(_compare, {"size": payload.image_bytes or payload.answer}, decode)
    words = payload.text.split()[:_TOP_K]
    labels = [{"label": word, "score": 1 / (place + 1)} for place, word in enumerate(words)]
    return partial(_compare, labels, decode)


def _compare(wanted: Any, decode: Callable[[bytes], Any], found: bytes, _: Any) -> None:
    try:
        decoded = decode(found)
    except (ValueError, LookupError, msgspec.DecodeError) as error:
        raise WrongAnswer(f"{found[:300]!r} cannot be decoded: {error}") from error
    if decoded != wanted:
        raise WrongAnswer(f"{decoded!r:.300}, expected {wanted!r:.300}")


def _body(payload: Payload) -> tuple[bytes, str]:
    """Return a body with the arguments, JSON or a form, and its Content-Type."""
    given = arguments(payload)
    if "image" not in given:
        return json.dumps(given).encode(), _JSON
    head = 'Content-Disposition: form-data; name="image"; filename="cat.jpg"\r\nContent-Type: image/jpeg'
    start = f"--{_BOUNDARY}\r\n{head}\r\n\r\n".encode()
    return start + given["image"] + f"\r\n--{_BOUNDARY}--\r\n".encode(), _FORM


def form_or_json(workload: Workload, url: str) -> Request:
    """Return the request of systems that accept files in a form."""
    content, kind = _body(workload.payload)
    return Request(url, content, _check(workload.payload, json.loads), {"content-type": kind})


def only_json(workload: Workload, url: str) -> Request:
    """Return the request of systems that accept only JSON: an image is in base64."""
    given = arguments(workload.payload)
    if "image" in given:
        given["image"] = base64.b64encode(given["image"]).decode()
    right = _check(workload.payload, json.loads)
    return Request(url, json.dumps(given).encode(), right, {"content-type": _JSON})


def msgpack(workload: Workload, url: str) -> Request:
    """Return the request in msgpack."""
    content = msgspec.msgpack.encode(arguments(workload.payload))
    right = _check(workload.payload, msgspec.msgpack.decode)
    return Request(url, content, right, {"content-type": "application/msgpack"})


def kserve(workload: Workload, base: str) -> Request:
    """Return the request of the KServe protocol: the body is a tensor, in JSON, or binary for the upload."""
    content, kind = _body(workload.payload)
    url = f"{base}/v2/models/{workload.model.name}/infer"
    tensor: dict[str, Any] = {"name": "body", "shape": [1, 1], "datatype": "BYTES"}
    right = _check(workload.payload, _from_kserve)
    if kind == _JSON:
        whole = json.dumps({"inputs": [{**tensor, "data": [content.decode()]}]})
        return Request(url, whole.encode(), right, {"content-type": _JSON})
    data = struct.pack("<I", len(content)) + content
    tensor["parameters"] = {"binary_data_size": len(data)}
    head = json.dumps({"parameters": {"content_type": kind}, "inputs": [tensor]}).encode()
    headers = {
        "content-type": "application/octet-stream",
        "inference-header-content-length": str(len(head)),
    }
    return Request(url, head + data, right, headers)


def _from_kserve(found: bytes) -> Any:
    return json.loads(json.loads(found)["outputs"][0]["data"][0])
