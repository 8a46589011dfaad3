"""`tune`: which combinations are measured, which one is proposed, and the example requests."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytriton._cli.commands import tuning
from pytriton._cli.commands.tuning import (
    Combination,
    HttpRequest,
    Measurement,
    NotTunable,
    Tuner,
    batch_sizes,
    best_of,
    check_reachable,
    check_tunable,
    code_for,
    copy_of,
    current_of,
    example_of,
    request_for,
    splits,
)
from pytriton._protocol import messages


def spec_of(env: dict[str, str] | None = None, **fields: Any) -> messages.ModelSpec:
    config = fields.pop("config", {"max_batch_size": 1})
    return messages.ModelSpec(
        "m", 1, config, messages.WorkerEnvironment("python", env=env or {}), **fields
    )


def kept(spec: messages.ModelSpec) -> messages.KeptRegistration:
    return messages.KeptRegistration(spec, "", [b"callable"])


def measured(instances: int, requests_s: float, p99_ms: float = 1.0, **fields: Any) -> Measurement:
    return Measurement(Combination(instances, 1, 1), requests_s, 1.0, p99_ms, **fields)


# ── combinations ───────────────────────────────────────────────────────────────────────────────


def test_the_current_number_of_threads() -> None:
    assert current_of(spec_of(), 0, cores=8) == (1, 8, 1)
    assert current_of(spec_of(instances=2), 4, cores=8) == (2, 4, 1)
    assert current_of(spec_of({"OMP_NUM_THREADS": "3"}), 0, cores=8) == (1, 3, 1)
    assert current_of(spec_of({"OMP_NUM_THREADS": "4,2"}), 0, cores=8) == (1, 8, 1)


@pytest.mark.parametrize(
    ("cores", "found"),
    [
        (1, []),
        (2, [(2, 1), (1, 1)]),
        (4, [(4, 1), (2, 2), (1, 1), (2, 1)]),
        (6, [(6, 1), (4, 1), (2, 3), (1, 1), (2, 1)]),
    ],
)
def test_cores_are_divided_among_instances(cores: int, found: list[tuple[int, int]]) -> None:
    current = Combination(1, cores, 1)
    assert [one[:2] for one in splits(current, cores, fixed_instances=False)] == found


def test_many_cores_do_not_mean_many_instances() -> None:
    current = Combination(1, 64, 1)
    assert max(one.instances for one in splits(current, 64, fixed_instances=False)) == 8


def test_a_fixed_number_of_instances_is_kept() -> None:
    current = Combination(3, 2, 1)
    assert splits(current, 6, fixed_instances=True) == [(3, 1, 1)]


def test_batches_are_no_larger_than_the_clients_can_fill() -> None:
    best, current = Combination(2, 1, 64), Combination(1, 2, 64)
    assert batch_sizes(best, current, clients=8) == [(2, 1, 1), (2, 1, 4)]
    assert batch_sizes(best, current, clients=16) == [(2, 1, 1), (2, 1, 4), (2, 1, 16)]
    assert batch_sizes(Combination(2, 1, 0), Combination(1, 2, 0), clients=8) == []


# ── the proposal ───────────────────────────────────────────────────────────────────────────────


def test_the_highest_throughput_is_proposed() -> None:
    rows = [measured(1, 100), measured(2, 190), measured(4, 150)]
    assert best_of(rows) is rows[1]


def test_instances_that_hardly_help_are_not_proposed() -> None:
    rows = [measured(1, 100), measured(2, 104)]
    assert best_of(rows) is rows[0]


def test_the_current_combination_stays_unless_another_is_better() -> None:
    rows = [measured(1, 100, 9.0), measured(1, 103, 1.0)]
    assert best_of(rows) is rows[0]


def test_what_failed_is_not_proposed() -> None:
    rows = [measured(1, 100), measured(2, 200, failed=1), measured(4, 0, problem="no memory")]
    assert best_of(rows) is rows[0]
    assert best_of([measured(1, 0, problem="no memory")]) is None


def test_the_code_to_write() -> None:
    current = Combination(1, 2, 8)
    line = 'client.register(..., instances=2, env={"OMP_NUM_THREADS": "1"}'
    assert code_for(Combination(2, 1, 8), current, is_typed=True) == f"{line})"
    larger = Combination(2, 1, 64)
    assert (
        code_for(larger, current, is_typed=False)
        == f"{line}, config=ModelConfig(max_batch_size=64))"
    )
    assert "@pytriton.batchable(max_batch_size=64)" in code_for(larger, current, is_typed=True)


# ── the copy ───────────────────────────────────────────────────────────────────────────────────


def test_the_copy_yields_to_the_model() -> None:
    web = messages.WebRoute("/m", "application/json", False, {})
    spec = spec_of(
        {"A": "b"},
        web=web,
        standby_workers=1,
        config={
            "max_batch_size": 8,
            "dynamic_batching": {"preferred_batch_size": [8], "max_queue_delay_microseconds": 5},
            "response_cache": {"enable": True},
        },
    )
    copy = copy_of(spec, "m-tune", Combination(2, 3, 4), 30.0)
    assert (copy.name, copy.instances, copy.standby_workers) == ("m-tune", 2, 0)
    assert copy.web is not None
    assert copy.web.path == "/m-tune"
    assert copy.world.env == {"A": "b", "OMP_NUM_THREADS": "3"}
    assert copy.limits.nice == 10
    assert copy.load_timeout_s == 30.0
    assert copy.config == {
        "name": "m-tune",
        "max_batch_size": 4,
        "dynamic_batching": {"max_queue_delay_microseconds": 5},
    }


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"autoscale": messages.Autoscale(1, 4)}, "follows the load"),
        ({"config": {"sequence_batching": {}}}, "depend on each other"),
        ({"config": {"model_transaction_policy": {"decoupled": True}}}, "streams"),
        ({"openai": messages.OpenAICard(["chat"])}, "OpenAI"),
    ],
)
def test_models_that_cannot_be_tuned(fields: dict[str, Any], why: str) -> None:
    info = messages.ModelInfo("m", 1, "ready", [])
    with pytest.raises(NotTunable, match=why):
        check_tunable(info, [kept(spec_of(**fields))])
    tunable = kept(spec_of())
    assert check_tunable(info, [tunable]) is tunable
    with pytest.raises(NotTunable, match="ephemeral or belongs to a model repository"):
        check_tunable(info, [])
    hosted = messages.ModelInfo("m", 1, "ready", [], isolation="thread")
    with pytest.raises(NotTunable, match="threads of the process"):
        check_tunable(hosted, [])


# ── measuring ──────────────────────────────────────────────────────────────────────────────────


class Server(ThreadingHTTPServer):
    """Answers requests with 200, and with 503 on connection number `refused` of those with POST requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.refused = 0
        self.connections = itertools.count(1)
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    number = 0

    def do_GET(self) -> None:
        self._answer(200)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        server = cast(Server, self.server)
        self.number = self.number or next(server.connections)
        self._answer(503 if self.number == server.refused else 200)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"text")

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class Daemon:
    """A daemon whose models use `resident` bytes each, with memory budgets."""

    def __init__(self, url: str, resident: int = 0) -> None:
        self.resident = resident
        self.budgets: list[messages.MemoryInfo] = []
        self.registered: list[messages.Register] = []
        self._server = messages.ServerInfo("ready", 1, http_url=url)

    def status(self) -> Any:
        return SimpleNamespace(server=self._server, pid=0, models=[], memory=self.budgets)

    def model_info(self, name: str, among: object) -> messages.ModelInfo:
        return messages.ModelInfo(name, 1, "ready", [], threads=1)

    def metrics(self) -> Any:
        worker = SimpleNamespace(resident=self.resident, shared=0, gpu=self.resident)
        return SimpleNamespace(models=[SimpleNamespace(name="m", instances=[worker])])

    def access_headers(self) -> dict[str, str]:
        return {}

    def register_prepared(self, message: messages.Register, payloads: list[bytes]) -> None:
        self.registered.append(message)

    def unregister(self, name: str) -> None:
        assert name == self.registered[-1].spec.name


