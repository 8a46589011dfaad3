"""Several lanes of one worker: waiting batches are merged as far as the model allows, and everybody gets their own answer."""

from __future__ import annotations

import asyncio
import collections
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Literal

import numpy as np
import pytest
from fakes.fake_call_log import FakeCallLog
from fakes.lane_pair import lane_pair

from pytriton import decorators
from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.lane import Lane
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchDone,
    BatchFailed,
    RequestRef,
    TensorRef,
)
from pytriton._protocol.lanes.tensors import Array
from pytriton._protocol.messages import ModelSpec, WorkerEnvironment
from pytriton.exceptions import PyTritonUnrecoverableError
from pytriton.worker.model import Unrecoverable, WorkerModel
from pytriton.worker.request_log import CallLog, Part

_NAMES = {"float32": "FP32", "int32": "INT32", "object": "BYTES"}
#: One proxy's batch: the input `x` of each request.
Inputs = Sequence[Array]


class Proxies:
    """Proxies of one worker, and the worker's ends of their lanes."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.near: list[Lane] = []
        self.far: list[Lane] = []

    def send(self, *batches: Inputs, alone: int | None = None) -> list[Lane]:
        """Send each batch from a new proxy (one may be unmergeable); return the worker's ends of the lanes."""
        lanes = []
        for index, batch in enumerate(batches):
            proxy, worker = self._stack.enter_context(lane_pair())
            proxy.arena.allocate(1)
            proxy.send(Batch(0, []))  # the arena is announced with it
            worker.receive()
            requests = [_request(proxy, array) for array in batch]
            proxy.send(Batch(index + 1, requests, alone=index == alone))
            self.near.append(proxy)
            self.far.append(worker)
            lanes.append(worker)
        return lanes

    def receive(self, worker: Lane) -> list[Any] | str:
        """Return what that lane's proxy receives: `y` or the error of each request, or the error of all."""
        proxy = self.near[self.far.index(worker)]
        answer = proxy.receive()
        if isinstance(answer, BatchFailed):
            return answer.text
        assert isinstance(answer, BatchDone)
        assert answer.id == self.far.index(worker) + 1
        dtype = np.dtype(np.float32)
        return [
            tensors.read(proxy, r.outputs[0], dtype).tolist() if r.error is None else r.error
            for r in answer.responses
        ]


def _request(lane: Lane, array: Array) -> RequestRef:
    datatype = _NAMES[array.dtype.name]
    if datatype == "BYTES":
        ref = tensors.write_raw(lane, "x", "BYTES", array.shape, tensors.encode_bytes(array))
    else:
        ref = tensors.write(lane, "x", datatype, array, array.dtype)
    return RequestRef([ref], "", [])


@pytest.fixture
def proxies() -> Iterator[Proxies]:
    with ExitStack() as stack:
        yield Proxies(stack)


def model(
    infer: Callable[[Any], Any],
    *,
    max_batch_size: int = 8,
    on_error: Literal["retry", "fail"] = "retry",
    sequences: bool = False,
    text_inputs: Sequence[str] = (),
) -> WorkerModel:
    config: dict[str, Any] = {
        "name": "digits",
        "max_batch_size": max_batch_size,
        "input": [
            {"name": "x", "data_type": "TYPE_STRING" if text_inputs else "TYPE_FP32", "dims": [-1]}
        ],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1]}],
    }
    if sequences:
        config["sequence_batching"] = {}
    texts = [*text_inputs]
    spec = ModelSpec(
        "digits", 1, config, WorkerEnvironment("python"), on_error=on_error, text_inputs=texts
    )
    return WorkerModel(spec, infer, CallLog())


def ones(rows: int, columns: int = 2, dtype: str = "float32") -> Array:
    return np.ones((rows, columns), dtype)


def doubled(requests: Any) -> Any:
    return [{"y": request["x"] * 2} for request in requests]


