"""Custom metrics: a model's counts reach the stub; a metric that Triton refuses affects no other."""

from __future__ import annotations

import pytest
from fakes.triton.fake_stub import Logger, MetricFamily

from pytriton._protocol.lanes.lane_messages import Metrics, MetricUpdate
from pytriton.proxy_backend.python_proxy.metrics import CustomMetrics


def update(
    change: str, value: float = 0.0, *, kind: str = "COUNTER", **labels: str
) -> MetricUpdate:
    return MetricUpdate("seen", "What was seen", kind, labels, None, change, value)


def test_a_metric_is_created_once_and_updated() -> None:
    metrics = CustomMetrics()
    metrics.apply(Metrics([update("", model="a"), update("increment", 2, model="a")]))
    metrics.apply(Metrics([update("increment", 3, model="a"), update("increment", 4, model="b")]))
    (family,) = MetricFamily.made
    assert (family.name, family.description, family.kind) == ("seen", "What was seen", 0)
    assert family.changes == [
        ("made", {"model": "a"}, None),
        ("increment", {"model": "a"}, 2),
        ("increment", {"model": "a"}, 3),
        ("made", {"model": "b"}, None),
        ("increment", {"model": "b"}, 4),
    ]


def test_the_order_of_labels_does_not_matter() -> None:
    metrics = CustomMetrics()
    metrics.apply(Metrics([update("set", 1, a="1", b="2"), update("set", 2, b="2", a="1")]))
    metrics.apply(Metrics([update("set", 3)]))
    made = [change for change in MetricFamily.made[0].changes if change[0] == "made"]
    assert made == [("made", {"a": "1", "b": "2"}, None), ("made", None, None)]


def test_a_histogram_has_buckets() -> None:
    one = MetricUpdate("times", "", "HISTOGRAM", {}, [0.1, 1.0], "observe", 0.5)
    CustomMetrics().apply(Metrics([one]))
    assert MetricFamily.made[0].changes == [("made", None, [0.1, 1.0]), ("observe", None, 0.5)]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (MetricUpdate("m", "", "SUMMARY", {}), "'SUMMARY' is not a metric kind"),
        (
            MetricUpdate("nv_inference_count", "", "COUNTER", {}),
            "names that begin with nv_ are reserved for tritonserver",
        ),
        (MetricUpdate("m", "", "COUNTER", {}, None, "increment", -1), "a counter only grows"),
    ],
)
def test_refused_metrics_are_logged_and_others_updated(wrong: MetricUpdate, words: str) -> None:
    CustomMetrics().apply(Metrics([wrong, update("increment", 1)]))
    assert [words in line and wrong.family in line for line in Logger.errors] == [True]
    assert MetricFamily.made[-1].changes[-1] == ("increment", None, 1)


def test_an_unknown_operation_does_nothing() -> None:
    CustomMetrics().apply(Metrics([update("explode", 1)]))
    assert MetricFamily.made[0].changes == [("made", None, None)]
    assert Logger.errors == []


def test_the_number_of_a_models_metrics_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytriton.proxy_backend.python_proxy.metrics.MAX_METRICS", 2)
    CustomMetrics().apply(Metrics([update("increment", 1, user=user) for user in "abca"]))
    made = [change for change in MetricFamily.made[0].changes if change[0] == "made"]
    assert made == [("made", {"user": "a"}, None), ("made", {"user": "b"}, None)]
    assert MetricFamily.made[0].changes[-1] == ("increment", {"user": "a"}, 1)
    assert ["this instance has 2 metrics" in line for line in Logger.errors] == [True]


def test_a_family_is_deleted_with_its_last_metric() -> None:
    metrics = CustomMetrics()
    metrics.apply(Metrics([update("increment", 1, model="a"), update("increment", 1, model="b")]))
    metrics.apply(Metrics([update("delete", model="a"), update("increment", 2, model="b")]))
    metrics.apply(Metrics([update("delete", model="b"), update("set", 7, kind="GAUGE")]))
    first, second = MetricFamily.made
    assert first.changes[-1] == ("increment", {"model": "b"}, 2)
    assert (second.name, second.kind) == ("seen", MetricFamily.GAUGE)
    assert second.changes == [("made", None, None), ("set", None, 7)]
    metrics.apply(Metrics([update("delete", model="never")]))  # another proxy held it
    assert Logger.errors == []
