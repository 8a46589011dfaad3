"""Fields of a model's configuration that affect Triton and the workers, with the real server."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from support.daemon_pool import DaemonPool
from support.models.inference import PROTOCOLS, Array, Inference
from support.real_daemon import RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

from pytriton.client import DecoupledModelClient, ModelClient
from pytriton.exceptions import RegistrationError
from pytriton.model_config import (
    DynamicBatcher,
    ModelConfig,
    ModelWarmup,
    Tensor,
    TritonModelConfig,
    WarmupInput,
)

X, Y = Tensor((1,), np.float32, "x"), Tensor((1,), np.float32, "y")
ONE = np.ones((1, 1), np.float32)


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    """A daemon with a response cache and one unit of a rate limiter's resource."""
    options = {
        "rate-limit": "execution_count",
        "rate-limit-resource": "token:1",
        "http-header-forward-pattern": "x-user",
        "grpc-header-forward-pattern": "x-user",
    }
    with RunningDaemon.start(
        frontend="native", response_cache_size=1 << 20, tritonserver_options=options
    ) as running:
        yield running


@pytest.fixture(params=PROTOCOLS)
def inference(request: pytest.FixtureRequest, daemon: RunningDaemon) -> Iterator[Inference]:
    """A connection over each protocol."""
    address = daemon.http if request.param == "http" else daemon.grpc
    connection = Inference(request.param, address)
    yield connection
    connection.close()


# ── What Triton does ─────────────────────────────────────────────────────────────────────────────


class _Counts:
    """Returns the number of its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, requests: Any) -> Any:
        self.calls += 1
        return [{"y": np.full_like(request["x"], self.calls)} for request in requests]


def test_a_repeated_request_is_answered_from_the_cache(daemon: RunningDaemon) -> None:
    for name, cached in (("cached", True), ("uncached", False)):
        config = ModelConfig(response_cache=cached)
        daemon.client.register(_Counts(), name, [X], [Y], config=config, progress=False)
    answers = {}
    for name in ("cached", "uncached"):
        with ModelClient(daemon.http, name) as client:
            answers[name] = [client.infer_batch(ONE * v)["y"].item() for v in (1, 1, 2, 1)]
    assert answers == {"cached": [1, 1, 2, 1], "uncached": [1, 2, 3, 4]}


class _SaysWhat:
    """Returns the number of its calls, and the request."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls = 0

    def __call__(self, requests: Any) -> Any:
        self.calls += 1
        return [{"y": self._say(request), "z": request["x"]} for request in requests]

    def _say(self, request: Any) -> Any:
        asked = dict(sorted(request.parameters.items()))
        text = f"{self.name} {self.calls} {asked} {request['x'].shape}"
        return np.full((len(request["x"]), 1), text.encode(), object)


_WIDE = Tensor((-1,), np.float32, "x")
_SAID = [Tensor((1,), bytes, "y"), Tensor((-1,), np.float32, "z")]


def test_only_an_equal_request_is_answered_from_the_cache(
    daemon: RunningDaemon, inference: Inference, request: pytest.FixtureRequest
) -> None:
    name = f"says_{request.node.callspec.params['inference']}"
    x = np.arange(4, dtype=np.float32).reshape(2, 2)
    asked: list[dict[str, Any]] = [
        {},
        {"parameters": {"lang": "de"}},
        {"parameters": {"lang": "fr"}},
        {"headers": {"x-user": "anna"}},
        {"headers": {"x-user": "otto"}},
        {"outputs": ["y"]},
        {"outputs": ["z"]},
        {"inputs": {"x": x.reshape(1, 4)}},
        {"inputs": {"x": x.reshape(4, 1)}},
    ]

    def register(value: str) -> None:
        config = ModelConfig(response_cache=True, max_batch_size=8)
        daemon.client.register(
            _SaysWhat(value), name, [_WIDE], _SAID, config, replace=True, progress=False
        )

    def ask_all() -> list[dict[str, Any]]:
        answers = [inference.infer(name, **{"inputs": {"x": x}, **one}) for one in asked]
        return [{key: value.tolist() for key, value in one.items()} for one in answers]

    register("first")
    fresh = ask_all()
    assert len({str(answer) for answer in fresh}) == len(asked)
    assert [sorted(answer) for answer in fresh] == [one.get("outputs", ["y", "z"]) for one in asked]
    assert ask_all() == fresh
    register("second")
    assert all(b"second" in answer["y"][0][0] for answer in ask_all() if "y" in answer)


