"""The same model folders in Triton's own python backend and in our workers: same responses, statuses, metrics."""

from __future__ import annotations

import functools
import re
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.models.inference import PROTOCOLS, Array, infer_once
from support.models.stream_client import Streaming
from support.plain_triton import plain_triton
from support.real_daemon import FRONT, RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

#: The first test waits for two servers with all examples.
pytestmark = pytest.mark.timeout(600)

EXAMPLES = Path(__file__).parents[3] / "examples" / "model_py"
MODELS = sorted(path.name for path in EXAMPLES.iterdir() if (path / "1" / "model.py").exists())


@dataclass(frozen=True)
class Server:
    """The addresses of one of the two servers."""

    http: str
    grpc: str
    metrics: str

    def outcome(
        self, protocol: str, model: str, inputs: Mapping[str, Array], **options: Any
    ) -> tuple[str, Any]:
        """Send a request; return its status and its outputs, or the error."""
        try:
            return "", plain(infer_once(self, model, inputs, protocol, **options))
        except InferenceServerException as error:
            return str(error.status()), error.message()

    def stream(self, model: str, inputs: Mapping[str, Array]) -> tuple[list[Any], str]:
        """Send a request to a decoupled model; return all responses, and the error that ended them, if any."""
        answers = []
        with Streaming(self.grpc, model, inputs) as stream:
            try:
                for answer in stream:
                    answers.append(plain(answer))  # noqa: PERF401, what came before an error counts
            except InferenceServerException as error:
                return answers, f"{error.status()} {error.message()}"
        return answers, ""

    def custom_metrics(self) -> list[str]:
        """Return the example's own metrics in /metrics."""
        with urllib.request.urlopen(self.metrics) as page:
            lines = page.read().decode().splitlines()
        return sorted(line for line in lines if "example_" in line)


def plain(outputs: Mapping[str, Array]) -> dict[str, Any]:
    return {name: (array.dtype.str, array.shape, array.tolist()) for name, array in outputs.items()}


@pytest.fixture(scope="module")
def servers(
    tmp_path_factory: pytest.TempPathFactory, daemon: RunningDaemon
) -> Iterator[tuple[Server, Server]]:
    """Triton's own python backend and ours, with all examples."""
    with ThreadPoolExecutor(4) as several:
        list(several.map(lambda name: daemon.client.register_model(EXAMPLES / name), MODELS))
    ours = Server(daemon.http, daemon.grpc, daemon.client.status().server.metrics_url)
    with plain_triton(tmp_path_factory.mktemp("stock"), {}, repository=EXAMPLES) as stock:
        yield (
            Server(stock.http.partition("//")[2], stock.grpc.partition("//")[2], stock.metrics),
            ours,
        )


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_responses_are_the_same(servers: tuple[Server, Server], protocol: str) -> None:
    x = np.arange(4, dtype=np.float32)
    texts = np.array([["Ein Satz", "ÜBER alles".encode()]], np.object_)
    calls: list[tuple[str, dict[str, Array]]] = [
        ("add_sub", {"INPUT0": x, "INPUT1": 2 * x}),
        ("add_sub", {"INPUT0": x}),
        ("add_sub", {"INPUT0": x, "INPUT1": x.astype(np.float64)}),
        ("auto_complete", {"x": np.ones((3, 2))}),
        ("auto_complete", {"x": np.ones((9, 2))}),
        ("preprocess_bytes", {"TEXT": texts}),
        ("preprocess_bytes", {"TEXT": np.array([[b""]], np.object_)}),
        ("preprocess_bytes", {"TEXT": np.array([[b"\xff"]], np.object_)}),
        ("instance_kind", {"ANY": np.array([True])}),
        ("square_decoupled", {"IN": np.array([1], np.int32)}),
    ]
    for model, inputs in calls:
        stock, ours = (server.outcome(protocol, model, inputs) for server in servers)
        assert ours == stock, model


