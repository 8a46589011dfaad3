"""The real HAProxy before small HTTP servers: routing, and the cost of dead nodes and reloads."""

from __future__ import annotations

import http.client
import json
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from support.frontend.raw_http2 import DATA, HEADERS, PING, frame, hello, literal, read_frames
from support.haproxy import Frontend, Server
from support.ports import lasting_port
from support.real_daemon import eventually
from tritonclient.grpc import service_pb2

from pytriton.fleet.balancer.configuration import BalancerSettings, Files, render
from pytriton.fleet.balancer.haproxy import INSTALL, HAProxy, HAProxyError, find_haproxy
from pytriton.fleet.balancer.layout import Node, NodeEndpoint

try:
    PROGRAM = find_haproxy()
except HAProxyError:
    pytest.skip(f"needs HAProxy: {INSTALL}", allow_module_level=True)


class PatientHAProxy(HAProxy):
    """Considers a node down after `fall` failed checks: nodes are threads of this process, which may stand still."""

    def __init__(self, folder: Path, fall: int = 600) -> None:
        super().__init__(folder, PROGRAM)
        self._fall = fall

    def use(self, files: Files) -> None:
        assert " fall 2 " in files.configuration
        text = files.configuration.replace(" fall 2 ", f" fall {self._fall} ")
        super().use(files._replace(configuration=text))


@pytest.fixture
def frontend(request: pytest.FixtureRequest) -> Iterator[Frontend]:
    folder = Path(tempfile.mkdtemp(prefix="ptb-"))
    made = Frontend(PatientHAProxy(folder, *getattr(request, "param", ())), lasting_port())
    yield made
    made.haproxy.stop()
    assert made.haproxy.pid is None
    shutil.rmtree(folder)


class Frontends(NamedTuple):
    """An HAProxy shared by several tests, before two nodes, only one of which has the model `only`."""

    frontend: Frontend
    grpc: int


@pytest.fixture(scope="module")
def frontends() -> Iterator[Frontends]:
    folder = Path(tempfile.mkdtemp(prefix="ptb-"))
    frontend, grpc_port = Frontend(PatientHAProxy(folder), lasting_port()), lasting_port()
    servers = [Server("a", "m", "only"), Server("b", "m")]
    settings = BalancerSettings(f"127.0.0.1:{frontend.port}", f"127.0.0.1:{grpc_port}")
    frontend.haproxy.use(render([one.node for one in servers], settings, str(folder)))
    yield Frontends(frontend, grpc_port)
    frontend.haproxy.stop()
    shutil.rmtree(folder)
    for one in servers:
        one.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def start(name: str, *models: str) -> Server:
        made.append(Server(name, *models))
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_requests_go_to_nodes_with_the_model_and_sequences_stay(
    frontend: Frontend, serve: Callable[..., Server]
) -> None:
    a, b = serve("a", "m", "only"), serve("b", "m")
    frontend.use(a, b)
    assert {frontend.ask("/v2/models/m/infer")[1] for _ in range(8)} == {"a", "b"}
    assert {frontend.ask("/v2/models/only/infer") for _ in range(4)} == {(200, "a")}
    assert frontend.ask("/v2/models/nobody/infer")[0] == 404
    status, text = frontend.ask("/v2/repository/models/m/unload")
    assert (status, json.loads(text)["error"][:18]) == (403, "this call affects ")
    ids = [str(number) for number in range(16)]
    where = {
        one: {frontend.ask("/v2/models/m/infer", x_sequence_id=one) for _ in range(3)}
        for one in ids
    }
    assert all(len(nodes) == 1 for nodes in where.values())
    assert {text for nodes in where.values() for _, text in nodes} == {"a", "b"}


