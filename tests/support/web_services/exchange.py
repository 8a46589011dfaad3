"""The requests that the tests send to the twelve endpoints."""

from __future__ import annotations

import http.client
import json
from typing import Any, NamedTuple

from support.web_services import typed_functions

_OCTETS = "application/octet-stream"


class Sent(NamedTuple):
    """A request."""

    path: str
    body: bytes
    content_type: str = "application/json"


class Received(NamedTuple):
    """A response."""

    status: int
    content_type: str
    body: bytes


def as_json(path: str, **members: Any) -> Sent:
    return Sent(path, json.dumps(members).encode())


def as_form(path: str, name: str, data: bytes) -> Sent:
    head = f'--X\r\nContent-Disposition: form-data; name="{name}"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n'
    return Sent(path, head.encode() + data + b"\r\n--X--\r\n", "multipart/form-data; boundary=X")


def send(address: str, sent: Sent) -> Received:
    """Send a request to a server."""
    client = http.client.HTTPConnection(address, timeout=60)
    try:
        client.request("POST", sent.path, sent.body, {"Content-Type": sent.content_type})
        got = client.getresponse()
        kind = (got.headers["Content-Type"] or "").partition(";")[0]
        return Received(got.status, kind, got.read())
    finally:
        client.close()


REQUESTS = [
    as_json("/labels", text="b a c"),
    as_json("/labels", text="b a ü", top_k=3),
    as_json("/labels", text=1),
    as_json("/labels"),
    as_json("/labels", text="a", top_k="x"),
    Sent("/labels", b"[]"),
    as_json("/churn", age=50, income=1e5, city="Köln"),
    as_json("/churn", age=50, income=1e5),
    as_json("/churn", age=-1, income="x"),
    as_json("/churn", age=50.5, income=0),
    as_json("/churn", income=0),
    as_form("/image_size", "image_file", typed_functions.png(7, 5)),
    as_form("/image_size", "other", b""),
    as_json("/picture", width=3, height=2),
    as_json("/picture", width="wide", height=2),
    as_json("/words", text="to be ü"),
    as_json("/words"),
    as_json("/shout", text="ab"),
    as_json("/shout", text=None),
    as_json("/lengths", text="abc"),
    as_json("/lengths", text=[]),
    as_json("/paint", colour="red", finish="matt"),
    as_json("/paint", colour="green", finish="matt"),
    as_json("/paint", colour="red", finish="rough"),
    as_json("/norms", rows=[[1, 2], [], [0.5]], points=[{"x": 1, "y": 2}]),
    as_json("/norms", rows=[[1, "a"]], points=[]),
    as_json("/norms", rows=[], points=[{"x": 1}]),
    as_json("/optional"),
    as_json("/optional", a=1, b=None, c=[1, 2]),
    as_json("/optional", c=["a"]),
    Sent("/size", bytes(50_000_000), _OCTETS),
    Sent("/reverse", bytes(range(256)), _OCTETS),
    Sent("/reverse", b"", _OCTETS),
]
