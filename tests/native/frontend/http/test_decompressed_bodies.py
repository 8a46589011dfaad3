"""Decompressed bodies, kept until their requests are answered: the total of all is limited."""

from __future__ import annotations

import gzip
import select
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from support.frontend.grpc.requests import echo_request
from support.frontend.process import Built, OpenAIProcess, running
from support.frontend.raw_http import RawClient, ask, data_of, json_of, post
from support.real_daemon import eventually
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

_SIZE = 300_000
_LIMITS = {"unpacked_bytes": _SIZE * 3 // 2}


def _packed(model: str) -> bytes:
    return post(model, gzip.compress(json_of().ljust(_SIZE)), "Content-Encoding: gzip")


def _is(frontend: OpenAIProcess, status: int) -> bool:
    answer = ask(frontend, _packed("echo"))
    assert answer[0] in (200, 429), answer
    assert answer[0] == 200 or b"try again later, or send the request uncompressed" in answer[2]
    return answer[0] == status


def _held(
    is_refused: Callable[[], bool], begin: Callable[[], Any], ended: Callable[[Any], bool]
) -> Any:
    """Return a request that is held while others are refused; it may itself have been refused because of them."""
    first = [begin()]

    def is_held() -> bool:
        if is_refused():
            return True
        if ended(first[0]):
            first[0] = begin()
        return False

    eventually(is_held, "a request counts while it is held")
    return first[0]


def test_decompressed_bodies_are_limited_until_they_are_answered(made: Built) -> None:
    def begin() -> RawClient:
        client = RawClient(frontend)
        client.send(_packed("held"))
        return client

    def has_ended(client: RawClient) -> bool:
        ended = bool(select.select([client.socket], [], [], 0)[0])
        if ended:
            client.close()
        return ended

    with running(made, _LIMITS) as frontend:
        assert _is(frontend, 200)
        first = _held(lambda: _is(frontend, 429), begin, has_ended)
        assert data_of(ask(frontend, post("echo", json_of().ljust(_SIZE)))) == [1, 2]
        first.close()
        eventually(lambda: _is(frontend, 200), "the first body counts no more")


def _begin(stub: GRPCInferenceServiceStub, kind: str) -> Any:
    request = echo_request(bytes(_SIZE), "held")
    if kind == "once":
        return stub.ModelInfer.future(request, timeout=100)
    return stub.ModelStreamInfer(iter([request]), timeout=100)


def _code(stub: GRPCInferenceServiceStub) -> grpc.StatusCode:
    try:
        stub.ModelInfer(echo_request(bytes(_SIZE)), timeout=60)
    except grpc.RpcError as error:
        code = error.code()
        assert isinstance(code, grpc.StatusCode)
        return code
    return grpc.StatusCode.OK


@pytest.mark.parametrize("kind", ["once", "stream"])
def test_decompressed_messages_are_limited_until_they_are_answered(made: Built, kind: str) -> None:
    packed = grpc.Compression.Gzip
    with (
        running(made, _LIMITS, protocol="grpc") as frontend,
        grpc.insecure_channel(f"127.0.0.1:{frontend.http[1]}", compression=packed) as channel,
    ):
        stub = GRPCInferenceServiceStub(channel)
        assert _code(stub) is grpc.StatusCode.OK
        refused = grpc.StatusCode.RESOURCE_EXHAUSTED
        first = _held(
            lambda: _code(stub) is refused,
            lambda: _begin(stub, kind),
            lambda call: bool(call.done()),
        )
        first.cancel()
        eventually(lambda: _code(stub) is grpc.StatusCode.OK, "the first message counts no more")