def tuner_of(daemon: Daemon, **fields: Any) -> Tuner:
    return Tuner(
        cast(Any, daemon), kept(spec_of(**fields)), HttpRequest("/m", b"{}"), clients=2, limit_s=60
    )


def test_failures_of_some_requests_are_reported(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "_WARM_UP_S", 0.05)
    monkeypatch.setattr(tuning, "_MEASURE_S", 0.05)
    server.refused = 4  # of the two clients that warm up and the two that measure, the last one
    steps = tuner_of(Daemon(server.url)).run()
    first = next(steps)
    assert (first.failed, first.failure, first.problem) == (1, "503 text", "")
    assert first.requests_s > 0
    with pytest.raises(
        NotTunable, match="m could not be measured: 1 request failed: 503 text"
    ) as caught:
        next(steps)
    assert caught.value.needs_request


def test_a_copy_that_does_not_fit_into_the_memory_is_not_registered(server: Server) -> None:
    for resource in ("memory", "GPU-0"):
        daemon = Daemon(server.url, resident=2 << 20)
        daemon.budgets = [messages.MemoryInfo(resource, budget=9 << 20, used=8 << 20)]
        first = next(tuner_of(daemon).run())
        where = "" if resource == "memory" else " of GPU-0"
        assert first.problem == f"it needs 2 MiB, and 1 MiB{where} are free"
        assert daemon.registered == []


