"""One request of the page, passed on to the server."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from pytriton.dispatcher.telemetry.dashboard.tensor_codec import (
    LENGTH,
    UnusableRequestError,
    packed,
    unpacked,
)
from pytriton.dispatcher.telemetry.dashboard.tensors import is_decoupled

#: An answer is text for people.
_ANSWER_BYTES = 4 << 20
_INFER_S = 60.0
#: So much of a stream is shown: from its beginning on.
_STREAM_S = 20.0
_CUT = "… the stream goes on; the page shows no more of it\n"

Answer = tuple[int, bytes, str]
_JSON, _TEXT = "application/json", "text/plain; charset=utf-8"


def passed_on(
    url: str, name: str, body: bytes, config: Mapping[str, Any], headers: Mapping[str, str]
) -> Answer:
    """Send a request to a model; return status, body and kind of its answer. Blocks.

    Args:
        url: where the server answers
        name: of the model
        body: JSON, as somebody wrote it; of a model with streams what `generate_stream` takes
        config: of the model
        headers: with which the server lets the daemon in

    Raises:
        OSError: the server could not be asked.
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
            text = f"the answer has more than {_ANSWER_BYTES:,} bytes: use a client for it"
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
    # Our own server, at the address where it listens: there is nobody to be told apart from.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection(parts.netloc, timeout=_INFER_S, context=context)


def _beginning(answer: http.client.HTTPResponse) -> bytes:
    """Return a stream up to its end, or so much of it as there is time and room for."""
    until = time.monotonic() + _STREAM_S
    found = bytearray()
    while piece := answer.read1(1 << 16):
        found += piece
        if len(found) > _ANSWER_BYTES or time.monotonic() > until:
            return bytes(found[:_ANSWER_BYTES]) + _CUT.encode()
    return bytes(found)


def _problem(code: int, text: str) -> Answer:
    return code, json.dumps({"error": text}).encode(), _JSON