_CONTROLS = [
    {
        "name": "start",
        "control": [{"kind": "CONTROL_SEQUENCE_START", "bool_false_true": [False, True]}],
    },
    {"name": "end", "control": [{"kind": "CONTROL_SEQUENCE_END", "fp32_false_true": [0, 1]}]},
    {"name": "ready", "control": [{"kind": "CONTROL_SEQUENCE_READY", "int32_false_true": [0, 1]}]},
    {
        "name": "corrid",
        "control": [{"kind": "CONTROL_SEQUENCE_CORRID", "data_type": "TYPE_UINT64"}],
    },
]
_CORRID = {"kind": "CONTROL_SEQUENCE_CORRID"}


class _SumsUp:
    """Returns the sum of a sequence's inputs so far, and the pid of the process that keeps it."""

    def __init__(self) -> None:
        self.sums: dict[int, float] = {}

    def __call__(self, requests: Any) -> Any:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        flags = [request[name].item() for name in ("start", "end", "ready")]
        assert [type(flag) for flag in flags] == [bool, float, int]
        start, end, ready = flags
        number = request["corrid"].item()
        if not ready:
            return {"y": request["x"], "pid": request["corrid"]}
        self.sums[number] = (0.0 if start else self.sums[number]) + request["x"].item()
        answer = {
            "y": np.full((1, 1), self.sums[number], np.float32),
            "pid": np.full((1, 1), os.getpid()),
        }
        if end:
            del self.sums[number]
        return answer


class _SumsById:
    """Returns the sum of each sequence's inputs, by the sequence id that it gets."""

    def __init__(self) -> None:
        self.sums: dict[Any, Any] = {}

    def __call__(self, requests: Any) -> Any:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        number = request["corrid"].item()
        start = request["start"].item()
        self.sums[number] = request["x"] + (0 if start else self.sums[number])
        return {"y": self.sums[number]}


_STRINGS = ("p", "q")
_REFUSED_STRING = "the sequence id is a string, but the model's control input for it is a number"


@pytest.mark.parametrize("proxy", ["native", "python"])
def test_a_sequence_id_too_large_for_its_control_input_is_refused(
    daemon_pool: DaemonPool, proxy: str
) -> None:
    """The core would put garbage or truncated bytes into the input, and the model could confuse two sequences."""
    with daemon_pool.lend(proxy=proxy) as running:
        sums: dict[str, Any] = {}
        for kind, ids in (
            ("TYPE_UINT64", _STRINGS),
            ("TYPE_INT32", _STRINGS),
            ("TYPE_INT32", (1 << 32 | 7, 2 << 32 | 7)),
            ("TYPE_INT32", (7, 8)),
            ("TYPE_UINT64", (1 << 32 | 7, 2 << 32 | 7)),
        ):
            name = f"ids_{kind.lower()}"
            control = [
                _CONTROLS[0],
                {"name": "corrid", "control": [{**_CORRID, "data_type": kind}]},
            ]
            section = {"oldest": {"max_candidate_sequences": 4}, "control_input": control}
            config = ModelConfig(max_batch_size=4, extra={"sequence_batching": section})
            running.client.register(
                _SumsById(), name, [X], [Y], config=config, replace=True, progress=False
            )
            sums[f"{kind} {ids}"] = _two_sequences(running, name, ids)
    right = [1.0, 10.0, 3.0, 30.0]
    refused = [answer for said, answer in sums.items() if "p" in said]
    assert all(_REFUSED_STRING in str(answer) for one in refused for answer in one)
    assert [len(one) for one in refused] == [4, 4]
    (wide,) = (answer for said, answer in sums.items() if said.startswith("TYPE_INT32 (4294"))
    assert all("too large for the model's control input" in str(answer) for answer in wide)
    assert [answer for said, answer in sums.items() if said.endswith("(7, 8)")] == [right]
    assert [answer for said, answer in sums.items() if said.startswith("TYPE_UINT64 (4294")] == [
        right
    ]


