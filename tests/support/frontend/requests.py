"""The notation of the requests in corpus.py."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Distinguishable JSON values of each type.
VALUES: dict[str, list[Any]] = {
    "BOOL": [True, False], "UINT8": [0, 255], "UINT16": [0, 65535], "UINT32": [0, 2**32 - 1],
    "UINT64": [0, 2**64 - 1], "INT8": [-128, 127], "INT16": [-(2**15), 2**15 - 1], "INT32": [-(2**31), 2**31 - 1],
    "INT64": [-(2**63), 2**63 - 1], "FP32": [0.1, -1e30], "FP64": [0.1, -1e300], "BYTES": ["a", "\u00e4\"\n\u20ac"],
}  # fmt: skip
FLOATS = b"\0\0\x80?\0\0\0@"


@dataclass(frozen=True)
class Ask:
    """One request."""

    name: str
    path: str
    body: bytes | None = None  #: None: GET
    headers: Mapping[str, str] = field(default_factory=dict)
    method: str = ""

    @property
    def verb(self) -> str:
        """Its method."""
        return self.method or ("GET" if self.body is None else "POST")


def tensor(values: Any = (1.0, 2.0), **other: Any) -> dict[str, Any]:
    """INPUT0 of model one, with changes; None removes a member."""
    given = {"name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "data": values, **other}
    return {name: value for name, value in given.items() if value is not None}


def asked(name: str, document: Any, path: str = "one/infer", **headers: str) -> Ask:
    """A request with a JSON body."""
    body = document if isinstance(document, (bytes, str)) else json.dumps(document)
    body = body.encode() if isinstance(body, str) else body
    return Ask(
        name, f"/v2/models/{path}", body, {k.replace("_", "-"): v for k, v in headers.items()}
    )


def inputs(*tensors: Any, **other: Any) -> dict[str, Any]:
    """The JSON document of a request."""
    return {"inputs": [tensor() if one is None else one for one in tensors], **other}


def binary(
    name: str, document: Any, raw: bytes, length: str | None = None, path: str = "one/infer"
) -> Ask:
    """A request with JSON followed by tensors."""
    text = json.dumps(document).encode()
    said = str(len(text)) if length is None else length
    return Ask(name, f"/v2/models/{path}", text + raw, {"Inference-Header-Content-Length": said})
