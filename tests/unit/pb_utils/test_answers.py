"""Requests, responses, senders, metrics, logs and configurations of `pb_utils`, without a server."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pytriton import pb_utils
from pytriton._protocol.lanes.lane_messages import MetricUpdate
from pytriton.pb_utils import TRITONSERVER_RESPONSE_COMPLETE_FINAL as FINAL
from pytriton.pb_utils import host


class Sent:
    """What was passed to a sender."""

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


def test_a_non_decoupled_models_sender_answers_once() -> None:
    sent, response = Sent(decoupled=False), pb_utils.InferenceResponse([])
    with pytest.raises(pb_utils.TritonModelException, match="must respond"):
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


#: The minimal arguments of a request.
_GIVEN: dict[str, Any] = {"inputs": [], "requested_output_names": ["y"], "model_name": "other"}


def test_requests_created_by_a_model() -> None:
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
    with pytest.raises(pb_utils.TritonModelException, match="not connected to tritonserver"):
        request.exec()
    with pytest.raises(pb_utils.TritonModelException, match="not connected to tritonserver"):
        pb_utils.is_model_ready("other")
    for missing in ("inputs", "requested_output_names", "model_name"):
        given = {name: value for name, value in _GIVEN.items() if name != missing}
        with pytest.raises(TypeError, match=missing):
            pb_utils.InferenceRequest(**given)
    for wrong in ("text", {3: 1}, {"a": 1.5}):
        with pytest.raises(pb_utils.TritonModelException, match="parameters"):
            pb_utils.InferenceRequest(**_GIVEN, parameters=wrong)  # type: ignore[arg-type]
    for correlation_id in (1.5, -1, 1 << 64):
        with pytest.raises(pb_utils.TritonModelException, match="Correlation ID"):
            pb_utils.InferenceRequest(**_GIVEN, correlation_id=correlation_id)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Correlation ID"):  # as of any other argument
        pb_utils.InferenceRequest(**_GIVEN, correlation_id=None)  # type: ignore[arg-type]
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
    gauges = pb_utils.MetricFamily("g", "about", pb_utils.MetricFamily.GAUGE)
    gauge = gauges.Metric()
    gauge.set(5)
    gauge.increment(-2)
    assert gauge.value() == 3
    histogram = pb_utils.MetricFamily("h", "about", pb_utils.MetricFamily.HISTOGRAM)
    histogram.Metric(buckets=[1, 2]).observe(1)
    del gauges
    with pytest.raises(pb_utils.TritonModelException, match="'MetricFamily' has been deleted"):
        gauge.set(1)


@pytest.mark.parametrize(
    ("kind", "given", "why"),
    [
        ("HISTOGRAM", {}, "Missing required buckets"),
        ("HISTOGRAM", {"buckets": (1, 2)}, "Buckets must be a list"),
        ("HISTOGRAM", {"buckets": [2, 1]}, "strictly sorted"),
        ("HISTOGRAM", {"buckets": [1, 1]}, "strictly sorted"),
        ("HISTOGRAM", {"buckets": ["1"]}, "must be numbers"),
        ("HISTOGRAM", {"buckets": list(range(1025))}, "too many"),
        ("HISTOGRAM", {"buckets": [1], "labels": {"le": "x"}}, "Invalid label name"),
        ("GAUGE", {"buckets": []}, "Unexpected buckets"),
        ("COUNTER", {"labels": [("a", "b")]}, "Labels must be a dictionary"),
        ("COUNTER", {"labels": {"a": 1}}, "label a: 1 is not a string"),
        ("COUNTER", {"labels": {"a": "x\0y"}}, "label a"),
        ("COUNTER", {"labels": {"a": "\ud800"}}, "label a"),
        ("COUNTER", {"labels": {"a b": "c"}}, "Invalid label name"),
        ("COUNTER", {"labels": {"__a": "c"}}, "Invalid label name"),
        ("COUNTER", {"labels": {f"l{n}": "" for n in range(65)}}, "too many"),
    ],
)
def test_invalid_metrics_are_refused(kind: str, given: dict[str, Any], why: str) -> None:
    family = pb_utils.MetricFamily(f"no_{kind}", "", getattr(pb_utils.MetricFamily, kind))
    with pytest.raises(pb_utils.TritonModelException, match=why):
        family.Metric(**given)


def test_integers_in_response_parameters_have_64_bits() -> None:
    most, least = 2**63 - 1, -(2**63)
    response = pb_utils.InferenceResponse([], parameters={"most": most, "least": least})
    assert json.loads(response.parameters()) == {"most": most, "least": least}
    for value in (most + 1, least - 1, 10**40):
        with pytest.raises(
            pb_utils.TritonModelException, match="64 bits, found a larger integer for 'n'"
        ):
            pb_utils.InferenceResponse([], parameters={"n": value})


def test_a_process_creates_no_more_metrics_than_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytriton.pb_utils.metrics._numbers", {})
    monkeypatch.setattr("pytriton.pb_utils.metrics.MAX_METRICS", 3)
    family = pb_utils.MetricFamily("by_user", "", pb_utils.MetricFamily.COUNTER)
    for user in "abc":
        family.Metric(labels={"user": user}).increment(1)
    with pytest.raises(pb_utils.TritonModelException, match="process already has 3 metrics"):
        family.Metric(labels={"user": "d"})
    assert family.Metric(labels={"user": "a"}).value() == 1
    del family  # and its metrics
    family = pb_utils.MetricFamily("by_user", "", pb_utils.MetricFamily.COUNTER)
    assert family.Metric(labels={"user": "d"}).value() == 0


class Reported(host.Host):
    """Records operations on metrics."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, str, str, dict[str, str]]] = []

    def metric(self, update: MetricUpdate) -> None:
        self.changes.append((update.change, update.family, update.description, update.labels))

    delete_metric = metric