def _two_sequences(running: RunningDaemon, name: str, ids: Any) -> list[Any]:
    """Alternate between the requests of two sequences; return the responses."""
    got: list[Any] = []
    with contextlib.closing(Inference("grpc", running.grpc)) as connection:
        for start, values in ((True, (1, 10)), (False, (2, 20))):
            for number, value in zip(ids, values):
                inputs = {"x": ONE * value}
                try:
                    answer = connection.infer(
                        name, inputs, sequence_id=number, sequence_start=start
                    )
                except InferenceServerException as error:
                    got.append(str(error))
                else:
                    got.append(answer["y"].item())
    return got


@pytest.mark.parametrize("strategy", ["direct", "oldest"])
def test_a_sequence_stays_with_one_worker(daemon: RunningDaemon, strategy: str) -> None:
    """Three concurrent sequences on two workers each keep their state and their worker until they end."""
    name = f"sums-{strategy}"
    section: dict[str, Any] = {
        "max_sequence_idle_microseconds": 100_000_000,
        "control_input": _CONTROLS,
        strategy: {} if strategy == "direct" else {"max_candidate_sequences": 4},
    }
    config = ModelConfig(max_batch_size=4, extra={"sequence_batching": section})
    outputs = [Y, Tensor((1,), np.int64, "pid")]
    daemon.client.register(
        _SumsUp(), name, [X], outputs, config=config, instances=2, progress=False
    )
    pids: dict[int, set[int]] = {7: set(), 8: set(), 9: set()}
    sums: dict[int, list[float]] = {7: [], 8: [], 9: []}
    with contextlib.closing(Inference("grpc", daemon.grpc)) as connection:
        for step in range(4):
            for number in pids:
                answer = connection.infer(
                    name,
                    {"x": ONE * number},
                    sequence_id=number,
                    sequence_start=step == 0,
                    sequence_end=step == 3,
                )
                sums[number].append(answer["y"].item())
                pids[number].add(answer["pid"].item())
    assert sums == {number: [number * step for step in (1, 2, 3, 4)] for number in pids}
    assert [len(found) for found in pids.values()] == [1, 1, 1]
    assert len(set.union(*pids.values())) == 2


class _Named:
    """Returns the correlation ids of its requests, taken from a control input."""

    def __call__(self, requests: Any) -> Any:
        return [{"name": request["corrid"]} for request in requests]


def test_the_correlation_id_may_be_a_string(daemon: RunningDaemon) -> None:
    """Triton's own python backend refuses each or crashes: the core leaves parts of earlier ids behind it."""
    kind = {"kind": "CONTROL_SEQUENCE_CORRID", "data_type": "TYPE_STRING"}
    section = {
        "direct": {},
        "control_input": [{"name": "corrid", "control": [kind]}],
    }
    config = ModelConfig(max_batch_size=4, extra={"sequence_batching": section})
    outputs = [Tensor((1,), np.bytes_, "name")]
    daemon.client.register(_Named(), "named", [X], outputs, config=config, progress=False)
    ids = ["x" * 128, "one", "sequence-2", "é"]
    reported = []
    with contextlib.closing(Inference("grpc", daemon.grpc)) as connection:
        for one in ids:
            answer = connection.infer(
                "named", {"x": ONE}, sequence_id=one, sequence_start=True, sequence_end=True
            )
            reported.append(answer["name"].item().decode())
    assert reported == ids


class _Overlaps:
    """Returns 1 if another call holds the lock; the call that holds it waits for that."""

    def __init__(self, folder: Path, patience_s: float) -> None:
        self.folder, self.patience_s = folder, patience_s

    def __call__(self, requests: Any) -> Any:
        with open(self.folder / "lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                (self.folder / "met").touch()
                return [{"y": np.ones_like(request["x"])} for request in requests]
            with contextlib.suppress(AssertionError):
                eventually((self.folder / "met").exists, "another call", self.patience_s)
        return [{"y": np.zeros_like(request["x"])} for request in requests]


@pytest.mark.parametrize("limited", [True, False])
def test_a_rate_limiter_keeps_instances_apart(
    daemon: RunningDaemon, tmp_path: Path, limited: bool
) -> None:
    """Two instances each need the only unit of a resource while they run."""
    name = f"limited-{limited}"
    group = {"rate_limiter": {"resources": [{"name": "token", "count": 1}], "priority": 2}}
    config = ModelConfig(max_batch_size=1, extra={"instance_group": [group]} if limited else None)
    callable_ = _Overlaps(tmp_path, 0.5 if limited else 50.0)
    daemon.client.register(
        callable_,
        name,
        [X],
        [Y],
        config=config,
        instances=2,
        max_inflight_batches=1,
        progress=False,
    )
    clients = [ModelClient(daemon.http, name) for _ in range(2)]
    with clients[0], clients[1], ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(lambda client: client.infer_batch(ONE), clients))
    assert sorted(answer["y"].item() for answer in answers) == ([0, 0] if limited else [0, 1])


