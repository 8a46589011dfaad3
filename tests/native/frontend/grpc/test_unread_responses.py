"""ModelStreamInfer with clients that leave responses unread, of any size, up to the limit."""

from __future__ import annotations

import socket
import struct

from support.frontend.grpc.echo import nghttp2
from support.frontend.process import Built, running
from support.frontend.raw_http2 import (
    DATA,
    HEADERS,
    PING,
    WINDOW,
    call,
    frame,
    hello,
    messages,
    whole_frames,
)
from tritonclient.grpc import service_pb2 as pb

_END_STREAM = 1
_WINDOW_0 = struct.pack(">HI", 4, 0)
_COUNT, _BYTES = 10, 100_000
#: So that how long anything takes decides nothing.
_FOR_EVER = {"unsent_bytes": 1 << 17, "unsent_s": 1e6}


def _request(data: bytes) -> bytes:
    one = pb.ModelInferRequest.InferInputTensor(name="x", datatype="UINT8", shape=[len(data)])
    asked = pb.ModelInferRequest(model_name="echo", inputs=[one], raw_input_contents=[data])
    message: bytes = asked.SerializeToString()
    return b"\0" + struct.pack(">I", len(message)) + message


def _send(client: socket.socket, data: bytes) -> None:
    client.sendall(call(1, b"/inference.GRPCInferenceService/ModelStreamInfer"))
    for _ in range(_COUNT):
        message = _request(data)
        for i in range(0, len(message), 16_384):
            client.sendall(frame(DATA, 0, 1, message[i : i + 16_384]))
    client.sendall(frame(DATA, _END_STREAM, 1) + frame(PING, 0, 0, b"12345678"))


def _answers(made: Built, limits: dict[str, float], data: bytes) -> list[bytes]:
    """Send all requests, and read nothing until the server has answered all; return the rest of the stream."""
    with (
        running(made, limits, protocol="grpc", libraries={"nghttp2": nghttp2()}) as frontend,
        hello(frontend.http[1], _WINDOW_0) as client,
    ):
        said = whole_frames(client)
        _send(client, data)
        assert any(kind == PING for kind, *_ in said)
        for stream in (0, 1):
            client.sendall(frame(WINDOW, 0, stream, struct.pack(">I", (1 << 30))))
        came = b""
        for kind, flags, _, content in said:
            if kind == DATA:
                came += content
            if kind == HEADERS and flags & _END_STREAM:
                break
    return list(messages(came))


def test_responses_over_the_unread_limit_reach_a_reading_client(made: Built) -> None:
    """Each is larger than the limit, and all are complete before the first one is read."""
    data = bytes(range(250)) * (_BYTES // 250)
    answers = [
        pb.ModelStreamInferResponse.FromString(one) for one in _answers(made, _FOR_EVER, data)
    ]
    assert [one.error_message for one in answers] == [""] * _COUNT
    assert [one.infer_response.raw_output_contents for one in answers] == [[data]] * _COUNT


def test_a_client_over_its_unread_limit_is_disconnected(made: Built) -> None:
    """It still gets the earlier responses, as before an error."""
    limits = {**_FOR_EVER, "output_bytes": 4.5 * _BYTES}
    answers = _answers(made, limits, bytes(_BYTES))
    assert len(answers) == 6  # the fifth is all that is more, and the newest does not count
