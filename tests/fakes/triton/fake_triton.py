"""Two small servers of Triton's protocol, over HTTP and gRPC, for behavior that the real one cannot be made to show.

They serve one model "fake" (input x, output y, FP32), record every request, and can be made to wait, to refuse, or to
lack the model. The answer is the server's own number, so that a test sees which one answered.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import numpy as np
from google.protobuf import json_format
from tritonclient.grpc import service_pb2, service_pb2_grpc

MODEL = "fake"
_CONFIG = {
    "name": MODEL,
    "max_batch_size": 8,
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": ["-1"]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": ["1"]}],
}
_UNKNOWN = f"Request for unknown model: '{MODEL}' is not found"
#: The methods of tritonclient that ask for the path with the same last part.
_METHODS = {"live", "ready", "config", "infer", "load", "unload"}


@dataclass
class Received:
    """One request: its operation, parameters and headers."""

    method: str
    headers: dict[str, str]
    request: dict[str, Any] = field(default_factory=dict)


@dataclass
class FakeTriton:
    """What both servers share, with the requests that they received."""

    number: int = 1
    url: str = ""
    knows: bool = True  #: the model
    refusal: str = ""  #: text of the answer that the model is not ready (HTTP)
    error: tuple[int, grpc.StatusCode, str] | None = None  #: answer of every inference
    gate: threading.Event = field(default_factory=threading.Event)  #: inferences wait for it
    entered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    connections: list[socket.socket] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)

    def count(self, method: str) -> int:
        """Return the number of calls of a method."""
        return sum(one.method == method for one in list(self.received))

    def inferences(self) -> list[Received]:
        """Return all inference requests so far."""
        return [one for one in self.received if one.method == "infer"]

    def take(self, received: Received) -> tuple[int, grpc.StatusCode, str] | None:
        """Record a request; return the error to answer with, if any."""
        self.received.append(received)
        if received.method == "infer":
            self.entered.release()
            self.gate.wait(120)
            if self.error is not None:
                return self.error
        if received.method in ("config", "infer") and not self.knows:
            return 404, grpc.StatusCode.NOT_FOUND, _UNKNOWN
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: FakeTriton

    def handle(self) -> None:
        self.fake.connections.append(self.connection)
        with suppress(ConnectionError):  # a client gave up, as some tests require
            super().handle()

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        head = self.headers.get("Inference-Header-Content-Length")
        self._answer(json.loads(body[: int(head)] if head else body or b"{}"))

    def _answer(self, request: dict[str, Any]) -> None:
        last = self.path.rpartition("/")[2]
        method = last if last in _METHODS else "other"
        headers = {key.lower(): value for key, value in self.headers.items()}
        error = self.fake.take(Received(method, headers, request))
        if error is None and method == "ready" and "models" in self.path and not self.fake.knows:
            error = (400, grpc.StatusCode.UNAVAILABLE, self.fake.refusal)
        document: dict[str, Any] = {}
        if error is not None:
            document = {"error": error[2]} if error[2] else {}
        elif method == "config":
            document = _CONFIG
        elif method == "infer":
            y = {"name": "y", "datatype": "FP32", "shape": [1, 1], "data": [self.fake.number]}
            document = {"model_name": MODEL, "model_version": "1", "outputs": [y]}
        body = json.dumps(document).encode() if document else b""
        self.send_response(200 if error is None else error[0])
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


class _Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    def __init__(self, fake: FakeTriton) -> None:
        self._fake = fake

    def _take(self, method: str, request: Any, context: grpc.ServicerContext) -> None:
        headers = {key: str(value) for key, value in context.invocation_metadata()}
        seen = json_format.MessageToDict(request, preserving_proto_field_name=True)
        error = self._fake.take(Received(method, headers, seen))
        if error is not None:
            context.abort(error[1], error[2])

    def ServerLive(self, request: Any, context: Any) -> Any:
        self._take("live", request, context)
        return service_pb2.ServerLiveResponse(live=True)

    def ServerReady(self, request: Any, context: Any) -> Any:
        self._take("ready", request, context)
        return service_pb2.ServerReadyResponse(ready=True)

    def ModelReady(self, request: Any, context: Any) -> Any:
        self._take("ready", request, context)
        return service_pb2.ModelReadyResponse(ready=self._fake.knows)

    def ModelConfig(self, request: Any, context: Any) -> Any:
        self._take("config", request, context)
        return json_format.ParseDict({"config": _CONFIG}, service_pb2.ModelConfigResponse())

    def ModelInfer(self, request: Any, context: Any) -> Any:
        self._take("infer", request, context)
        response = service_pb2.ModelInferResponse(model_name=MODEL)
        response.outputs.add(name="y", datatype="FP32", shape=[1, 1])
        response.raw_output_contents.append(np.float32(self._fake.number).tobytes())
        return response

    def RepositoryModelLoad(self, request: Any, context: Any) -> Any:
        self._take("load", request, context)
        return service_pb2.RepositoryModelLoadResponse()

    def RepositoryModelUnload(self, request: Any, context: Any) -> Any:
        self._take("unload", request, context)
        return service_pb2.RepositoryModelUnloadResponse()


@contextmanager
def fake_triton(protocol: str, number: int = 1, port: int = 0) -> Iterator[FakeTriton]:
    """Run a server that answers until told otherwise."""
    fake = FakeTriton(number)
    fake.gate.set()
    running = _serve_http if protocol == "http" else _serve_grpc
    with running(fake, port):
        try:
            yield fake
        finally:
            fake.gate.set()


@contextmanager
def _serve_http(fake: FakeTriton, port: int) -> Iterator[None]:
    handler = type("Handler", (_Handler,), {"fake": fake})
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        for connection in fake.connections:
            with suppress(OSError):  # ended already
                connection.shutdown(socket.SHUT_RDWR)
        thread.join()


@contextmanager
def _serve_grpc(fake: FakeTriton, port: int) -> Iterator[None]:
    server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_Servicer(fake), server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    fake.url = f"grpc://127.0.0.1:{bound}"
    try:
        yield
    finally:
        server.stop(0).wait()