def test_metrics_are_deleted_with_the_last_family_that_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported = Reported()
    monkeypatch.setattr(host, "_current", reported)
    counter, gauge = pb_utils.MetricFamily.COUNTER, pb_utils.MetricFamily.GAUGE
    family = pb_utils.MetricFamily("of_many", "the first text", counter)
    again = pb_utils.MetricFamily("of_many", "another text", counter)
    metric = family.Metric(labels={"b": "1", "a": "2"})
    same = again.Metric(labels={"a": "2", "b": "1"})
    metric.increment(3)
    about = "of_many", "the first text", {"a": "2", "b": "1"}
    assert reported.changes == [("", *about), ("", *about), ("increment", *about)]
    reported.changes.clear()
    del family  # and its metric, although another object refers to it
    with pytest.raises(pb_utils.TritonModelException, match="'MetricFamily' has been deleted"):
        metric.increment(1)
    assert same.value() == 3
    assert reported.changes == []
    with pytest.raises(pb_utils.TritonModelException, match="already exists with different type"):
        pb_utils.MetricFamily("of_many", "", gauge)
    del same  # its family has it
    assert again.Metric(labels={"a": "2", "b": "1"}).value() == 3
    reported.changes.clear()
    del again
    assert reported.changes == [("delete", *about)]
    with pytest.raises(pb_utils.TritonModelException, match="already exists with different type"):
        pb_utils.MetricFamily("of_many", "", gauge)  # tritonserver forgets no family
    anew = pb_utils.MetricFamily("of_many", "another text", counter)
    assert anew.Metric(labels={"a": "2", "b": "1"}).value() == 0
    assert reported.changes[-1] == ("", *about)


def test_invalid_families_are_refused() -> None:
    counter, gauge = pb_utils.MetricFamily.COUNTER, pb_utils.MetricFamily.GAUGE
    first = pb_utils.MetricFamily("same_name", "", counter)
    again = pb_utils.MetricFamily("same_name", "another text", counter)
    again.Metric().increment(1)
    assert first.Metric().value() == 1
    with pytest.raises(pb_utils.TritonModelException, match="already exists with different type"):
        pb_utils.MetricFamily("same_name", "", gauge)
    for name in ("", "two words", "3things", "__mine", "a-b"):
        with pytest.raises(pb_utils.TritonModelException, match="Invalid metric name"):
            pb_utils.MetricFamily(name, "", counter)
    with pytest.raises(pb_utils.TritonModelException, match="Invalid description"):
        pb_utils.MetricFamily("fine", "zero\0byte", counter)
    with pytest.raises(TypeError, match="kind"):
        pb_utils.MetricFamily("fine", "", 0)  # type: ignore[arg-type]


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


def test_names_of_tritonservers_metrics_are_refused() -> None:
    with pytest.raises(
        pb_utils.TritonModelException,
        match="names that begin with nv_ are reserved for tritonserver",
    ):
        pb_utils.MetricFamily("nv_inference_count", "", pb_utils.MetricFamily.COUNTER)