def test_a_daemon_that_cannot_be_reached_over_http(server: Server) -> None:
    with pytest.raises(NotTunable, match="allow_http"):
        check_reachable("")
    check_reachable(server.url)
    with pytest.raises(NotTunable, match="tune has no client certificate"):
        check_reachable(server.url.replace("http", "https"))


# ── requests ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer"}, 1),
        ({"type": "integer", "minimum": 7}, 7),
        ({"type": "number", "exclusiveMinimum": 2}, 3.0),
        ({"type": "boolean"}, False),
        ({"type": "string", "maxLength": 3}, "The"),
        ({"type": "string", "default": "x"}, "x"),
        ({"enum": ["a", "b"]}, "a"),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, 1),
        ({"type": ["null", "number"]}, 1.0),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 3}, [1, 1, 1]),
        ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}]}, [1, False]),
        ({"$ref": "#/components/schemas/Row"}, {"a": 1}),
        ({}, None),
        (True, None),
        ({"anyOf": [True, {"type": "null"}]}, None),
        ({"anyOf": [{"type": "null", "title": "Nothing"}]}, None),
        ({"type": "integer", "minimum": 2, "exclusiveMinimum": True}, 2),
        ({"type": "array", "items": True}, [None]),
        ({"type": "array", "maxItems": 0}, []),
        ({"type": "integer", "maximum": -3}, -3),
        ({"type": "integer", "exclusiveMaximum": 0}, -1),
        ({"type": "integer", "exclusiveMinimum": 3, "multipleOf": 2.5}, 5),
        ({"type": "integer", "minimum": 6.5}, 7),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, 0.5),
        ({"type": "number", "minimum": 0.25, "maximum": 0.35, "multipleOf": 0.1}, 0.3),
    ],
)
def test_an_example_of_a_schema(schema: dict[str, Any], value: Any) -> None:
    row = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a"],
    }
    assert example_of(schema, {"Row": row}) == value


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "contentEncoding": "base64"},
        {"type": "string", "pattern": "^x$"},
        {"$ref": "#/components/schemas/Node"},
        {"type": "array", "items": False},
        {"type": "integer", "minimum": 3, "maximum": 2},
        {"type": "integer", "exclusiveMinimum": 2, "exclusiveMaximum": 3},
    ],
)
def test_values_that_cannot_be_made_up(schema: dict[str, Any]) -> None:
    node = {"type": "object", "properties": {"n": {"$ref": "#/x/Node"}}, "required": ["n"]}
    with pytest.raises(NotTunable):
        example_of(schema, {"Node": node})


_CONFIG = {
    "max_batch_size": 8,
    "input": [
        {"name": "x", "data_type": "TYPE_FP32", "dims": ["-1"]},
        {"name": "s", "data_type": "TYPE_STRING", "dims": ["1"]},
        {"name": "o", "data_type": "TYPE_INT8", "dims": ["1"], "optional": True},
    ],
}


def test_a_request_of_tensors() -> None:
    request = request_for(spec_of(), _CONFIG, ())
    assert request.path == "/v2/models/m/infer"
    x, s = json.loads(request.body)["inputs"]
    assert x == {"name": "x", "datatype": "FP32", "shape": [1, 16], "data": [0] * 16}
    assert (s["datatype"], s["shape"]) == ("BYTES", [1, 1])


def test_a_given_request_of_tensors() -> None:
    request = request_for(spec_of(), _CONFIG, ["x=[1, 2]", "s=text", "o=[3]"])
    x, s, o = json.loads(request.body)["inputs"]
    assert x == {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    assert s["data"] == ["text"]
    assert o["shape"] == [1, 1]
    with pytest.raises(ValueError, match="there is no input y; the inputs are: x, s, o"):
        request_for(spec_of(), _CONFIG, ["y=1"])
    with pytest.raises(ValueError, match="is not NAME=VALUE"):
        request_for(spec_of(), _CONFIG, ["y"])


def test_a_scalar_is_sent_with_the_dimension_that_triton_gives_it() -> None:
    entry = {"name": "x", "data_type": "TYPE_FP32", "dims": [1], "reshape": {"shape": []}}
    for batch, shape in ((0, [1]), (8, [1, 1])):
        config = {"max_batch_size": batch, "input": [entry]}
        (x,) = json.loads(request_for(spec_of(), config, ()).body)["inputs"]
        assert (x["shape"], x["data"]) == (shape, [0])


def test_a_model_that_is_not_loaded() -> None:
    spec = spec_of(config=_CONFIG)
    assert request_for(spec, {}, ()) == request_for(spec, _CONFIG, ())
    with pytest.raises(NotTunable, match="known only once it is loaded"):
        request_for(spec_of(completed_by_workers=True), {}, ())


def test_json_holds_no_half_floats() -> None:
    config = {"input": [{"name": "x", "data_type": "TYPE_FP16", "dims": ["2"]}]}
    with pytest.raises(NotTunable, match="FP16"):
        request_for(spec_of(), config, ())