@pytest.mark.parametrize(
    "path",
    [
        "/v2/repository/models/m/unload",
        "/v2/%72epository/index",
        "/v2%2Frepository/models/m/load",
        "/%762/%6Cogging",
        "/v2/logging",
        "/v2/trace/setting",
        "/v2/models/m/trace/setting",
        "/v2/models/m/%74race/setting",
        "/v2/models/%6D/trace/setting",
        "/v2/systemsharedmemory/region/r/register",
        "/v2/%63udasharedmemory/unregister",
    ],
)
def test_node_local_endpoints_are_refused_in_any_spelling(frontends: Frontends, path: str) -> None:
    status, text = frontends.frontend.ask(path)
    assert (status, json.loads(text)["error"][:18]) == (403, "this call affects ")


@pytest.mark.parametrize("path", ["/v2/models/trace/infer", "/v2/models/m/versions/1/trace"])
def test_similar_paths_are_allowed(frontends: Frontends, path: str) -> None:
    assert frontends.frontend.ask(path)[0] != 403


def test_every_spelling_of_a_models_name_is_routed(frontends: Frontends) -> None:
    assert {frontends.frontend.ask("/v2/models/%6Fnly/infer")[1] for _ in range(6)} == {"a"}


#: The calls of gRPC that any node can answer.
ANYWHERE = {
    "ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata", "ModelInfer", "ModelStreamInfer",
    "ModelConfig", "ModelStatistics",
}  # fmt: skip


@pytest.mark.parametrize(
    "call", service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
)
def test_node_local_grpc_calls_are_refused(frontends: Frontends, call: str) -> None:
    """These nodes do not speak gRPC, so a call that is let through fails differently."""
    with grpc.insecure_channel(f"127.0.0.1:{frontends.grpc}") as channel:
        ask = channel.unary_unary(f"/inference.GRPCInferenceService/{call}")
        with pytest.raises(grpc.RpcError) as caught:
            ask(b"", timeout=30)
    denied = caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert denied is (call not in ANYWHERE), caught.value
    assert ("send it to the node itself" in caught.value.details()) is denied


def _grpc_node(name: str) -> tuple[Any, NodeEndpoint]:
    """Start a node's gRPC server, which answers inferences with its name."""
    answer = grpc.unary_unary_rpc_method_handler(lambda *_: name.encode())
    each = grpc.stream_stream_rpc_method_handler(lambda asked, _: (name.encode() for _ in asked))
    calls = grpc.method_handlers_generic_handler(
        "inference.GRPCInferenceService", {"ModelInfer": answer, "ModelStreamInfer": each}
    )
    server = grpc.server(ThreadPoolExecutor(2), handlers=[calls])
    endpoint = NodeEndpoint("127.0.0.1", server.add_insecure_port("127.0.0.1:0"))
    server.start()
    return server, endpoint


_INFER = "/inference.GRPCInferenceService/ModelInfer"


def _request(model: str) -> bytes:
    """Return a message that compression makes smaller."""
    asked = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=[bytes(1000)])
    message: bytes = asked.SerializeToString()
    return message


@pytest.fixture
def grpc_port(frontend: Frontend, serve: Callable[..., Server]) -> Iterator[int]:
    """The gRPC port for the models of two nodes, of which only `a` has both."""
    port, named = lasting_port(), [_grpc_node("a"), _grpc_node("b")]
    servers = [serve("a", "m", "only"), serve("b", "m")]
    nodes = [replace(one.node, grpc=at) for one, (_, at) in zip(servers, named)]
    settings = BalancerSettings(f"127.0.0.1:{frontend.port}", f"127.0.0.1:{port}")
    frontend.haproxy.use(render(nodes, settings, str(frontend.haproxy.folder)))
    yield port
    for server, _ in named:
        server.stop(None).wait()


