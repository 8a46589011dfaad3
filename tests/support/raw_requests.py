"""Send requests byte by byte that no client library would send."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

_TIMEOUT_S = 60.0


class Post(NamedTuple):
    """An HTTP request; header values are bytes decoded as latin-1."""

    path: str
    body: bytes
    headers: Mapping[str, str] = {}


class Answer(NamedTuple):
    """The answer to a request."""

    status: int
    body: bytes

    @property
    def error(self) -> str:
        """The text of an error, including one sent as a stream's event; "" if there is none."""
        text = self.body.decode(errors="replace").strip()
        text = text[len("data: ") :] if text.startswith("data: ") else text
        document = json.loads(text.partition("\n")[0] or "{}")
        return str(document.get("error", ""))


def send(address: str, request: Post) -> Answer:
    """Send one request on a new connection."""
    connection = http.client.HTTPConnection(address, timeout=_TIMEOUT_S)
    try:
        connection.request("POST", request.path, request.body, dict(request.headers))
        response = connection.getresponse()
        return Answer(response.status, response.read())
    finally:
        connection.close()


def send_together(address: str, requests: Sequence[Post]) -> list[Answer]:
    """Send requests at the same time; return their answers in order."""
    with ThreadPoolExecutor(len(requests)) as threads:
        return list(threads.map(lambda one: send(address, one), requests))


def strings(name: str, *elements: bytes, more: bytes = b"", head: bytes = b"") -> bytes:
    """Return the JSON body of a request with one row of a BYTES input.

    Args:
        name: of the input
        elements: the text between the quotes
        more: members of the request after its inputs, such as b',"parameters":{}'
        head: members before them, such as b'"id":"x",'
    """
    data = b",".join(b'"%s"' % element for element in elements)
    shape = b"[1,%d]" % len(elements)
    tensor = b'{"name":"%s","shape":%s,"datatype":"BYTES","data":[%s]}' % (
        name.encode(),
        shape,
        data,
    )
    return b'{%s"inputs":[%s]%s}' % (head, tensor, more)


def binary_strings(path: str, name: str, data: bytes) -> Post:
    """Return a request with one string of a BYTES input, serialized as these bytes."""
    tensor = {
        "name": name,
        "shape": [1, 1],
        "datatype": "BYTES",
        "parameters": {"binary_data_size": len(data)},
    }
    head = json.dumps({"inputs": [tensor]}).encode()
    return Post(path, head + data, {"Inference-Header-Content-Length": str(len(head))})
