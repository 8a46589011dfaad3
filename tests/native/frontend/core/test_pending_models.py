"""Models that are loaded into the core on request: requests wait, and the dispatcher is notified once."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from support.frontend.grpc.requests import request
from support.frontend.process import Built, OpenAIProcess, running
from support.frontend.raw_http import RawClient, ask, ask_admin, data_of, head, json_of, post
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

_NAMES = ["zebra", "coming", "another", "gone"]


class Dispatcher:
    """The dispatcher's side of a frontend."""

    def __init__(self, frontend: OpenAIProcess, asked: int) -> None:
        self.frontend = frontend
        self._asked = os.fdopen(asked, "rb")

    def next_asked(self) -> str:
        """Return the name of the next model that requests wait for."""
        return self._asked.readline().decode().rstrip()

    def post(self, path: str, body: dict[str, Any]) -> None:
        """Send the frontend a request."""
        assert ask_admin(self.frontend, path, body)[0] == 200

    def load(self, model: str) -> None:
        """Load a model into the core."""
        self.post(f"/v2/repository/models/{model}/load", {})

    def is_ready(self, model: str, version: str = "") -> bool:
        """Return whether the frontend reports the model as ready."""
        return ask(self.frontend, head(f"GET /v2/models/{model}{version}/ready"))[0] == 200

    def close(self) -> None:
        self._asked.close()


@contextmanager
def _dispatched(made: Built, protocol: str = "http", **changes: Any) -> Iterator[Dispatcher]:
    reader, writer = os.pipe()
    settings = {"names": _NAMES, "loading": [], "wait_s": 600, "max_waiters": 100, **changes}
    settings["fd"] = writer
    try:
        with running(
            made, protocol=protocol, descriptors=[writer], pending_models=settings
        ) as frontend:
            os.close(writer)
            writer = -1
            dispatcher = Dispatcher(frontend, reader)
            yield dispatcher
        dispatcher.close()
    finally:
        if writer >= 0:
            os.close(writer)


_REQUESTS = {
    "inference": post("coming", json_of()),
    "packed": post("coming", gzip.compress(json_of()), "Content-Encoding: gzip"),
    "large": post("coming", json_of(range(100_000))),
    "ready": head("GET /v2/models/coming/versions/1/ready"),
    "metadata": head("GET /v2/models/coming"),
}


@pytest.mark.parametrize("kind", _REQUESTS)
def test_a_request_waits_until_its_model_is_loaded(made: Built, kind: str) -> None:
    with _dispatched(made) as dispatcher:
        clients = [RawClient(dispatcher.frontend) for _ in range(3)]
        for client in clients:
            client.send(_REQUESTS[kind])
        assert dispatcher.next_asked() == "coming"
        # Other requests are not held up, and another model's name comes next: the first was reported once.
        assert ask(dispatcher.frontend, head("GET /v2/health/ready"))[0] == 200
        other = RawClient(dispatcher.frontend)
        other.send(post("another", json_of()))
        assert dispatcher.next_asked() == "another"
        dispatcher.load("coming")
        for client in clients:
            answer = client.answer()
            assert answer[0] == 200, answer
            client.send(post("coming", json_of([3])))  # the connection goes on
            assert data_of(client.answer()) == [3]
            client.close()
        dispatcher.post("/admin/forget", {"model": "another"})
        assert other.answer()[0] == 404
        other.close()


@pytest.mark.parametrize("stays", [True, False], ids=["stays", "disappears"])
def test_a_request_to_a_route_waits_for_its_model(made: Built, stays: bool) -> None:
    route = {"path": "/r", "model": "coming", "type": "application/json", "streams": False}
    bodies = [b"[1]", b"", bytes(300_000)]
    with _dispatched(made) as dispatcher:
        dispatcher.post("/admin/routes", {"routes": [route], "log_errors": True})
        clients = [RawClient(dispatcher.frontend) for _ in bodies]
        for client, body in zip(clients, bodies):
            client.send(head("POST /r", ("Content-Type: application/json",), body))
        assert dispatcher.next_asked() == "coming"
        if not stays:
            dispatcher.post("/admin/routes", {"routes": []})
        dispatcher.load("coming")
        for client, body in zip(clients, bodies):
            answer = client.answer()
            assert answer[0] == (200 if stays else 404), answer
            assert not stays or answer[2] == body
            client.close()


def _refused(frontend: OpenAIProcess) -> None:
    status, headers, body = ask(frontend, post("gone", json_of()))
    assert (status, headers.get("retry-after")) == (503, "1"), body
    assert b"'gone' is not loaded yet: try again later" in body


def test_a_waiting_request_times_out(made: Built) -> None:
    with _dispatched(made, wait_s=0) as dispatcher:
        _refused(dispatcher.frontend)
        assert dispatcher.next_asked() == "gone"


def test_the_number_of_waiting_requests_is_limited(made: Built) -> None:
    with _dispatched(made, max_waiters=0) as dispatcher:
        _refused(dispatcher.frontend)
        assert ask(dispatcher.frontend, head("GET /v2/models/gone/versions/1/ready"))[0] == 503