#: Of the native frontend, where NVIDIA's says 400.
_OWN_STATUSES = {"code ALREADY_EXISTS": "409", "code CANCELLED": "499"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "what",
    [
        "", "by sender", "more outputs", "no outputs", "other type", "about request",
        "code UNKNOWN", "code INTERNAL", "code NOT_FOUND", "code INVALID_ARG", "code UNAVAILABLE",
        "code UNSUPPORTED", "code ALREADY_EXISTS", "code CANCELLED",
        "value error", "model exception", "too few", "no responses", "rescheduled",
    ],
)  # fmt: skip
def test_every_way_to_respond_has_the_same_outcome(
    servers: tuple[Server, Server], protocol: str, what: str
) -> None:
    call = functools.partial(
        Server.outcome,
        protocol=protocol,
        model="errors",
        inputs={"x": np.ones((1, 1), np.float32)},
        request_id="an id",
        timeout=10_000_000,
        parameters={"do": what, "n": 1},
    )
    (stock_status, stock), (status, ours) = (call(server) for server in servers)
    if FRONT == "native" and protocol == "http":  # it says by HTTP what gRPC says
        stock_status = _OWN_STATUSES.get(what, stock_status)
    assert status == stock_status
    # Where it happened is in the model's log, not in the client's error.
    if status:
        stock = re.sub(r"\s*At:.*", "", stock, flags=re.DOTALL).strip()
        stock = stock.replace("c_python_backend_utils", "pytriton.pb_utils.requests")
    assert ours == stock


def test_streams_are_the_same(servers: tuple[Server, Server]) -> None:
    calls: list[tuple[str, dict[str, Array]]] = [
        ("square_decoupled", {"IN": np.array([number], np.int32)}) for number in (0, 1, 5, 100)
    ]
    values, delays = np.array([4, 2, 0, 1], np.int32), np.array([1, 2, 3, 4], np.uint32)
    calls.append(("repeat_decoupled", {"IN": values, "DELAY": delays}))
    calls.append(("reschedule_decoupled", {"IN": np.array([6], np.int32)}))
    calls.append(("repeat_decoupled", {"IN": values, "DELAY": delays[1:]}))
    for model, inputs in calls:
        stock, ours = (server.stream(model, inputs) for server in servers)
        assert ours == stock


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_sequences_and_rescheduled_requests_are_the_same(
    servers: tuple[Server, Server], protocol: str
) -> None:
    for times in (1, 5):
        inputs = {"IN": np.array([times], np.int32)}
        stock, ours = (server.outcome(protocol, "reschedule", inputs) for server in servers)
        assert ours == stock
        assert ours[1]["TIMES"][2] == [times]
    for step in range(3):
        for sequence in (7, 8):
            stock, ours = (
                server.outcome(
                    protocol,
                    "sequence",
                    {"IN": np.array([[10 * sequence + step]], np.int32)},
                    sequence_id=sequence,
                    sequence_start=step == 0,
                    sequence_end=step == 2,
                )
                for server in servers
            )
            assert ours == stock


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_calls_to_other_models_are_the_same(servers: tuple[Server, Server], protocol: str) -> None:
    x = np.arange(4, dtype=np.float32)
    calls: list[tuple[str, dict[str, Array]]] = [
        ("bls", {"MODEL": np.array([b"add_sub"], np.object_), "INPUT0": x, "INPUT1": 3 * x}),
        ("bls_async", {"INPUT0": x, "INPUT1": 3 * x}),
        ("bls_decoupled", {"IN": np.array([0], np.int32)}),
        ("bls_decoupled", {"IN": np.array([40], np.int32)}),
    ]
    for model, inputs in calls:
        stock, ours = (server.outcome(protocol, model, inputs) for server in servers)
        assert ours == stock, model
    unknown = {"MODEL": np.array([b"nobody"], np.object_), "INPUT0": x, "INPUT1": x}
    stock, ours = (server.outcome(protocol, "bls", unknown) for server in servers)
    assert ours[0] == stock[0], (ours, stock)
    assert "nobody" in ours[1]
    assert "nobody" in stock[1]


def test_custom_metrics_are_the_same(servers: tuple[Server, Server]) -> None:
    for number in (1, 5, 50, 500):
        stock, ours = (
            server.outcome("grpc", "custom_metrics", {"n": np.array([number], np.int32)})
            for server in servers
        )
        assert ours == stock
    wanted = servers[0].custom_metrics()
    assert any("example_things_total{" in line for line in wanted)
    eventually(
        lambda: servers[1].custom_metrics() == wanted,
        lambda: f"{servers[1].custom_metrics()} is {wanted}",
    )
