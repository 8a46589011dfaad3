"""Forwards a request from the dashboard to the server."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from pytriton.dispatcher.telemetry.dashboard.tensors import (
    LENGTH,
    UnusableRequestError,
    is_decoupled,
    packed,
    unpacked,
)

#: Maximum size of an answer, which a person reads.
_ANSWER_BYTES = 4 << 20
_INFER_S = 60.0
#: How long a stream is followed.
_STREAM_S = 20.0
_CUT = "… the stream continues; the rest is not shown\n"

Answer = tuple[int, bytes, str]
_JSON, _TEXT = "application/json", "text/plain; charset=utf-8"


def passed_on(
    url: str, name: str, body: bytes, config: Mapping[str, Any], headers: Mapping[str, str]
) -> Answer:
    """Send a request to a model; return status, body and content type of its answer. Blocks.

    Args:
        url: URL of the server
        name: name of the model
        body: JSON as typed by a person; for a model with streams, a body for `generate_stream`
        config: configuration of the model
        headers: headers that authorize the daemon at the server

    Raises:
        OSError: the server could not be reached.
    """
    stream = is_decoupled(config)
    path = f"/v2/models/{quote(name, safe='')}/{'generate_stream' if stream else 'infer'}"
    more: dict[str, str] = {}
    try:
        if not stream:
            body, more = packed(body, config)
    except UnusableRequestError as error:
        return _problem(400, str(error))
    connection = _connection(url)
    try:
        connection.request("POST", path, body, {**headers, **more, "content-type": _JSON})
        answer = connection.getresponse()
        if stream and answer.status == 200:
            return answer.status, _beginning(answer), _TEXT
        found = answer.read(_ANSWER_BYTES + 1)
        if len(found) > _ANSWER_BYTES:
            text = f"the answer is larger than {_ANSWER_BYTES:,} bytes: use a client to read it"
            return _problem(413, text)
        return answer.status, unpacked(found, answer.getheader(LENGTH)), _JSON
    except http.client.HTTPException as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
    finally:
        connection.close()


def _connection(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    if parts.scheme != "https":
        return http.client.HTTPConnection(parts.netloc, timeout=_INFER_S)
    # Our own server at its own listening address: there is no identity to verify.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection(parts.netloc, timeout=_INFER_S, context=context)


def _beginning(answer: http.client.HTTPResponse) -> bytes:
    """Return a stream up to its end or up to the limits of time and size."""
    until = time.monotonic() + _STREAM_S
    found = bytearray()
    while piece := answer.read1(1 << 16):
        found += piece
        if len(found) > _ANSWER_BYTES or time.monotonic() > until:
            return bytes(found[:_ANSWER_BYTES]) + _CUT.encode()
    return bytes(found)


def _problem(code: int, text: str) -> Answer:
    return code, json.dumps({"error": text}).encode(), _JSON
