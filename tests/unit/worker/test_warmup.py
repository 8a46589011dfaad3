"""Warm-up requests: the callable answers them while its worker loads, or the registration fails."""

from __future__ import annotations

import io
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytriton import pb_utils
from pytriton._protocol.messages import (
    ModelSpec,
    PythonModel,
    Warmup,
    WarmupTensor,
    WorkerEnvironment,
)
from pytriton.worker.model import WorkerModel
from pytriton.worker.python_model import batches
from pytriton.worker.request_log import CallLog
from pytriton.worker.warmup import WarmupError, warm_up


def model(infer: Callable[[Any], Any], *, decoupled: bool = False) -> WorkerModel:
    config = {
        "name": "m",
        "max_batch_size": 8,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [2]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1]}],
        "model_transaction_policy": {"decoupled": decoupled},
    }
    return WorkerModel(ModelSpec("m", 1, config, WorkerEnvironment("python")), infer, CallLog())


def declared(*warmups: Warmup) -> ModelSpec:
    return ModelSpec("m", 1, {}, WorkerEnvironment("python"), warmups=list(warmups))


def warmup(source: Any = "zero", *, rows: int = 3, count: int = 2, npy: bytes = b"") -> Warmup:
    return Warmup("first", rows, count, [WarmupTensor("x", "FP32", [2], source, npy)])


def test_each_request_has_the_rows_and_values_that_were_declared() -> None:
    seen: list[Any] = []

    def infer(requests: Any) -> Any:
        seen.append(requests[0]["x"].copy())
        requests[0]["x"][:] = 7  # the next one has a separate array
        return [{"y": requests[0]["x"]}]

    warm_up(model(infer), declared(warmup()))
    assert [one.shape for one in seen] == [(3, 2), (3, 2)]
    assert not np.any(seen)
    seen.clear()
    file = io.BytesIO()
    np.save(file, np.full((3, 2), 5, np.float32))
    warm_up(
        model(infer),
        declared(warmup("file", count=1, npy=file.getvalue()), warmup("random", count=1)),
    )
    assert (seen[0] == 5).all()
    assert len(np.unique(seen[1])) > 1


def test_without_declared_warmups_nothing_is_called() -> None:
    def infer(requests: Any) -> Any:
        raise AssertionError("it is not called")

    warm_up(model(infer), declared())


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda requests: 1 / 0, "ZeroDivisionError"),
        (lambda requests: [{"z": requests[0]["x"]}], "returned no output `y`"),
        (lambda requests: [{"y": requests[0]["x"][:1]}], "y"),
        (lambda requests: [], "m"),
    ],
)
def test_an_invalid_warmup_result_fails_the_load(answer: Any, said: str) -> None:
    with pytest.raises(WarmupError, match=r"model m: its warm-up 'first' failed: ") as caught:
        warm_up(model(answer), declared(warmup()))
    assert said in str(caught.value)


def test_a_stream_is_read_to_its_end() -> None:
    heard: list[int] = []

    def infer(requests: Any) -> Any:
        for step in range(3):
            heard.append(step)
            yield [{"y": requests[0]["x"]} if step else None]

    warm_up(model(infer, decoupled=True), declared(warmup(count=1)))
    assert heard == [0, 1, 2]


# ── those of a configuration, as Triton has them ────────────────────────────────────────────────────


def sample(size: int = 1, count: int = 0, **source: Any) -> dict[str, Any]:
    return {
        "name": "first",
        "batch_size": size,
        "count": count,
        "inputs": {"x": {"data_type": "TYPE_FP32", "dims": [2], **(source or {"zero_data": True})}},
    }


def configured(
    folder: Path, *samples: Any, streams: bool = False, decoupled: bool = False
) -> ModelSpec:
    config = {
        "name": "m",
        "max_batch_size": 8,
        "input": [
            {"name": "x", "data_type": "TYPE_FP32", "dims": [2]},
            {"name": "z", "data_type": "TYPE_STRING", "dims": [-1], "optional": True},
        ],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1]}],
        "model_transaction_policy": {"decoupled": decoupled},
        "model_warmup": list(samples),
    }
    python = PythonModel("{}", str(folder), streams=streams)
    return ModelSpec("m", 1, config, WorkerEnvironment("python"), python_model=python)


