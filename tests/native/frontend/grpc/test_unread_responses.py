"""ModelStreamInfer with clients that leave responses unread, of any size, up to the limit."""

from __future__ import annotations

from support.frontend.grpc.requests import echo_request
from support.frontend.process import Built, running
from support.frontend.raw_http2 import (
    DATA,
    END_STREAM,
    HEADERS,
    PING,
    WINDOW_0,
    call,
    data,
    frame,
    hello,
    message,
    messages,
    open_windows,
    whole_frames,
)
from tritonclient.grpc import service_pb2 as pb

_COUNT, _BYTES = 10, 100_000
#: So that how long anything takes decides nothing.
_FOR_EVER = {"unsent_bytes": 1 << 17, "unsent_s": 1e6}


def _answers(made: Built, limits: dict[str, float], content: bytes) -> list[bytes]:
    """Send all requests, and read nothing until the server has answered all; return the rest of the stream."""
    with (
        running(made, limits, protocol="grpc") as frontend,
        hello(frontend.http[1], WINDOW_0) as client,
    ):
        said = whole_frames(client)
        asked = message(echo_request(content).SerializeToString())
        client.sendall(call(1, b"/inference.GRPCInferenceService/ModelStreamInfer"))
        client.sendall(data(1, asked * _COUNT, END_STREAM) + frame(PING, 0, 0, b"12345678"))
        assert any(kind == PING for kind, *_ in said)
        open_windows(client, 1)
        came = b""
        for kind, flags, _, piece in said:
            if kind == DATA:
                came += piece
            if kind == HEADERS and flags & END_STREAM:
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