def test_other_configuration_fields_reach_triton(daemon: RunningDaemon) -> None:
    extra = {
        "version_policy": {"all": {}},
        "optimization": {"priority": "PRIORITY_MAX", "eager_batching": True},
        "metric_tags": {"team": "a b"},
    }
    config = ModelConfig(
        batcher=DynamicBatcher(max_queue_delay_microseconds=7, preferred_batch_size=[2]),
        parameters={"text": "a b", "flag": True, "number": 3},
        extra=extra,
    )
    daemon.client.register(
        _Counts(), "fields", [X], [Y], config=config, model_version=3, progress=False
    )
    with contextlib.closing(tritonclient.grpc.InferenceServerClient(daemon.grpc)) as client:
        assert client.is_model_ready("fields", "3")
        assert not client.is_model_ready("fields", "1")
        seen = client.get_model_config("fields", as_json=True)["config"]
    assert seen["version_policy"] == {"all": {}}
    assert seen["optimization"]["priority"] == "PRIORITY_MAX"
    assert seen["optimization"]["eager_batching"] is True
    assert seen["metric_tags"] == {"team": "a b"}
    read = TritonModelConfig.from_triton_config(seen)
    assert read.batcher == config.batcher
    reported = {key: read.backend_parameters[key] for key in ("text", "flag", "number")}
    assert reported == {"text": "a b", "flag": "true", "number": "3"}
    with ModelClient(daemon.http, "fields", "3") as versioned:
        assert versioned.infer_batch(ONE)["y"].item() == 1


def test_a_request_can_be_returned_as_its_response(
    inference: Inference, daemon: RunningDaemon
) -> None:
    """As in PyTriton's documents: `lambda requests: requests`, with unnamed tensors."""
    if "identity" not in [model.name for model in daemon.client.models()]:
        tensors = [Tensor((1,), np.float32), Tensor((1,), np.int32)]
        daemon.client.register(lambda requests: requests, "identity", tensors, tensors)
    sent = {"INPUT_2": np.array([[5]], np.int32), "INPUT_1": ONE * 7}
    answer = inference.infer("identity", sent)
    assert {name: array.item() for name, array in answer.items()} == {"OUTPUT_1": 7, "OUTPUT_2": 5}


def _adds(requests: Any) -> Any:
    return [{"y": request["x"] + request.get("o", 0)} for request in requests]


def test_a_required_input_is_required_also_beside_optional_ones(
    inference: Inference, daemon: RunningDaemon
) -> None:
    if "optional" not in [model.name for model in daemon.client.models()]:
        optional = Tensor((1,), np.float32, "o", optional=True)
        daemon.client.register(_adds, "optional", [X, optional], [Y], progress=False)
    assert inference.infer("optional", {"x": ONE})["y"].item() == 1
    assert inference.infer("optional", {"o": ONE, "x": ONE})["y"].item() == 2
    with pytest.raises(InferenceServerException, match="lacks the input `x` of model `optional`"):
        inference.infer("optional", {"o": ONE})


# ── Warm-up ──────────────────────────────────────────────────────────────────────────────────────