def test_a_compressed_call_goes_to_a_node_with_all_models(grpc_port: int) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        ask = partial(channel.unary_unary(_INFER), timeout=30)
        assert {ask(_request("m")) for _ in range(8)} == {b"a", b"b"}
        ask_packed = partial(ask, compression=grpc.Compression.Gzip)
        assert {ask_packed(_request(model)) for model in ("m", "only") * 8} == {b"a"}
        with pytest.raises(grpc.RpcError, match="without compression") as refused:
            ask_packed(_request("m"), metadata=[("x-sequence-id", "1")])
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def _ask_in_pieces(port: int, path: str, pieces: Sequence[bytes], *, ends: bool) -> bytes:
    """Return the first response to a call whose message comes in this many frames; `ends`: the last one ends the stream."""
    asked = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x"}
    asked.update({"content-type": "application/grpc", "te": "trailers"})
    block = b"".join(literal(name.encode(), value.encode()) for name, value in asked.items())
    with hello(port) as connection:
        connection.sendall(frame(HEADERS, 4, 1, block))
        said = read_frames(connection)
        for number, piece in enumerate(pieces):
            is_last = number == len(pieces) - 1
            connection.sendall(frame(DATA, int(ends and is_last), 1, piece))
            connection.sendall(frame(PING, 0, 0, bytes(8)))
            while not is_last and next(said)[0] != PING:  # it has read the piece
                pass
        return next(content[5:] for kind, content in said if kind == DATA and content)


@pytest.mark.parametrize("call", ["ModelInfer", "ModelStreamInfer"])
@pytest.mark.parametrize("size", [4, 5000])
def test_a_models_name_is_found_in_any_fragmentation(grpc_port: int, call: str, size: int) -> None:
    """A stream's client sends more only after the first response, so nothing may be awaited in vain."""
    asked = service_pb2.ModelInferRequest(model_name="only", raw_input_contents=[bytes(size)])
    asked.inputs.add(name="x", datatype="INT8", shape=[size])
    content = asked.SerializeToString()
    message = b"\0" + len(content).to_bytes(4, "big") + content
    for cut in range(1, 14):
        pieces = [message[:cut], message[cut:]]
        path = f"/inference.GRPCInferenceService/{call}"
        assert _ask_in_pieces(grpc_port, path, pieces, ends=call == "ModelInfer") == b"a", cut


def test_a_call_with_a_late_model_name_goes_to_a_node_with_all_models(
    grpc_port: int, frontends: Frontends
) -> None:
    """protobuf allows any field order: the name comes after 20 KB."""
    inputs = service_pb2.ModelInferRequest(raw_input_contents=[bytes(20_000)]).SerializeToString()
    late = inputs + service_pb2.ModelInferRequest(model_name="only").SerializeToString()
    with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        ask = partial(channel.unary_unary(_INFER), timeout=30)
        assert {ask(late) for _ in range(8)} == {b"a"}
    with grpc.insecure_channel(f"127.0.0.1:{frontends.grpc}") as channel:
        with pytest.raises(grpc.RpcError, match="at the start of the message") as refused:
            channel.unary_unary(_INFER)(late, timeout=30)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_without_a_node_with_all_models_a_compressed_call_is_refused(frontends: Frontends) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{frontends.grpc}") as channel:
        ask = channel.unary_unary(_INFER)
        with pytest.raises(grpc.RpcError, match="without compression") as refused:
            ask(_request("only"), timeout=30, compression=grpc.Compression.Gzip)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_provisional_version_gets_its_share_even_if_it_fails_immediately(
    frontend: Frontend, serve: Callable[..., Server]
) -> None:
    a, b, c = (serve(name, "m", "n") for name in "abc")
    a.shares = {"m": 0.1}
    frontend.use(a, b, c)
    frontend.until_up(frontend.files(a, b, c).configuration.count("    server "))
    asked = Counter(frontend.ask("/v2/models/m/infer")[1] for _ in range(200))
    assert asked["a"] == pytest.approx(20, abs=2)
    assert asked["b"] == pytest.approx(90, abs=2)
    others = Counter(frontend.ask("/v2/models/n/infer")[1] for _ in range(30))
    assert set(others) == {"a", "b", "c"}


