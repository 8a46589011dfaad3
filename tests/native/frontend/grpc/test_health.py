"""grpc.health.v1.Health of the whole frontend: Check and Watch."""

from __future__ import annotations

import gzip
import random
import signal
from collections.abc import Iterator
from urllib.parse import quote

import grpc
import pytest
from support.frontend.process import Built, OpenAIProcess, running
from support.frontend.raw_http import ask, head
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

SERVING, NOT_SERVING, SERVICE_UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"
_NOBODY = b"\x0a\x06nobody"
_SERVICE = "/grpc.health.v1.Health/"


def _channel(frontend: OpenAIProcess) -> grpc.Channel:
    return grpc.insecure_channel(f"127.0.0.1:{frontend.http[1]}")


@pytest.fixture(scope="module")
def frontend(made: Built) -> Iterator[OpenAIProcess]:
    with running(made, protocol="grpc") as frontend:
        yield frontend


@pytest.fixture(scope="module")
def http_frontend(made: Built) -> Iterator[OpenAIProcess]:
    with running(made) as frontend:
        yield frontend


def test_health_is_checked(frontend: OpenAIProcess) -> None:
    with _channel(frontend) as channel:
        check = channel.unary_unary(f"{_SERVICE}Check", None, None)
        assert check(b"", timeout=60) == SERVING
        with pytest.raises(grpc.RpcError) as refused:
            check(_NOBODY, timeout=60)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


def _named(name: bytes) -> bytes:
    """Return a request for a service of that name, of up to 2 MiB."""
    size = len(name)
    return b"\x0a" + bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14]) + name


def test_long_service_names_are_refused_in_the_event_loop(frontend: OpenAIProcess) -> None:
    """Large messages are read in another thread, where a watch must not begin: the sanitizer would notice."""
    packed = _named(random.Random(1).randbytes(900).hex().encode())
    assert len(gzip.compress(packed)) > 256
    too_large = (
        (_named(b"x" * 5000), grpc.Compression.NoCompression),
        (_named(b"x" * 2_000_000), grpc.Compression.NoCompression),
        (_named(b"x" * 2_000_000), grpc.Compression.Gzip),
    )
    with _channel(frontend) as channel:
        watch = channel.unary_stream(f"{_SERVICE}Watch", None, None)
        check = channel.unary_unary(f"{_SERVICE}Check", None, None)
        watching = [watch(packed, timeout=60, compression=grpc.Compression.Gzip) for _ in range(20)]
        assert [next(one) for one in watching] == [SERVICE_UNKNOWN] * 20
        for message, compression in too_large:
            with pytest.raises(grpc.RpcError) as watched:
                next(watch(message, timeout=60, compression=compression))
            with pytest.raises(grpc.RpcError) as checked:
                check(message, timeout=60, compression=compression)
            for refused in (watched, checked):
                assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for one in watching:
            one.cancel()
        assert check(b"", timeout=60) == SERVING


def test_a_health_watcher_sees_changes_and_does_not_delay_shutdown(made: Built) -> None:
    with running(made, protocol="grpc") as frontend:
        with _channel(frontend) as channel:
            watch = channel.unary_stream(f"{_SERVICE}Watch", None, None)
            answers, unknown, given_up = (watch(asked, timeout=60) for asked in (b"", _NOBODY, b""))
            assert next(answers) == next(given_up) == SERVING
            assert next(unknown) == SERVICE_UNKNOWN
            given_up.cancel()
            frontend.process.send_signal(signal.SIGTERM)
            assert next(answers) == NOT_SERVING
            for one in (answers, unknown):
                with pytest.raises(grpc.RpcError) as ended:
                    next(one)
                assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        assert frontend.process.wait(60) == 0


@pytest.mark.parametrize(
    ("model", "ready"),
    [
        ("echo", True),
        ("unknown to core 2.51", False),
        ("unknown to a later core", False),
        ("instance not ready", False),
    ],
)
def test_an_unknown_model_is_not_ready(
    frontend: OpenAIProcess, http_frontend: OpenAIProcess, model: str, ready: bool
) -> None:
    """Cores differ: 2.51 reports "not ready", later ones that there is no such model."""
    with _channel(frontend) as channel:
        stub = GRPCInferenceServiceStub(channel)
        assert stub.ModelReady(pb.ModelReadyRequest(name=model), timeout=60).ready is ready
    status, _, body = ask(http_frontend, head(f"GET /v2/models/{quote(model)}/ready"))
    assert (status, b"Model version not ready" in body) == ((200, False) if ready else (400, True))