def merged(to: WorkerModel, lanes: Sequence[Lane]) -> list[Part]:
    """Take the first lane's batch, and what fits of the others."""
    first = lanes[0].receive()
    assert isinstance(first, Batch)
    return [Part(lanes[0], first), *to.take_mergeable(first, lanes[1:])]


def answer(to: WorkerModel, parts: Sequence[Part]) -> None:
    for part, message in zip(parts, to.answer(parts)):
        part.lane.send(message)


# ── what is merged ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "other",
    [ones(1, 3), ones(1, dtype="int32"), np.ones((1, 2, 2), np.float32), ones(6)],
    ids=["row shape", "datatype", "dimensions", "too many rows"],
)
def test_batches_that_do_not_fit_stay_on_their_lane(proxies: Proxies, other: Array) -> None:
    """They do not keep others from being taken."""
    to = model(doubled)
    lanes = proxies.send([ones(3)], [other], [ones(5)])
    parts = merged(to, lanes)
    assert [part.batch.id for part in parts] == [1, 3]
    assert [proxy.all_read() for proxy in proxies.near] == [True, False, True]
    left = lanes[1].receive()
    assert isinstance(left, Batch)
    assert left.id == 2


def test_a_batch_that_lost_a_worker_is_not_merged(proxies: Proxies) -> None:
    """Otherwise a batch that crashes workers would affect other requests again."""
    to = model(doubled)
    assert [p.batch.id for p in merged(to, proxies.send([ones(1)], [ones(1)], alone=0))] == [1]
    beside = merged(to, proxies.send([ones(1)], [ones(1)], [ones(1)], alone=1))
    assert [part.batch.id for part in beside] == [1, 3]


def test_a_full_batch_takes_nothing(proxies: Proxies) -> None:
    assert len(merged(model(doubled), proxies.send([ones(4), ones(4)], [ones(1)]))) == 1


def test_requests_without_rows_take_no_space(proxies: Proxies) -> None:
    assert len(merged(model(doubled), proxies.send([ones(7)], [ones(0)], [ones(1)]))) == 3


def test_strings_are_merged_whatever_their_lengths(proxies: Proxies) -> None:
    long = np.array([[b"long" * 100]], object)
    short = np.array([[b""]], object)
    to = model(lambda requests: [{"y": ones(1) * len(r["x"][0, 0])} for r in requests])
    lanes = proxies.send([long], [short])
    parts = merged(to, lanes)
    answer(to, parts)
    assert [proxies.receive(lane) for lane in lanes] == [[[[400, 400]]], [[[0, 0]]]]


def test_without_batching_nothing_is_merged(proxies: Proxies) -> None:
    """Batches are not even read ahead: inputs without any axis are valid there."""
    to = model(doubled, max_batch_size=0)
    assert len(merged(to, proxies.send([np.float32(1).reshape(())], [ones(1)]))) == 1


def test_empty_and_closed_lanes_are_skipped(proxies: Proxies) -> None:
    to = model(doubled)
    lanes = proxies.send([ones(1)], [], [], [ones(1)])
    lanes[1].receive()
    lanes[2].receive()
    with socket.socket(fileno=os.dup(proxies.near[2].fileno())) as end:
        end.shutdown(socket.SHUT_WR)
    assert [part.batch.id for part in merged(to, lanes)] == [1, 4]


@pytest.mark.parametrize("shape", [[], [-5, 2], [1 << 62, 2]], ids=str)
def test_invalid_shapes_fail_only_their_batch(proxies: Proxies, shape: list[int]) -> None:
    """Such a batch fails; those that it was merged with do not."""
    to = model(doubled)
    for wrong in (0, 1):
        lanes = proxies.send([ones(1)], [ones(2)])
        near = proxies.near[proxies.far.index(lanes[wrong])]
        lanes[wrong].receive()
        request = RequestRef([TensorRef("x", "FP32", shape, 0, 0, 8)], "", [])
        near.send(Batch(proxies.far.index(lanes[wrong]) + 1, [request]))
        left = list(lanes)
        while left:
            parts = merged(to, left)
            answers = to.answer(parts)
            for part, message in zip(parts, answers):
                left.remove(part.lane)
                assert isinstance(message, BatchFailed) == (part.lane is lanes[wrong])