def test_a_probe_reports_a_ready_model_and_loads_none(made: Built) -> None:
    """A suspended model counts as ready, since requests to it are answered."""
    with _dispatched(made) as dispatcher:
        is_ready = dispatcher.is_ready
        assert [is_ready(name) for name in (*_NAMES, "unknown")] == [True] * 4 + [False]
        client = RawClient(dispatcher.frontend)
        client.send(_REQUESTS["inference"])
        assert dispatcher.next_asked() == "coming"  # the first that anybody has asked for
        assert is_ready("coming")  # a request that comes now waits, too
        dispatcher.load("coming")
        assert client.answer()[0] == 200
        client.close()
        assert is_ready("coming")
        dispatcher.post("/admin/forget", {"model": "gone"})
        assert not is_ready("gone")


def test_a_probe_reports_a_loading_model_as_not_ready(made: Built) -> None:
    with _dispatched(made, loading=["zebra", "coming", "no name"]) as dispatcher:
        is_ready = dispatcher.is_ready
        assert [is_ready(name) for name in _NAMES] == [False, False, True, True]
        assert not is_ready("coming", "/versions/1")  # at once, and the dispatcher hears nothing
        client = RawClient(dispatcher.frontend)
        client.send(_REQUESTS["inference"])
        assert dispatcher.next_asked() == "coming"
        dispatcher.load("coming")
        assert client.answer()[0] == 200
        client.close()
        assert is_ready("coming")
        assert is_ready("coming", "/versions/1")
        dispatcher.post("/admin/forget", {"model": "zebra"})
        assert ask(dispatcher.frontend, post("zebra", json_of()))[0] == 404


def test_a_model_that_is_not_registered_is_unknown(made: Built) -> None:
    with _dispatched(made) as dispatcher:
        for name in ("zebr", "zebraa", "a", "comin", "unknown"):
            assert ask(dispatcher.frontend, post(name, json_of()))[0] == 404, name
        dispatcher.post("/admin/forget", {"model": "gone"})
        dispatcher.post("/admin/forget", {"model": "gone"})
        assert ask(dispatcher.frontend, post("gone", json_of()))[0] == 404


def test_waiting_requests_fail_when_the_frontend_stops(made: Built) -> None:
    with _dispatched(made) as dispatcher:
        client = RawClient(dispatcher.frontend)
        client.send(_REQUESTS["inference"])
        assert dispatcher.next_asked() == "coming"
        dispatcher.post("/admin/drain", {})
        status, headers, _ = client.answer()
        assert (status, headers.get("retry-after")) == (503, "1")
        client.close()


def test_a_client_that_left_before_the_load_harms_nothing(made: Built) -> None:
    with _dispatched(made) as dispatcher:
        for name in ("inference", "metadata"):
            client = RawClient(dispatcher.frontend)
            client.send(_REQUESTS[name])
            client.close()
        assert dispatcher.next_asked() == "coming"
        dispatcher.load("coming")
        assert data_of(ask(dispatcher.frontend, post("coming", json_of([7])))) == [7]


def _infer(stub: GRPCInferenceServiceStub) -> bool:
    return bool(stub.ModelInfer(request(model="coming"), timeout=60).model_name == "coming")


def _stream(stub: GRPCInferenceServiceStub) -> bool:
    answers = list(stub.ModelStreamInfer(iter([request(model="coming")] * 2), timeout=60))
    return [one.error_message for one in answers] == ["", ""]


def _ready(stub: GRPCInferenceServiceStub) -> bool:
    return bool(stub.ModelReady(pb.ModelReadyRequest(name="coming", version="1"), timeout=60).ready)


@contextmanager
def _stub(dispatcher: Dispatcher) -> Iterator[GRPCInferenceServiceStub]:
    with grpc.insecure_channel(f"127.0.0.1:{dispatcher.frontend.http[1]}") as channel:
        yield GRPCInferenceServiceStub(channel)


@pytest.mark.parametrize("call", [_infer, _stream, _ready])
def test_a_grpc_call_waits_until_its_model_is_loaded(
    made: Built, call: Callable[[GRPCInferenceServiceStub], bool]
) -> None:
    with (
        _dispatched(made, "grpc") as dispatcher,
        _stub(dispatcher) as stub,
        ThreadPoolExecutor(1) as pool,
    ):
        answered = pool.submit(call, stub)
        assert dispatcher.next_asked() == "coming"
        assert stub.ServerReady(pb.ServerReadyRequest(), timeout=60).ready
        dispatcher.load("coming")
        assert answered.result(60)


def test_a_grpc_call_over_the_waiting_limit_is_unavailable(made: Built) -> None:
    with _dispatched(made, "grpc", max_waiters=0) as dispatcher, _stub(dispatcher) as stub:
        with pytest.raises(grpc.RpcError) as refused:
            stub.ModelInfer(request(model="gone"), timeout=60)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(grpc.RpcError) as refused:
            stub.ModelReady(pb.ModelReadyRequest(name="gone", version="1"), timeout=60)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert stub.ModelReady(pb.ModelReadyRequest(name="gone"), timeout=60).ready
        (answer,) = stub.ModelStreamInfer(iter([request(model="gone")]), timeout=60)
        assert "try again later" in answer.error_message


def test_a_cancelled_grpc_call_stops_waiting(made: Built) -> None:
    with _dispatched(made, "grpc") as dispatcher, _stub(dispatcher) as stub:
        waiting = stub.ModelInfer.future(request(model="coming"), timeout=60)
        stream = stub.ModelStreamInfer(iter([request(model="coming")]), timeout=60)
        assert dispatcher.next_asked() == "coming"
        waiting.cancel()
        stream.cancel()
        dispatcher.load("coming")
        assert _infer(stub)