class _Remembers:
    """Returns the inputs of its warm-up; creates a file on its first call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.warm: list[list[Array]] = []

    def __call__(self, requests: Any) -> Any:
        (request,) = requests
        if request.parameters == {"ask": True}:
            data = np.concatenate([array.ravel() for one in self.warm for array in one])
            return [{"y": np.concatenate([[len(self.warm)], data])[None].astype(np.float32)}]
        self.warm.append([array.copy() for array in request.values()])
        request["x"][:] = -1  # its own array: the next request is as fresh as the first
        (self.folder / f"{os.getpid()}").touch()
        return [{"y": np.zeros((len(request["x"]), 1))}]


def _ask(address: str, model: str) -> list[float]:
    with ModelClient(address, model) as client:
        answer: list[float] = client.infer_sample(
            np.zeros(2, np.float32), parameters={"ask": True}
        )["y"].tolist()
    return answer


def test_every_worker_is_warmed_up_before_it_serves(daemon: RunningDaemon, tmp_path: Path) -> None:
    """Including replacements of workers; random data are the same each time."""
    np.save(tmp_path / "rows.npy", np.array([[1, 2], [3, 4], [5, 6]], np.float32))
    warmups = [
        ModelWarmup("file", 4, {"x": WarmupInput(np.float32, (2,), input_data_file=path)}, 2)
        for path in [tmp_path / "rows.npy"]
    ]
    warmups.append(ModelWarmup("random", 1, {"x": WarmupInput("FP32", (2,), random_data=True)}))
    folder = tmp_path / "calls"
    folder.mkdir()
    inputs, outputs = [Tensor((2,), np.float32, "x")], [Tensor((-1,), np.float32, "y")]
    daemon.client.register(
        _Remembers(folder),
        "warm",
        inputs,
        outputs,
        config=ModelConfig(model_warmup=warmups),
        instances=2,
        progress=False,
    )
    (tmp_path / "rows.npy").unlink()  # it was read when the model was registered
    assert len(list(folder.iterdir())) == 2
    first = _ask(daemon.http, "warm")
    rows = [1, 2, 3, 4, 5, 6, 1, 2]
    assert first[:-2] == [3, *rows, *rows]
    assert all(0 <= value < 1 for value in first[-2:])
    assert first[-1] != first[-2]
    daemon.client.scale("warm", 3)
    assert len(list(folder.iterdir())) == 3
    before = {int(path.name) for path in folder.iterdir()}
    for pid in before:
        os.kill(pid, 9)
    eventually(lambda: len(list(folder.iterdir())) == 6, "three new workers, each warmed up")
    # A worker's file is written in the first of its three calls.
    daemon.client.model("warm").wait_ready()
    assert _ask(daemon.http, "warm") == first


def _fails(requests: Any) -> Any:
    raise ValueError("no such kernel")


def _wrong(requests: Any) -> Any:
    return [{"z": request["x"]} for request in requests]


@pytest.mark.parametrize(
    ("infer", "why"), [(_fails, "ValueError: no such kernel"), (_wrong, "returned no output `y`")]
)
def test_a_failing_warm_up_fails_the_registration(
    daemon: RunningDaemon, infer: Any, why: str
) -> None:
    config = ModelConfig(
        model_warmup=[ModelWarmup("first", 2, {"x": WarmupInput(np.float32, (1,), zero_data=True)})]
    )
    with pytest.raises(RegistrationError, match=f"its warm-up 'first' failed: .*{why}") as caught:
        daemon.client.register(infer, "cold", [X], [Y], config=config, progress=False)
    assert f"in {infer.__name__}" in (caught.value.remote_traceback or "") or infer is _wrong
    assert "cold" not in [model.name for model in daemon.client.models()]


class _Streams:
    """A generator that responds to each request it was ever given."""

    def __init__(self) -> None:
        self.requests = 0

    def __call__(self, requests: Any) -> Any:
        self.requests += 1
        for _ in range(self.requests):
            yield [{"y": np.full_like(request["x"], self.requests)} for request in requests]


class _AsyncStreams(_Streams):
    def __init__(self) -> None:
        super().__init__()
        self.loops: set[Any] = set()

    def __reduce__(self) -> Any:
        return (type(self), ())

    async def __call__(self, requests: Any) -> Any:
        self.requests += 1
        self.loops.add(asyncio.get_running_loop())
        assert len(self.loops) == 1, "what was made while it was warmed up has to work later"
        for _ in range(self.requests):
            yield [{"y": np.full_like(request["x"], self.requests)} for request in requests]


@pytest.mark.parametrize("kind", [_Streams, _AsyncStreams])
def test_warm_up_reads_streams_to_their_end(daemon: RunningDaemon, kind: Any) -> None:
    name = f"warm{kind.__name__}"
    source = WarmupInput(np.float32, (1,), zero_data=True)
    config = ModelConfig(decoupled=True, model_warmup=[ModelWarmup("w", 1, {"x": source}, 2)])
    daemon.client.register(kind(), name, [X], [Y], config=config, progress=False)
    with DecoupledModelClient(f"grpc://{daemon.grpc}", name) as client:
        assert [part["y"].item() for part in client.infer_sample(ONE[0])] == [3, 3, 3]