def test_a_configured_warm_up_is_a_batch_of_requests_of_one_row(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "x.bin").write_bytes(struct.pack("<3f", 5, 6, 7))  # more than is needed
    (tmp_path / "warmup" / "z.bin").write_bytes(b"\2\0\0\0ab\0\0\0\0")
    text = {"data_type": "TYPE_STRING", "dims": [2], "input_data_file": "z.bin"}
    filed = sample(1, 2, input_data_file="x.bin")
    filed["inputs"]["z"] = text
    spec = configured(tmp_path, sample(3), filed, sample(2, random_data=True), sample(0))
    seen: list[Any] = []

    def infer(requests: Any) -> Any:
        seen.append([{name: one.copy() for name, one in request.items()} for request in requests])
        return [{"y": request["x"]} for request in requests]

    warm_up(WorkerModel(spec, infer, CallLog()), spec)
    assert [len(batch) for batch in seen] == [3, 1, 1, 2]
    assert all(one["x"].shape == (1, 2) for batch in seen for one in batch)
    assert not np.any([one["x"] for one in seen[0]])
    assert seen[1][0]["x"].tolist() == seen[2][0]["x"].tolist() == [[5, 6]]
    assert seen[1][0]["z"].tolist() == [[b"ab", b""]]
    assert len(np.unique(seen[3][0]["x"])) > 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"inputs": {}}, "it has no data for the input 'x'"),
        (
            {"inputs": {"x": {"data_type": "TYPE_INT8", "dims": [2], "zero_data": True}}},
            "it has TYPE_INT8 data for the input 'x', whose type is TYPE_FP32",
        ),
        (sample(dims=[-1], zero_data=True), "every dimension must be known"),
        (sample(zero_data=False), "needs one of zero_data, random_data and input_data_file"),
        (sample(input_data_file="none"), "No such file"),
        (sample(input_data_file="../short"), "is not in"),
        (sample(input_data_file="short"), "needs 8 bytes, but its file has 3"),
    ],
)
def test_an_invalid_configured_warm_up_fails_the_load(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "short").write_bytes(b"abc")
    spec = configured(tmp_path, {**sample(), **change})
    with pytest.raises(WarmupError, match=r"model m: its warm-up 'first' failed: ") as caught:
        warm_up(WorkerModel(spec, lambda requests: [], CallLog()), spec)
    assert said in str(caught.value)


def reply(request: Any, *, error: str = "") -> pb_utils.InferenceResponse:
    if error:
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(error))
    tensor = pb_utils.get_input_tensor_by_name(request, "x")
    assert tensor is not None
    return pb_utils.InferenceResponse([pb_utils.Tensor("y", tensor.as_numpy())])


class Returns:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def execute(self, requests: Any) -> Any:
        self.seen.append([sorted(one.requested_output_names()) for one in requests])
        return [reply(one) for one in requests]


class Sends(Returns):
    """Answers each request twice, from another thread, the second time when `execute` has returned."""

    def execute(self, requests: Any) -> Any:
        self.seen.append(len(requests))
        threading.Thread(target=self.answer, args=[[*requests]]).start()

    def answer(self, requests: Any) -> None:
        for request in requests:
            sender = request.get_response_sender()
            sender.send(reply(request))
            sender.send(reply(request), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


class Raises(Returns):
    def execute(self, requests: Any) -> Any:
        raise ValueError("weights are not there yet")


class Refuses(Returns):
    def execute(self, requests: Any) -> Any:
        return [reply(one, error="weights are not there yet") for one in requests]


class Forgets(Returns):
    def execute(self, requests: Any) -> Any:
        for request in requests:
            request.get_response_sender().send(reply(request))


def python_model(spec: ModelSpec, instance: Any) -> batches.LoadedPythonModel:
    pb_utils.install()
    return batches.LoadedPythonModel(spec, instance, "m_0_0", CallLog())


@pytest.mark.parametrize("streams", [False, True])
def test_execute_answers_a_configured_warm_up(tmp_path: Path, streams: bool) -> None:
    spec = configured(tmp_path, sample(3, 2), streams=streams)
    instance = Returns()
    warm_up(python_model(spec, instance), spec)
    assert instance.seen == [[["y"]] * 3] * 2


def test_a_stream_of_a_configured_warm_up_is_read_to_its_end(tmp_path: Path) -> None:
    spec = configured(tmp_path, sample(2), decoupled=True)
    instance = Sends()
    warm_up(python_model(spec, instance), spec)
    assert instance.seen == [2]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("kind", [Raises, Refuses])
def test_the_model_s_own_error_fails_a_configured_warm_up(
    tmp_path: Path, kind: Any, streams: bool
) -> None:
    spec = configured(tmp_path, sample(2), streams=streams)
    with pytest.raises(WarmupError, match=r"'first' failed: .*weights are not there yet"):
        warm_up(python_model(spec, kind()), spec)


def test_a_stream_that_nobody_can_end_fails_a_configured_warm_up(tmp_path: Path) -> None:
    spec = configured(tmp_path, sample(), decoupled=True)
    with pytest.raises(WarmupError, match="The request can no longer be answered"):
        warm_up(python_model(spec, Forgets()), spec)


@pytest.mark.parametrize("value", [1e39, -1e39])
def test_numbers_in_a_file_that_do_not_fit_the_input_are_refused(value: float) -> None:
    file = io.BytesIO()
    np.save(file, np.full((3, 2), value))
    with pytest.raises(WarmupError, match=r"1e\+39 is out of the range of float32"):
        warm_up(model(lambda requests: []), declared(warmup("file", npy=file.getvalue())))