def test_a_dead_node_costs_no_request(frontend: Frontend, serve: Callable[..., Server]) -> None:
    a, b = serve("a", "m"), serve("b", "m")
    frontend.use(a, b)
    a.shutdown()
    a.server_close()
    assert {frontend.ask("/v2/models/m/infer") for _ in range(12)} == {(200, "b")}


def test_a_model_that_no_node_serves_is_unavailable_instead_of_unknown(
    frontend: Frontend, serve: Callable[..., Server]
) -> None:
    """The daemon came back on another port, and does not have the model yet: it would answer 404."""
    before, now, grpc_port = serve("a", "m"), serve("a"), lasting_port()
    frontend.use(before)
    assert frontend.ask("/v2/models/m/infer") == (200, "a")
    before.close()
    settings = BalancerSettings(f"127.0.0.1:{frontend.port}", f"127.0.0.1:{grpc_port}")
    waiting = replace(now.node, grpc=now.node.http, unready=frozenset({"m"}))
    frontend.haproxy.use(render([waiting], settings, str(frontend.haproxy.folder)))
    for headers in ({}, {"x-sequence-id": "1"}):
        connection = http.client.HTTPConnection("127.0.0.1", frontend.port, timeout=30)
        connection.request("GET", "/v2/models/m/infer", headers=headers)
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("retry-after")) == (503, "1")
        assert json.loads(answer.read()) == {
            "error": "no node can serve this request at the moment"
        }
        connection.close()
    with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        with pytest.raises(grpc.RpcError) as unavailable:
            channel.unary_unary(_INFER)(_request("m"), timeout=30)
        assert unavailable.value.code() is grpc.StatusCode.UNAVAILABLE
    assert frontend.ask("/v2/models/never-registered/infer")[0] == 404
    now.models.add("m")
    frontend.use(now)
    assert frontend.ask("/v2/models/m/infer") == (200, "a")


def test_a_typed_function_is_called_at_its_route_on_the_nodes_that_serve_it(
    frontend: Frontend, serve: Callable[..., Server]
) -> None:
    a, b, c = serve("a", "m"), serve("b", "n", "m"), serve("c")
    a.routes = b.routes = {"/text/m": "m"}
    frontend.use(a, b, c)
    for path in ("/text/m", "/text/%6D?x=1"):
        assert {frontend.ask(path) for _ in range(8)} == {(200, "a"), (200, "b")}
    assert {frontend.ask("/text/m", x_sequence_id="1")[1] for _ in range(6)} in ({"a"}, {"b"})
    assert {frontend.ask(path)[0] for path in ("/text", "/text/m/", "/m", "/text/n")} == {404}


def test_a_typed_function_that_no_node_serves_is_unavailable(
    frontend: Frontend, serve: Callable[..., Server]
) -> None:
    a = serve("a", "n")
    a.routes = {"/n": "n", "/text/m": "m"}
    waiting = replace(a.node, unready=frozenset({"m"}))
    settings = BalancerSettings(f"127.0.0.1:{frontend.port}", "")
    frontend.haproxy.use(render([waiting], settings, str(frontend.haproxy.folder)))
    assert frontend.ask("/n") == (200, "a")
    assert [frontend.ask(path)[0] for path in ("/text/m", "/text/%6D", "/text/o")] == [
        503,
        503,
        404,
    ]
    a.models.add("m")
    frontend.use(a)
    assert frontend.ask("/text/m") == (200, "a")


