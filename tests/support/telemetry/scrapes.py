"""What a scrape of a daemon finds: its own metrics, those of a callable and those of tritonserver."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, Summary

from pytriton._protocol.lanes.user_metrics import encoded
from pytriton.dispatcher.telemetry.metrics.daemon_metrics import Scrape
from pytriton.dispatcher.telemetry.metrics.triton_metrics import parsed
from pytriton.dispatcher.telemetry.metrics.user_metrics import (
    MergedUserMetrics,
    Merger,
    RawUserMetrics,
)
from pytriton.worker.user_metrics import collected
from support.models.figures import model, snapshot, work

INSTANCE = {"model": "m", "version": "1", "model_instance": "0"}
TRITON = """\
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="m",version="1"} 7
# TYPE nv_cpu_utilization gauge
nv_cpu_utilization 0.5
"""


def user_metrics(model: str, registry: CollectorRegistry) -> RawUserMetrics:
    """Return what the only worker of a model reports."""
    return RawUserMetrics(model, 1, 0, {}, [encoded(collected(registry.collect()))])


def merged(**models: CollectorRegistry) -> MergedUserMetrics:
    """Return the metrics of models, each with one worker."""
    return Merger().merge([user_metrics(name, registry) for name, registry in models.items()])


def scraped(**more: Any) -> Scrape:
    """Return a scrape of a model "m" whose callable has metrics of its own."""
    registry = CollectorRegistry()
    Counter("seen", "Things.", ["colour"], registry=registry).labels('r"ed').inc(3)
    histogram = Histogram("size", "Sizes.", buckets=(1, 10), registry=registry)
    for size in (5, 6, 50):
        histogram.observe(size)
    Summary("took", "Times.", registry=registry).observe(4)
    figures = snapshot(1010, model("m", work(50, ms=5, rows=3)))
    return Scrape(figures, parsed(TRITON), merged(m=registry), **more)
