"""Batches of Triton Python models with unreadable inputs fail without affecting others."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from fakes.fake_call_log import FakeCallLog
from fakes.fake_dispatcher import FakeDispatcher
from fakes.lane_pair import Lanes
from fakes.serving_worker import python_model_worker, spec_of
from support.real_daemon import eventually

from pytriton import pb_utils
from pytriton._protocol import messages
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchBegun,
    BatchDone,
    BatchFailed,
    RequestRef,
    TensorRef,
)
from pytriton.worker.python_model.batches import LoadedPythonModel
from pytriton.worker.python_model.decoupled_loop import DecoupledModelLoop
from pytriton.worker.request_log import CallLog, Part

NOWHERE = TensorRef("x", "FP32", [1], 77, 0, 4)
NO_TYPE = TensorRef("x", "FP77", [1], 77, 0, 4)


class Echo:
    def execute(self, requests: Sequence[Any]) -> list[pb_utils.InferenceResponse]:
        return [pb_utils.InferenceResponse() for _ in requests]


@pytest.mark.parametrize("wrong", [NOWHERE, NO_TYPE])
def test_merged_readable_batches_are_answered(lanes: Lanes, wrong: TensorRef) -> None:
    spec = spec_of(decoupled=False, python_model=messages.PythonModel("{}"))
    reported = LoadedPythonModel(spec, Echo(), "m_0_0", CallLog())
    reported.log = log = FakeCallLog()
    good, bad = RequestRef([], "", []), RequestRef([wrong], "", [])
    parts = [Part(lanes[1], Batch(1, [good])), Part(lanes[1], Batch(2, [bad, bad]))]
    done, refused = reported.answer(parts)
    assert isinstance(done, BatchDone)
    assert (done.id, len(done.responses)) == (1, 1)
    assert isinstance(refused, BatchFailed)
    assert refused.id == 2
    assert log.failures == [("input", 2)]


def test_a_model_with_deferred_answers_survives_a_lack_of_memory(
    dispatcher: FakeDispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, short = LoadedPythonModel.incoming, [True]

    def incoming(*arguments: Any) -> list[pb_utils.InferenceRequest]:
        if short and short.pop():
            raise MemoryError("8 GiB")
        return read(*arguments)

    monkeypatch.setattr(LoadedPythonModel, "incoming", incoming)
    with (
        python_model_worker(Echo(), dispatcher, streams=True) as worker,
        contextlib.closing(worker.proxy(streams=True)) as lane,
    ):
        lane.send(Batch(1, [RequestRef([], "", [])]))
        assert lane.receive() == BatchBegun(1)
        refused = lane.receive()
        assert isinstance(refused, BatchFailed)
        assert "8 GiB" in refused.text
        lane.send(Batch(2, [RequestRef([], "", [])]))
        assert lane.receive() == BatchBegun(2)
    assert not worker.raised


def test_an_internal_error_in_the_lane_thread_ends_the_worker(
    dispatcher: FakeDispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without that thread it would only seem to serve, and not be replaced."""

    def begin(self: DecoupledModelLoop, outbox: object, batch: Batch) -> None:
        raise KeyError("a fault")

    monkeypatch.setattr(DecoupledModelLoop, "_begin", begin)
    with (
        python_model_worker(Echo(), dispatcher, streams=True) as worker,
        contextlib.closing(worker.proxy(streams=True)) as lane,
    ):
        lane.send(Batch(1, [RequestRef([], "", [])]))
        eventually(lambda: not worker.is_alive(), "it ends")
    assert [type(error) for error in worker.raised] == [KeyError]


class Later:
    async def execute(self, requests: Sequence[Any]) -> list[pb_utils.InferenceResponse]:
        return [pb_utils.InferenceResponse() for _ in requests]


def test_coroutines_run_once_a_thread_can_be_started(
    dispatcher: FakeDispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, failures = threading.Thread.start, [RuntimeError("can't start new thread")]

    def short(thread: threading.Thread) -> None:
        if thread.name == "events" and failures:
            raise failures.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", short)
    with (
        python_model_worker(Later(), dispatcher, streams=True) as worker,
        contextlib.closing(worker.proxy(streams=True)) as lane,
    ):
        for number, last in ((1, BatchFailed), (2, BatchDone)):
            lane.send(Batch(number, [RequestRef([], "", [])]))
            assert lane.receive() == BatchBegun(number)
            while not isinstance(answer := lane.receive(), (BatchFailed, BatchDone)):
                pass
            assert type(answer) is last