# ── what becomes of it ───────────────────────────────────────────────────────────────────────────


def test_one_call_sees_all_and_each_lane_gets_its_own_results(proxies: Proxies) -> None:
    calls = []

    def infer(requests: Any) -> Any:
        calls.append([request["x"].shape for request in requests])
        whole = requests[0]["x"].base
        assert whole is not None
        assert all(request["x"].base is whole for request in requests)  # gathered over the lanes
        return doubled(requests)

    to = model(infer)
    sent = [[ones(1) * 1], [ones(2) * 2, ones(1) * 3], [ones(1) * 4]]
    lanes = proxies.send(*sent)
    answer(to, merged(to, lanes))
    assert calls == [[(1, 2), (2, 2), (1, 2), (1, 2)]]
    for lane, batch in zip(lanes, sent):
        assert proxies.receive(lane) == [(array * 2).tolist() for array in batch]


@pytest.mark.parametrize("kind", [list, tuple, collections.deque])
def test_any_sequence_of_results_is_split(proxies: Proxies, kind: Callable[[Any], Any]) -> None:
    to = model(lambda requests: kind(doubled(requests)))
    lanes = proxies.send([ones(1)], [ones(1) * 2])
    answer(to, merged(to, lanes))
    assert [proxies.receive(lane) for lane in lanes] == [[[[2, 2]]], [[[4, 4]]]]


def test_a_bad_result_fails_its_request_alone(proxies: Proxies) -> None:
    def infer(requests: Any) -> Any:
        results = doubled(requests)
        results[1] = {"y": ones(7)}  # of two rows
        return results

    to = model(infer)
    lanes = proxies.send([ones(1)], [ones(2), ones(1)], [ones(1)])
    answer(to, merged(to, lanes))
    got = [proxies.receive(lane) for lane in lanes]
    assert got[0] == got[2] == [[[2, 2]]]
    assert "Output `y` of model `digits` has 7 rows" in got[1][0]
    assert got[1][1] == [[2, 2]]


def test_an_exception_in_place_of_a_result_is_the_error_of_its_request(
    proxies: Proxies, capfd: pytest.CaptureFixture[str]
) -> None:
    def infer(requests: Any) -> Any:
        results: list[Any] = [*doubled(requests)]
        results[1] = ValueError("negative")
        results[2] = asyncio.CancelledError()
        return results

    to = model(infer)
    to.log = log = FakeCallLog()
    lanes = proxies.send([ones(1), ones(1)], [ones(1)], [ones(2)])
    answer(to, merged(to, lanes))
    assert proxies.receive(lanes[0]) == [[[2, 2]], "ValueError: negative [request id: 0-1-1]"]
    assert "CancelledError" in proxies.receive(lanes[1])[0]
    assert proxies.receive(lanes[2]) == [[[2, 2], [2, 2]]]
    assert log.failures == [("callable", 1), ("callable", 1)]
    assert '"request_ids":["0-1-1"]' in capfd.readouterr().err


def test_an_exception_in_place_of_a_row_is_the_error_of_its_request(proxies: Proxies) -> None:
    @decorators.batch
    def infer(x: Array) -> Any:
        return {"y": [ValueError("negative") if row[0] < 0 else row * 2 for row in x]}

    to = model(infer)
    lanes = proxies.send([ones(1), ones(2)], [ones(1) * -1], [ones(1) * 3])
    answer(to, merged(to, lanes))
    assert proxies.receive(lanes[0]) == [[[2, 2]], [[2, 2], [2, 2]]]
    assert proxies.receive(lanes[1]) == ["ValueError: negative [request id: 0-2-0]"]
    assert proxies.receive(lanes[2]) == [[[6, 6]]]


