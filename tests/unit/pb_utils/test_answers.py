"""Requests, responses, senders, metrics, log lines and configurations of `pb_utils`, without a server."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pytriton import pb_utils
from pytriton.pb_utils import TRITONSERVER_RESPONSE_COMPLETE_FINAL as FINAL


class Sent:
    """What a sender was given."""

    def __init__(self, *, decoupled: bool) -> None:
        self.all: list[tuple[Any, bool]] = []
        self.sender = pb_utils.ResponseSender(
            lambda response, final: self.all.append((response, final)),
            lambda: False,
            decoupled=decoupled,
        )


def test_a_decoupled_sender_sends_until_the_final_flag() -> None:
    sent, response = Sent(decoupled=True), pb_utils.InferenceResponse([])
    with pytest.raises(pb_utils.TritonModelException, match="must be provided"):
        sent.sender.send()
    with pytest.raises(pb_utils.TritonModelException, match="Unsupported flag"):
        sent.sender.send(response, flags=2)
    with pytest.raises(TypeError, match="int"):
        sent.sender.send(1)  # type: ignore[arg-type]
    sent.sender.send(response)
    sent.sender.send(response)
    sent.sender.send(flags=FINAL)
    assert sent.all == [(response, False), (response, False), (None, True)]
    with pytest.raises(pb_utils.TritonModelException, match="closed"):
        sent.sender.send(response)


def test_a_sender_of_a_model_that_is_not_decoupled_answers_once() -> None:
    sent, response = Sent(decoupled=False), pb_utils.InferenceResponse([])
    with pytest.raises(pb_utils.TritonModelException, match="has to answer"):
        sent.sender.send(flags=FINAL)
    sent.sender.send(response)
    sent.sender.send(flags=FINAL)
    assert sent.all == [(response, True)]
    with pytest.raises(pb_utils.TritonModelException, match="closed"):
        sent.sender.send(response, flags=FINAL)


def test_responses() -> None:
    tensor = pb_utils.Tensor("y", np.ones(2))
    response = pb_utils.InferenceResponse([tensor], parameters={"tokens": 3, "done": True})
    assert pb_utils.get_output_tensor_by_name(response, "y") is tensor
    assert pb_utils.get_output_tensor_by_name(response, "z") is None
    assert json.loads(response.parameters()) == {"tokens": 3, "done": True}
    assert not response.has_error()
    failed = pb_utils.InferenceResponse(
        error=pb_utils.TritonError("no", pb_utils.TritonError.NOT_FOUND)
    )
    assert failed.has_error()
    error = failed.error()
    assert error is not None
    assert (error.message(), error.code()) == ("no", pb_utils.TritonError.NOT_FOUND)
    assert pb_utils.TritonError("no").code() == pb_utils.TritonError.INTERNAL
    with pytest.raises(pb_utils.TritonModelException, match="bool/int/str"):
        pb_utils.InferenceResponse(parameters={"x": 1.5})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="TritonError"):
        pb_utils.InferenceResponse(error="text")  # type: ignore[arg-type]


def test_requests_made_here() -> None:
    request = pb_utils.InferenceRequest(
        model_name="other",
        requested_output_names=["y"],
        inputs=[pb_utils.Tensor("x", np.ones(1))],
        correlation_id="chat",
        flags=pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
        timeout=7,
        parameters={"a": 1},
    )
    assert request.model_name() == "other"
    assert request.requested_output_names() == {"y"}
    assert (request.correlation_id(), request.flags(), request.timeout()) == ("chat", 1, 7)
    assert request.parameters() == '{"a": 1}'
    assert pb_utils.get_input_tensor_by_name(request, "x") is request.inputs()[0]
    request.set_flags(2)
    assert request.flags() == 2
    assert request.trace().get_context() is None
    with pytest.raises(pb_utils.TritonModelException, match="cancellation"):
        request.is_cancelled()
    with pytest.raises(pb_utils.TritonModelException, match="no response sender"):
        request.get_response_sender()
    with pytest.raises(pb_utils.TritonModelException, match="no connection to a tritonserver"):
        request.exec()
    with pytest.raises(pb_utils.TritonModelException, match="no connection to a tritonserver"):
        pb_utils.is_model_ready("other")
    with pytest.raises(TypeError, match="model_name"):
        pb_utils.InferenceRequest()
    for wrong in ("text", {3: 1}, {"a": 1.5}):
        with pytest.raises(pb_utils.TritonModelException, match="parameters"):
            pb_utils.InferenceRequest(model_name="other", parameters=wrong)  # type: ignore[arg-type]
    with pytest.raises(pb_utils.TritonModelException, match="Correlation ID"):
        pb_utils.InferenceRequest(model_name="other", correlation_id=1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="TRITONSERVER_MEMORY"):
        pb_utils.PreferredMemory(3)  # type: ignore[arg-type]


def test_metrics_count_and_refuse() -> None:
    family = pb_utils.MetricFamily("m", "about", pb_utils.MetricFamily.COUNTER)
    counter = family.Metric(labels={"a": "b"})
    counter.increment(2)
    counter.increment(0.5)
    assert counter.value() == 2.5
    assert family.Metric(labels={"a": "b"}).value() == 2.5  # the same metric, as in tritonserver
    refused: list[Callable[[], None]] = [
        lambda: counter.increment(-1),
        lambda: counter.set(1),
        lambda: counter.observe(1),
    ]
    for wrong in refused:
        with pytest.raises(pb_utils.TritonModelException, match=r"m\b"):
            wrong()
    gauge = pb_utils.MetricFamily("g", "about", pb_utils.MetricFamily.GAUGE).Metric()
    gauge.set(5)
    gauge.increment(-2)
    assert gauge.value() == 3
    histogram = pb_utils.MetricFamily("h", "about", pb_utils.MetricFamily.HISTOGRAM)
    histogram.Metric(buckets=[1, 2]).observe(1)
    with pytest.raises(pb_utils.TritonModelException, match="buckets"):
        histogram.Metric()
    with pytest.raises(pb_utils.TritonModelException, match="pairs of str"):
        family.Metric(labels={"a": 1})  # type: ignore[dict-item]


def test_log_lines_have_tritons_format(capsys: pytest.CaptureFixture[str]) -> None:
    pb_utils.Logger.log_warn("one\ntwo")
    pb_utils.Logger.log("three", pb_utils.Logger.ERROR)
    lines = capsys.readouterr().err.splitlines()
    pattern = r"([IWE])\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ test_answers\.py:\d+\] (.*)"
    found = [re.findall(pattern, line) for line in lines]
    assert found == [[("W", "one")], [("W", "two")], [("E", "three")]]
    with pytest.raises(TypeError, match="99"):
        pb_utils.Logger.log("x", 99)  # type: ignore[arg-type]


def test_a_configuration_is_completed_and_not_contradicted() -> None:
    config = pb_utils.ModelConfig(
        {
            "name": "m",
            "max_batch_size": 4,
            "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": []}],
        }
    )
    config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": (2,)})
    config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [2]})
    config.set_max_batch_size(8)
    config.set_dynamic_batching()
    config.set_model_transaction_policy({"decoupled": True})
    done = config.as_dict()
    assert done["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [2]}]
    assert done["max_batch_size"] == 8
    assert done["dynamic_batching"] == {}
    refused: list[Callable[[], None]] = [
        lambda: config.add_input({"name": "x", "data_type": "TYPE_FP64", "dims": [2]}),
        lambda: config.add_output({"name": "z"}),
        lambda: config.add_output({"name": "z", "data_type": "TYPE_FP32", "dims": [], "shape": []}),
        lambda: config.set_max_batch_size(2),
        lambda: config.set_model_transaction_policy({"decoupled": False}),
    ]
    for wrong in refused:
        with pytest.raises(ValueError, match=r"x|z|max_batch_size|decoupled"):
            wrong()


def test_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, pb_utils.MODULE_NAME, None)
    pb_utils.install()
    assert sys.modules[pb_utils.MODULE_NAME] is pb_utils