@pytest.mark.parametrize("frontend", [(2,)], indirect=True)
def test_a_reload_does_not_forget_which_nodes_are_down(
    frontend: Frontend, serve: Callable[..., Server]
) -> None:
    """HAProxy considers new servers healthy until their second check: b would answer 404."""
    a, b, c = serve("a", "m"), serve("b", "m"), serve("c")
    frontend.use(a, b)
    b.models.clear()
    down = ("http:model-m", "b")
    eventually(lambda: frontend.states()[down] == "DOWN", "the check notices it")
    known = replace(b.node, models=frozenset({"m"}))

    def use(*nodes: Node) -> None:
        settings = BalancerSettings(f"127.0.0.1:{frontend.port}", "")
        frontend.haproxy.use(render(nodes, settings, str(frontend.haproxy.folder)))

    use(a.node, known, c.node)
    assert {frontend.ask("/v2/models/m/infer") for _ in range(12)} == {(200, "a")}
    b.models.add("m")
    eventually(lambda: frontend.states()[down] == "UP", "the check notices it")
    a.close()
    eventually(lambda: frontend.states()["http:model-m", "a"] == "DOWN", "the check notices it")
    # It comes back on another port.
    moved = serve("a", "m")
    use(moved.node, b.node, c.node)
    eventually(
        lambda: {frontend.ask("/v2/models/m/infer") for _ in range(12)} == {(200, "a"), (200, "b")},
        "both serve",
    )


def test_reloads_cost_no_request(frontend: Frontend, serve: Callable[..., Server]) -> None:
    a, b = serve("a", "m"), serve("b", "m")
    frontend.use(a)
    stop = threading.Event()
    answers: Counter[Any] = Counter()

    def outcome() -> object:
        try:
            return frontend.ask("/v2/models/m/infer")[0]
        except OSError as error:
            return repr(error)

    def ask() -> None:
        while not stop.is_set():
            answers[outcome()] += 1

    def has_answered(wanted: int) -> bool:
        return answers[200] >= wanted

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for one in threads:
        one.start()
    for servers in ((a, b), (b,), (a, b), (a,)):
        wanted = answers[200] + 50
        frontend.use(*servers)
        eventually(partial(has_answered, wanted), lambda: str(answers))
    stop.set()
    for one in threads:
        one.join()
    assert set(answers) == {200}


def test_a_configuration_refused_by_haproxy_changes_nothing(
    frontend: Frontend, serve: Callable[..., Server]
) -> None:
    a = serve("a", "m")
    frontend.use(a)
    before = (frontend.haproxy.folder / "haproxy.cfg").read_text()
    invalid = frontend.files(a).configuration + "nonsense\n"
    with pytest.raises(HAProxyError, match=r"rejected the new configuration(?s:.*)nonsense"):
        frontend.haproxy.use(Files(invalid, ""))
    assert (frontend.haproxy.folder / "haproxy.cfg").read_text() == before
    assert frontend.ask("/v2/models/m/infer") == (200, "a")


def test_a_restarted_balancer_finds_its_haproxy(
    frontend: Frontend, serve: Callable[..., Server]
) -> None:
    a, b = serve("a", "m"), serve("b", "m")
    frontend.use(a)
    later = PatientHAProxy(frontend.haproxy.folder)
    assert later.pid == frontend.haproxy.pid
    later.use(frontend.files(b))
    eventually(
        lambda: frontend.ask("/v2/models/m/infer") == (200, "b"), "the new configuration holds"
    )


def test_an_idle_connection_from_before_a_reload_gets_one_more_answer(
    frontend: Frontend, serve: Callable[..., Server]
) -> None:
    """From the old worker, with the old routing: that is why balancers wait."""
    a, b = serve("a", "m"), serve("b", "m")
    frontend.use(a)
    connection = http.client.HTTPConnection("127.0.0.1", frontend.port, timeout=30)
    connection.request("GET", "/v2/models/m/infer")
    connection.getresponse().read()
    frontend.use(b)
    assert len(frontend.haproxy.workers()) == 2
    connection.request("GET", "/v2/models/m/infer")
    answer = connection.getresponse()
    assert (answer.status, answer.read(), answer.getheader("connection")) == (200, b"a", "close")
    connection.close()
    eventually(lambda: len(frontend.haproxy.workers()) == 1, "the former worker has ended")
    assert frontend.ask("/v2/models/m/infer") == (200, "b")