@pytest.mark.parametrize("place", ["result", "raised", "raised when retried"])
def test_an_unrecoverable_error_stops_all(proxies: Proxies, place: str) -> None:
    calls = []

    def infer(requests: Any) -> Any:
        calls.append(len(requests))
        if place == "result":
            return [doubled(requests[:1])[0], PyTritonUnrecoverableError("the device is gone")]
        if place == "raised when retried" and len(requests) > 1:
            raise KeyError
        raise PyTritonUnrecoverableError("the device is gone")

    to = model(infer)
    parts = merged(to, proxies.send([ones(1)], [ones(1)]))
    with pytest.raises(Unrecoverable, match="the device is gone"):
        to.answer(parts)
    assert calls == ([2, 1] if place == "raised when retried" else [2])


def test_a_call_that_raises_is_made_once_more_for_each_request_alone(proxies: Proxies) -> None:
    calls: list[list[float]] = []
    kept = np.empty((1, 2), np.float32)

    def infer(requests: Any) -> Any:
        calls.append([float(request["x"][0, 0]) for request in requests])
        if any(request["x"][0, 0] < 0 for request in requests):
            for request in requests:
                request["x"][:] = 99  # changes to inputs by the first call are not visible
            raise KeyError("no such row")
        kept[:] = requests[0]["x"] * 2  # the same memory for each answer
        return [{"y": kept}]

    to = model(infer)
    lanes = proxies.send([ones(1), ones(1) * -1], [ones(1) * 3])
    answer(to, merged(to, lanes))
    assert proxies.receive(lanes[0]) == [[[2, 2]], "KeyError: 'no such row' [request id: 0-1-1]"]
    assert proxies.receive(lanes[1]) == [[[6, 6]]]
    assert calls == [[1, -1, 3], [1], [-1], [3]]


def lengths(requests: Any) -> Any:
    texts = [request["x"] for request in requests]
    assert all(isinstance(item, str) for text in texts for item in text.flat)
    return [
        {"y": np.array([[len(item) for item in row] for row in text], np.float32)} for text in texts
    ]


def test_an_input_of_str_arrives_as_text(proxies: Proxies) -> None:
    """A request with invalid text fails alone, before the callable is called."""
    to = model(lengths, text_inputs=["x"])
    rows = [[["äöü", ""]], [[b"\xff\xfe", "b"]], [["ab", "c"], ["d", "efg"]]]
    lanes = proxies.send(
        [np.array(rows[0], object), np.array(rows[1], object)], [np.array(rows[2], object)]
    )
    answer(to, merged(to, lanes))
    answers: list[Any] = list(proxies.receive(lanes[0]))
    first, wrong = answers
    assert first == [[3, 0]]
    assert "input `x` must be text (dtype=str), but b'\\xff\\xfe' is not UTF-8" in wrong
    assert "[request id: 0-1-1]" in wrong
    assert proxies.receive(lanes[1]) == [[[2, 1], [1, 3]]]


@pytest.mark.parametrize("why", ["on_error", "sequences"])
def test_non_retryable_merged_batches_fail_as_a_whole(proxies: Proxies, why: str) -> None:
    calls = []

    def infer(requests: Any) -> Any:
        calls.append(len(requests))
        raise KeyError("no such row")

    to = model(infer, **({"on_error": "fail"} if why == "on_error" else {"sequences": True}))
    lanes = proxies.send([ones(1)], [ones(1)])
    answer(to, merged(to, lanes))
    assert [proxies.receive(lane) for lane in lanes] == ["KeyError: 'no such row'"] * 2
    assert calls == [2]


def too_few(requests: Any) -> Any:
    return doubled(requests[:-1])


@pytest.mark.parametrize(
    ("infer", "text"),
    [(too_few, r"callable (1) does not match"), (str, "list")],
)
def test_errors_of_the_whole_call_fail_every_request(
    proxies: Proxies, infer: Callable[[Any], Any], text: str
) -> None:
    to = model(infer)
    lanes = proxies.send([ones(1)], [ones(1)])
    answer(to, merged(to, lanes))
    for lane in lanes:
        assert text in proxies.receive(lane)
