"""Allowed results of a callable, and the errors that clients get for wrong ones."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.models.inference import PROTOCOLS, Array, Inference
from support.models.tensors import X
from support.real_daemon import RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

from pytriton._host.log_files import tail
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, ModelWarmup, Tensor, WarmupInput

YZ = [
    Tensor(name="y", dtype=np.float32, shape=(-1,)),
    Tensor(name="z", dtype=np.float32, shape=(-1,)),
]
ONES = np.ones((2, 3), np.float32)


@pytest.fixture(params=PROTOCOLS)
def inference(request: pytest.FixtureRequest, daemon: RunningDaemon) -> Iterator[Inference]:
    connection = Inference(request.param, getattr(daemon, request.param))
    yield connection
    connection.close()


def _upper(requests: Any) -> Any:
    return [{"y": np.char.upper(request["x"].astype(str))} for request in requests]


def test_strings_arrive_as_bytes_in_warm_ups_and_requests(daemon: RunningDaemon) -> None:
    # An array of bytes would become "b'...'" in `astype(str)`, without an error.
    text = Tensor(name="x", dtype=str, shape=(-1,))
    warmup = ModelWarmup("w", 1, {"x": WarmupInput(str, (1,), zero_data=True)})
    config = ModelConfig(batching=False, model_warmup=[warmup])
    y = [Tensor(name="y", dtype=str, shape=(-1,))]
    model = daemon.client.register(_upper, "upper", [text], y, config, progress=False)
    try:
        for protocol in PROTOCOLS:
            connection = Inference(protocol, getattr(daemon, protocol))
            sent = np.array(["äb".encode(), b"c"], object)
            (answer,) = connection.infer("upper", {"x": sent}).values()
            assert [item.decode() for item in answer] == ["ÄB", "C"]
            with pytest.raises(InferenceServerException, match="input `x` must be text"):
                connection.infer("upper", {"x": np.array([b"\xff"], object)})
            connection.close()
    finally:
        model.unregister()


# ── layouts ──────────────────────────────────────────────────────────────────────────────────────


def _fortran(x: Array) -> dict[str, Array]:
    return {"y": np.asfortranarray(x), "z": np.asfortranarray(x).T.copy().T}


def _strided(x: Array) -> dict[str, Array]:
    wide = np.repeat(x, 2, axis=1)
    return {"y": wide[:, ::2], "z": x[:, ::-1]}


def _read_only(x: Array) -> dict[str, Array]:
    y = x.copy()
    y.setflags(write=False)
    return {"y": y, "z": np.broadcast_to(x[:, :1], x.shape)}


def _input_views(x: Array) -> dict[str, Array]:
    return {"y": x, "z": x[:, ::-1]}


def _one_array_twice(x: Array) -> dict[str, Array]:
    y = x + 0
    return {"y": y, "z": y}


def _big_endian(x: Array) -> dict[str, Array]:
    return {"y": x.astype(">f4"), "z": x.astype(np.float64)}


def _written_in_place(x: Array) -> dict[str, Array]:
    x += 0
    return {"y": x, "z": x}


LAYOUTS: list[Callable[[Array], dict[str, Array]]] = [
    _fortran,
    _strided,
    _read_only,
    _input_views,
    _one_array_twice,
    _big_endian,
    _written_in_place,
]


@pytest.fixture(scope="module")
def layouts(daemon: RunningDaemon) -> None:
    for function in LAYOUTS:
        daemon.client.register(
            batch(function),
            function.__name__,
            inputs=X,
            outputs=YZ,
            config=ModelConfig(max_batch_size=8),
            progress=False,
        )


@pytest.mark.usefixtures("layouts")
@pytest.mark.parametrize("function", LAYOUTS, ids=lambda function: function.__name__)
def test_any_memory_layout_is_accepted(
    inference: Inference, function: Callable[[Array], dict[str, Array]]
) -> None:
    """Fortran order, strided, read-only, big-endian arrays, views of inputs, one array for two outputs."""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    expected = {name: np.asarray(y, np.float32) for name, y in function(x.copy()).items()}
    answer = inference.infer(function.__name__, {"x": x})
    assert {name: y.tolist() for name, y in answer.items()} == {
        name: y.tolist() for name, y in expected.items()
    }


@pytest.mark.usefixtures("layouts")
def test_only_requested_outputs_come_back(inference: Inference) -> None:
    """A client may request some of the outputs."""
    assert list(inference.infer("_input_views", {"x": ONES}, ["z"])) == ["z"]


# ── mistakes ─────────────────────────────────────────────────────────────────────────────────────


def _mistakes(requests: Any) -> Any:
    """Make the mistake that the first input element selects."""
    kind = int(requests[0]["x"][0, 0])
    good = [{"y": request["x"], "z": request["x"]} for request in requests]
    if kind == 1:
        raise ValueError("one is not a number we like")
    wrong: dict[int, Any] = {
        2: None,
        3: good + good,
        4: [{"y": request["x"]} for request in requests],
        5: [{"y": "text", "z": request["x"]} for request in requests],
        6: [{"y": request["x"][:1], "z": request["x"]} for request in requests],
        7: [{"y": request["x"].astype(complex), "z": request["x"]} for request in requests],
        8: [[request["x"]] for request in requests],
    }
    return wrong.get(kind, good)


MISTAKES = {
    1: "ValueError: one is not a number we like",
    2: "must be list of response dicts with numpy arrays. Got NoneType",
    3: r"Number of outputs returned by `mistakes` inference callable \(2\) does not match",
    4: "returned no output `z`; it returned `y`",
    5: "Output `y` of model `mistakes` is a scalar",
    6: r"Output `y` of model `mistakes` has 1 rows along the batch axis",
    7: "Output `y` of model `mistakes` has dtype complex128, which cannot be cast to float32",
    8: "must be list of response dicts with numpy arrays. Got a list with list",
}


@pytest.fixture(scope="module")
def mistakes(daemon: RunningDaemon) -> None:
    daemon.client.register(
        _mistakes, "mistakes", inputs=X, outputs=YZ,
        config=ModelConfig(max_batch_size=8), progress=False,
    )  # fmt: skip


@pytest.mark.usefixtures("mistakes")
@pytest.mark.parametrize("kind", MISTAKES)
def test_a_wrong_result_is_reported_in_one_line_and_the_worker_survives(
    inference: Inference, daemon: RunningDaemon, kind: int
) -> None:
    before = daemon.client.model("mistakes").instances[0].pid
    with pytest.raises(InferenceServerException, match=MISTAKES[kind]) as caught:
        inference.infer("mistakes", {"x": np.full((2, 3), kind, np.float32)})
    assert "\n" not in str(caught.value).strip()
    assert inference.infer("mistakes", {"x": ONES * 9})["y"].tolist() == (ONES * 9).tolist()
    assert daemon.client.model("mistakes").instances[0].pid == before


@pytest.mark.usefixtures("mistakes")
def test_an_exception_is_one_record_of_the_models_log(
    inference: Inference, daemon: RunningDaemon
) -> None:
    """`logs` shows the developer what the client does not get: one error record with all details."""
    request_id = str(uuid.uuid4())
    with pytest.raises(InferenceServerException):
        inference.infer("mistakes", {"x": ONES}, request_id=request_id)

    def found() -> list[dict[str, Any]]:
        records = map(json.loads, daemon.client.logs("mistakes", lines=500))
        return [record for record in records if request_id in record.get("request_ids", [])]

    # The answer goes one way and the worker's lines another, to the dispatcher, which may be late.
    (record,) = eventually(found, lambda: str(daemon.client.logs("mistakes", lines=500)))
    assert record["level"] == "error"
    assert (record["error_type"], record["error_message"]) == (
        "ValueError",
        "one is not a number we like",
    )
    assert record["exception"].startswith("Traceback (most recent call last)")
    assert 'raise ValueError("one is not a number we like")' in record["exception"]
    worker = daemon.client.model("mistakes").instances[0].pid
    assert (record["model"], record["instance"], record["pid"]) == ("mistakes", 0, worker)
    assert not any(
        line for line in daemon.client.logs("mistakes", lines=500) if '"info", "event": "Tr' in line
    )


def test_a_start_without_a_gpu_logs_no_warning(daemon: RunningDaemon) -> None:
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has a GPU")
    path = daemon.config.rundir.log_file()
    records = [json.loads(line) for line in tail(path, 10_000)]
    start = next(i for i, one in enumerate(records) if one["event"] == "tritonserver is ready")
    assert [one for one in records[:start] if one["level"] not in ("debug", "info")] == []


def talkative(x: Array) -> dict[str, Array]:
    """Print 50 MB, faster than the daemon logs."""
    lines = "\n".join(["x" * 999] * 1000)
    for _ in range(50):
        print(lines)
    return {"y": x, "z": x}


def test_printed_output_is_logged_or_dropped_with_a_note(
    inference: Inference, daemon: RunningDaemon
) -> None:
    model = daemon.client.register(
        batch(talkative), "talkative", inputs=X, outputs=YZ, config=ModelConfig(max_batch_size=8),
        progress=False,
    )  # fmt: skip
    assert inference.infer("talkative", {"x": ONES})["y"].tolist() == ONES.tolist()
    # In the files: what `logs` returns is the end of them, and the note may stand before that.
    files = daemon.config.rundir.path / "logs"
    eventually(
        lambda: any(b"bytes dropped" in one.read_bytes() for one in files.rglob("*talkative*")),
        "what the log does not take is left out",
    )
    model.unregister()


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (lambda x: {"y": x.astype(np.float64), "z": x}, "invalid type. Returned: float64. Expected: float32"),
        (lambda x: {"y": x, "z": x, "w": x}, "Returned output `w` is not defined in model config"),
        (lambda x: {"y": x[:, :, None], "z": x}, "has invalid shapes"),
    ],
)  # fmt: skip
def test_strict_accepts_only_declared_outputs(
    daemon: RunningDaemon, result: Callable[[Array], dict[str, Array]], said: str
) -> None:
    """`strict=True` also checks the exact dtype, the shape, and that there are no undeclared outputs."""
    model = daemon.client.register(
        batch(result), "strict", inputs=X, outputs=YZ, strict=True,
        config=ModelConfig(max_batch_size=8), progress=False,
    )  # fmt: skip
    connection = Inference("http", daemon.http)
    try:
        with pytest.raises(InferenceServerException, match=said):
            connection.infer("strict", {"x": ONES})
    finally:
        connection.close()
        model.unregister()
